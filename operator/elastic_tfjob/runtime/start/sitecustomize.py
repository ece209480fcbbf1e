"""Python imports this module before the program if the launcher has put its folder on the path.

It imports what the program is going to import, and leaves a copy of the interpreter behind, from which later
generations are forked: see forkserver.py. If anything fails, the program begins as without it. Any Python may read this
file, also an old one."""

import os
import sys

if "ELASTIC_TFJOB_FORK" in os.environ:
    try:
        from elastic_tfjob.runtime.forkserver import begin

        begin(os.path.dirname(os.path.abspath(__file__)))
    except Exception:  # Python before 3.9, the package is not on its path, there is no /proc
        os.environ.pop("ELASTIC_TFJOB_FORK", None)
# Import the image's own sitecustomize in place of this one.
sys.path[:] = [each for each in sys.path if each != os.path.dirname(os.path.abspath(__file__))]
own = sys.modules.pop("sitecustomize")
try:
    # Raises ImportError if there is none, as without this module.
    import sitecustomize  # type: ignore  # noqa: F401
except BaseException:
    sys.modules.setdefault("sitecustomize", own)  # Python 3.9 removes it when it reads an archive, and must find it
    raise

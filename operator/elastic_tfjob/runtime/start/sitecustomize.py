"""What Python imports by this name before it begins a program, if the launcher put this directory on its path: it
imports what the program is going to import, and leaves a copy of itself from which later generations are forked. See
forkserver.py. Whatever goes wrong, the program begins as without it. Any Python may read this file, also an old one."""

import os
import sys

if "ELASTIC_TFJOB_FORK" in os.environ:
    try:
        from elastic_tfjob.runtime.forkserver import begin

        begin(os.path.dirname(os.path.abspath(__file__)))
    except Exception:  # another Python than 3.9 or newer, the package is not on its path, there is no /proc
        os.environ.pop("ELASTIC_TFJOB_FORK", None)
# In place of this one, the image's own.
sys.path[:] = [each for each in sys.path if each != os.path.dirname(os.path.abspath(__file__))]
own = sys.modules.pop("sitecustomize")
try:
    # Raises ImportError if there is none, as without this one.
    import sitecustomize  # type: ignore  # noqa: F401
except BaseException:
    sys.modules.setdefault("sitecustomize", own)  # Python 3.9, reading an archive, removes it and must find it
    raise

"""What the launcher and the interpreter that programs are forked from must agree on: forking.py, forkserver.py.

Both are imported before the user's program by any Python from 3.9 on, so this imports next to nothing.
"""

import signal

VARIABLE = "ELASTIC_TFJOB_FORK"
"""What the launcher tells a process that is to leave an interpreter behind: JSON of the keys of `forkserver.begin`.
start/sitecustomize.py, which must not fail in any Python, has the name once more."""
DESCRIPTOR = 201
"""The end of the socket by which that interpreter is asked for forks."""
OWN_STDERR = 200
"""The descriptor by which a program has the container's standard error, where its own is a pipe (stderr_pipe.py). None
that it would get itself."""
IGNORED = [signal.SIGPIPE, signal.SIGXFSZ]
"""By Python, which runs the launcher, and so by all that it starts unless that is undone."""

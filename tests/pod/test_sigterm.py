"""SIGTERM reaches the main thread of a program with threads, whichever thread the system gives it to."""

import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from .pods import PYTHON

TIMES = 500
"""With a `threading.Event` that the handler sets, one in some ten to hundred was not noticed."""

PROGRAM = """
import threading, time
from elastic_tfjob.runtime.serving import Sigterm

def work():
    while True:
        sum(range(2000))
        time.sleep(0.0005)

for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
sigterm = Sigterm()
print("ready", flush=True)
while True:
    print("SIGTERM" if sigterm.wait() else "another", flush=True)
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    found = subprocess.Popen([PYTHON, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    # What is never told makes `readline` wait for ever: then the process is ended, and there is nothing to read.
    limit = threading.Timer(600, found.kill)
    limit.start()
    try:
        yield found
    finally:
        limit.cancel()
        found.kill()
        found.communicate()


def test_each_is_noticed(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for k in range(TIMES):
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n", f"number {k}"

"""What reporting costs: the hook in the training program, the launcher and the exporter beside it.

    python benchmarks/bench_hook.py [--seconds 60] [--json FILE] [--check]

One pod's three processes, as they run in one: launcher, exporter, and a program that calls `ElasticCheckpoint.step()`
1,000 times a second. The exporter is asked for /status each second and for /metrics every 15 s, as the operator and
Prometheus do. All is CPU time, so that other work on the machine does not count. Choosing a batch's example
numbers (`data.take`) is measured apart. `--check` exits 1 if a step costs 1 % of its millisecond or more, or the
numbers of a batch cost 20 µs or more.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from harness.controlplane import free_port

STEPS_PER_S = 1000
SHARE = 0.01
"""The issue's limit: of the time of a step."""
STATUS_S, METRICS_S = 1.0, 15.0
TAKE_S = 20e-6
"""The limit for the numbers of a batch of 32."""

PROGRAM = """
import json, sys, time
import tensorflow as tf
from elastic_tfjob.runtime import ElasticCheckpoint

seconds, rate = float(sys.argv[1]), int(sys.argv[2])
elastic = ElasticCheckpoint(tf.train.Checkpoint(variable=tf.Variable(0.0)))
data = elastic.data(1_200_000, epochs=None)


def paced(step):
    # CPU seconds a step: of `step` itself, and of all other threads
    steps, inside = int(seconds * rate), 0.0
    begin, process, thread = time.monotonic(), time.process_time(), time.thread_time()
    for number in range(1, steps + 1):
        time.sleep(max(begin + number / rate - time.monotonic(), 0.0))
        before = time.thread_time()
        step(number)
        inside += time.thread_time() - before
    others = time.process_time() - process - (time.thread_time() - thread)
    return inside / steps, others / steps


without = paced(lambda number: None)
elastic.resume()
taken = paced(lambda number: elastic.step(number, loss=0.5, examples=32))
inside, others = (after - before for after, before in zip(taken, without))
batches, begin = 50_000, time.thread_time()
for _ in range(batches):
    data.take(32)
take = (time.thread_time() - begin) / batches
print(json.dumps({"thread_s": inside, "others_s": others, "take_s": take}), flush=True)
number = int(seconds * rate)
while True:  # until it is ended
    number += 1
    time.sleep(1 / rate)
    elastic.step(number)
"""


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, its threads that have ended too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ask(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        content: bytes = answer.read()
        return content


def up(port: int) -> bool:
    try:
        return ask(port, "/healthz") == b"ok\n"
    except (urllib.error.URLError, ConnectionError):
        return False


def watch(port: int, pids: dict[str, int], seconds: float) -> dict[str, Any]:
    """Ask as operator and Prometheus do; the processes' shares of a core meanwhile, and their memory."""
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    begin = time.monotonic()
    status_at = metrics_at = begin
    while (now := time.monotonic()) < begin + seconds:
        if now >= status_at:
            ask(port, "/status")
            status_at += STATUS_S
        if now >= metrics_at:
            ask(port, "/metrics")
            metrics_at += METRICS_S
        time.sleep(0.05)
    took = time.monotonic() - begin
    return {
        name: {"cores": round((cpu_s(pid) - before[name]) / took, 5), "rss_bytes": memory(pid)}
        for name, pid in pids.items()
    }


def measure(directory: Path, seconds: float) -> dict[str, Any]:
    program, command = directory / "program.py", directory / "command"
    program.write_text(PROGRAM)
    command.touch()
    port = free_port()
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "ELASTIC_TFJOB_DIR": str(directory),
        "ELASTIC_TFJOB_COMMAND": str(command),
    }
    python = [sys.executable, "-m"]
    exporter = subprocess.Popen([*python, "elastic_tfjob.exporter", "--dir", str(directory), "--port", str(port)])
    train = [sys.executable, str(program), str(seconds), str(STEPS_PER_S)]
    launcher = subprocess.Popen(
        [*python, "elastic_tfjob.runtime", "--", *train], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        while not up(port) or json.loads(ask(port, "/status"))["step"] is None:
            if launcher.poll() is not None:
                sys.exit(f"the program ended with {launcher.returncode}")
            time.sleep(0.1)
        beside = watch(port, {"launcher": launcher.pid, "exporter": exporter.pid}, seconds)
        assert launcher.stdout is not None
        hook = json.loads(launcher.stdout.readline())
        return {"seconds": seconds, "steps_per_s": STEPS_PER_S, "hook": hook, **beside}
    finally:
        for process in (launcher, exporter):
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory), options.seconds)
    thread, others = found["hook"]["thread_s"], found["hook"]["others_s"]
    print(f"a step, in the thread that trains   {thread * 1e6:6.2f} µs   {thread * STEPS_PER_S:7.2%} of a step")
    print(f"a step, in the hook's own thread    {others * 1e6:6.2f} µs   {others * STEPS_PER_S:7.2%} of a core")
    print(f"the numbers of a batch of 32        {found['hook']['take_s'] * 1e6:6.2f} µs")
    for name in ("launcher", "exporter"):
        each = found[name]
        print(f"{name:35} {each['rss_bytes'] / 2**20:6.1f} MiB  {each['cores']:7.2%} of a core")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.check and thread * STEPS_PER_S >= SHARE:
        sys.exit(f"a step costs more than {SHARE:.0%} of its time")
    if options.check and found["hook"]["take_s"] >= TAKE_S:
        sys.exit(f"the numbers of a batch cost more than {TAKE_S * 1e6:.0f} µs")


if __name__ == "__main__":
    main()

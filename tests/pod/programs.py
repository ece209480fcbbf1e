"""Small programs that run under a launcher in tests: they keep the pod contract, and misbehave when told."""

import json

TRAINER = """
import os, signal, sys, time
from pathlib import Path
from elastic_tfjob.runtime import protocol

generation = int(os.environ["ELASTIC_TFJOB_GENERATION"])
shared = Path(os.environ["ELASTIC_TFJOB_DIR"])
folder = protocol.generation_directory(shared, generation)
told = os.environ.get(f"TOLD_{generation}", "")
if told == "no hello":
    time.sleep(600)
protocol.write(folder / protocol.HELLO, {})
if told == "crash":
    sys.exit(7)
if told in ("segfault", "segfault once"):
    with open(shared / "segfaults", "a") as file:
        file.write("1")
        first = file.tell() == 1
    if first or told == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
if told == "raise":
    print("words before", file=sys.stderr)
    raise ValueError("shapes differ:\\n[2] and [3]")
if told == "say":
    os.write(2, b"one line\\nhalf a li")
    time.sleep(0.2)
    sys.exit("ne, and the last\\n")
if not (folder / protocol.GO).exists():
    protocol.write(folder / protocol.READY, {})
    while not (folder / protocol.GO).exists():
        time.sleep(0.005)
if told == "raise later":
    raise ValueError("shapes differ in restore")
print(f"generation {generation} trains with {os.environ['TF_CONFIG']}", flush=True)
answered = None
while True:
    request = (protocol.read(folder / protocol.SAVE) or {}).get("id")
    if request and request != answered and told != "hang":
        answered = request
        failed = told == "full"
        protocol.write(folder / protocol.SAVED, {"id": request, "ok": not failed, "why": "disk full" if failed else ""})
        if not failed:
            while (folder / protocol.SAVE).exists():
                time.sleep(0.005)
            print(f"generation {generation} goes on", flush=True)
    end = protocol.read(shared / f"end-{generation}.json")
    if end:
        sys.exit(end["code"])
    time.sleep(0.005)
"""
"""Trains: answers requests to save. The variable TOLD_<generation> says how it misbehaves; the file
end-<generation>.json in the shared directory ends it with its `code`."""

SERVER = """
import json, os, signal, socket, time

config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
port = int(config["cluster"][task["type"]][task["index"]].rsplit(":", 1)[1])
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(("127.0.0.1", port))
print(f"serves at {port}", flush=True)
while True:
    time.sleep(1)
"""


def tf_config(kind: str, index: int = 0, port: int = 2222) -> str:
    """TF_CONFIG of a job of a chief, a PS and a worker; `port` is the replica's own."""
    cluster = {name: [f"127.0.0.1:{port if name == kind else 1}"] for name in ("chief", "ps", "worker")}
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"})

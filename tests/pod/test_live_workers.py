"""Workers that join a running ClusterCoordinator and leave it: real servers, and a chief that counts its steps."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.controlplane import free_port

from .pods import PYTHON, until

pytestmark = pytest.mark.xdist_group("tensorflow-1")  # one job for all tests here

SERVER = """
import json, sys
from elastic_tfjob.runtime.light_native import start_server
held = start_server(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
print("serves", flush=True)
sys.stdin.read()  # until the test ends
"""

CHIEF = """
import json, os, resource, sys, threading, time
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from elastic_tfjob.runtime.live_workers import LiveWorkers

cluster, file = json.loads(sys.argv[1]), sys.argv[2]
live = LiveWorkers(tf)
unable = [live.unable()]
spec = tf.train.ClusterSpec(cluster)
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="chief", task_id=0)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
unable.append(live.unable())
with strategy.scope():
    done = tf.Variable(0, dtype=tf.int64)

@tf.function
def step(iterator):
    done.assign_add(1)
    return next(iterator)

def data():  # built on each worker, where the file must exist
    return tf.data.Dataset.from_tensors(tf.strings.length(tf.io.read_file(file))).repeat()

ran, execute = set(), cluster_coordinator.Closure.execute_on
def noted(closure, worker):
    execute(closure, worker)
    if not isinstance(closure, cluster_coordinator.ResourceClosure):
        ran.add((worker.worker_index, worker.device_name))
cluster_coordinator.Closure.execute_on = noted

iterators = [iter(coordinator.create_per_worker_dataset(data))]
scheduled, applied, longest = 0, [], 0.0

def train(steps):
    global scheduled, longest
    began = time.monotonic()
    for k in range(steps):
        coordinator.schedule(step, args=(iterators[k % len(iterators)],))
    coordinator.join()
    scheduled += steps
    longest = max(longest, time.monotonic() - began)
    if live.ready:
        began = time.perf_counter()
        live.apply()
        applied.append(time.perf_counter() - began)

def start(to, limit_s):
    live.start(to, limit_s)

def finish(to, limit_s):
    global longest
    longest = 0.0
    while live.outcome is None:
        train(4)
    ran.clear()
    end = time.monotonic() + 20
    while len(ran) < len(live.addresses()) and time.monotonic() < end:
        train(8)
    tasks = coordinator._cluster.failure_handler._server_def.cluster.job
    tasks = next(dict(job.tasks) for job in tasks if job.name == "worker")
    places = [tasks[int(device.rpartition(":")[2])] for _, device in sorted(ran)]
    return {"outcome": live.outcome, "unable": live.unable(), "at": places, "addresses": live.addresses(),
            "workers": strategy._extended._num_workers, "counted": int(done.numpy()) - scheduled, "longest_s": longest}

def change(to, limit_s):
    start(to, limit_s)
    return finish(to, limit_s)

def prepare(to, limit_s):
    start(to, limit_s)
    while not live.ready:
        time.sleep(0.01)

def cancel(to, limit_s):
    prepare(to, limit_s)
    return {"cancelled": live.cancel(), **finish(to, limit_s), "again": live.cancel()}

def unwoken(to, limit_s):  # the thread of a Worker that leaves is idle until a step comes, and that is not its own
    prepare(to, limit_s)
    queue = coordinator._cluster.closure_queue
    put = queue.put
    queue.put = lambda closure, tag=None: None if tag is not None else put(closure)
    live.apply()
    queue.put = put
    return finish(to, limit_s)

def plus(number):
    return tf.function(lambda iterator: next(iterator) + number)

def tracing(to, limit_s):  # the program makes functions all the time
    start(to, limit_s)
    made = 0
    while live.outcome is None or made < 20:
        train(2)
        coordinator.schedule(plus(made), args=(iterators[0],))
        made += 1
    coordinator.join()
    return finish(to, limit_s)

def no_thread(to, limit_s):  # for the second Worker that joins
    prepare(to, limit_s)
    worker, made = cluster_coordinator.Worker, []
    def make(*args):
        if made:
            raise RuntimeError("can't start new thread")
        made.append(worker(*args))
        return made[0]
    cluster_coordinator.Worker = make
    live.apply()
    cluster_coordinator.Worker = worker
    return finish(to, limit_s)

def new_data(to, limit_s):
    iterators.append(iter(coordinator.create_per_worker_dataset(data)))
    prepare(to, limit_s)
    if len(to) > len(live.addresses()):  # one that the thread has not seen
        iterators.append(iter(coordinator.create_per_worker_dataset(data)))
    return finish(to, limit_s)

def save(to, limit_s):
    @tf.function
    def other(iterator):
        return next(iterator) + 1
    result = coordinator.schedule(other, args=(iterators[0],)).fetch()
    return {"path": tf.train.Checkpoint(done=done).save(file + "-checkpoint"), "result": int(result)}

def counts(to, limit_s):  # without the files of gRPC, which TensorFlow before 2.20 leaves open
    files = [link for link in map("/proc/self/fd/{}".format, os.listdir("/proc/self/fd")) if os.path.islink(link)]
    files = [link for link in files if not os.readlink(link).startswith("anon_inode:")]
    return {"threads": threading.active_count(), "files": len(files), "applied": applied}

def crowded(to, limit_s):
    few, limits = len(os.listdir("/proc/self/fd")) + 10, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    unable = live.unable()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return {"unable": [unable, live.unable()], "limit": few}

print(json.dumps({"unable": unable}), flush=True)
for line in sys.stdin:
    name, to, limit_s = json.loads(line)
    print(json.dumps(globals()[name](to, limit_s)), flush=True)
os._exit(0)
"""


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def answer_settings(server: socket.socket, ended: threading.Event) -> None:
    """Answer each connection with the settings of HTTP/2, and nothing else."""
    server.settimeout(0.05)
    with contextlib.ExitStack() as connections:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                connection = connections.enter_context(server.accept()[0])
                connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))


class Job:
    """Servers by address, and a chief that does what it is told."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "data"
        self.file.write_text("some")
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.first = [self._address(), self._address()]
        self.now = self.first
        self._cluster = {"chief": [self._address()], "ps": [self._address()], "worker": self.first}
        self.serve("ps", *self._cluster["ps"])
        self.serve("worker", *self.first)
        self._chief = self._start(CHIEF, json.dumps(self._cluster), str(self.file))
        self.begun = self.answer()

    def _address(self) -> str:
        return f"127.0.0.1:{free_port()}"

    def _start(self, source: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "GRPC_FAIL_FAST": "use_caller", "TF_CPP_MIN_LOG_LEVEL": "2"}
        return subprocess.Popen(
            [PYTHON, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def serve(self, kind: str, *addresses: str) -> None:
        """Start servers at these addresses; returns once they serve."""
        for k, address in enumerate(addresses):
            cluster = json.dumps({**self._cluster, kind: addresses})
            self.processes[address] = self._start(SERVER, cluster, kind, str(k))
        for address in addresses:
            assert self.processes[address].stdout.readline() == "serves\n"  # type: ignore[union-attr]

    def worker(self) -> str:
        """The address of another worker, which serves."""
        address = self._address()
        self.serve("worker", address)
        return address

    def kill(self, address: str) -> None:
        end(self.processes.pop(address))

    def send(self, name: str, to: Sequence[str] = (), limit_s: float = 60.0) -> None:
        assert self._chief.stdin is not None
        self._chief.stdin.write(json.dumps([name, to, limit_s]) + "\n")
        self._chief.stdin.flush()

    def answer(self) -> Any:
        assert self._chief.stdout is not None
        return json.loads(self._chief.stdout.readline())

    def tell(self, name: str, to: Sequence[str] = (), limit_s: float = 60.0) -> Any:
        """What the chief answers."""
        self.send(name, to, limit_s)
        return self.answer()

    def change(self, to: list[str], name: str = "change") -> list[str]:
        """Change to these workers, which all must train then; returns their addresses by place."""
        answer = self.tell(name, to)
        assert answer["outcome"] == [True, ""]
        assert answer["unable"] == ""
        assert sorted(to) == sorted(answer["at"])
        assert answer["at"] == answer["addresses"]
        self.now = answer["addresses"]
        assert answer["workers"] == len(to)
        assert answer["counted"] == 0  # no step was lost or done twice
        return self.now

    def stop(self) -> None:
        for each in [self._chief, *self.processes.values()]:
            end(each)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("live"))
    yield job
    job.stop()


@pytest.fixture
def job(running: Job) -> Job:
    """A job with its two first workers, whatever the test before did."""
    running.file.write_text("some")
    running.change(running.first)
    return running


def test_a_program_without_coordinator_says_so(job: Job) -> None:
    assert job.begun == {"unable": ["the program has no ClusterCoordinator", ""]}


def test_workers_join_and_leave_in_any_place(job: Job) -> None:
    a, b = job.now
    c, d = job.worker(), job.worker()
    assert job.change([c, b, a]) == [a, b, c]
    assert job.change([a, c]) == [a, c]
    assert job.change([d, b, c, a]) == [a, c, d, b]
    assert job.change([c, b]) == [b, c]
    assert job.change([c, d]) == [d, c]
    assert job.change([c]) == [c]
    assert job.change([b]) == [b]  # the only one moves
    assert max(job.tell("counts")["applied"]) < 1


def test_a_worker_that_leaves_takes_no_step_with_it(job: Job) -> None:
    job.change([job.worker()], "unwoken")
    job.change(job.first, "unwoken")


def test_functions_are_made_while_workers_join_and_leave(job: Job) -> None:
    for _ in range(4):
        job.change([*job.first, job.worker(), job.worker()], "tracing")
        job.change(job.first, "tracing")


def test_a_change_that_fails_half_way_is_not_made(job: Job) -> None:
    both = [*job.first, job.worker(), job.worker()]
    answer = job.tell("no_thread", both)
    assert answer["outcome"] == [False, "RuntimeError: can't start new thread"]
    assert (answer["addresses"], answer["counted"], answer["unable"]) == (job.now, 0, "")
    job.change(both)
    job.change(job.first)


def test_values_of_new_datasets_are_built_too(job: Job) -> None:
    c = job.worker()
    job.change([*job.first, c], "new_data")
    job.change(job.first, "new_data")
    job.change([*job.first, c])


def test_a_worker_whose_dataset_fails_is_refused(job: Job) -> None:
    c = job.worker()
    job.file.unlink()
    answer = job.tell("change", [*job.first, c])
    assert answer["outcome"][0] is False
    assert "NotFoundError" in answer["outcome"][1]
    assert answer["unable"] == ""
    assert answer["addresses"] == job.now
    assert answer["counted"] == 0
    job.processes[c].send_signal(signal.SIGSTOP)
    assert job.tell("save")["result"] == 5  # TensorFlow does not wait for it
    job.processes[c].send_signal(signal.SIGCONT)
    job.file.write_text("some")
    job.change([*job.first, c])


def test_a_change_that_is_given_up_is_not_made(job: Job) -> None:
    answer = job.tell("cancel", [*job.first, job.worker()])
    assert answer["cancelled"] is True
    assert answer["outcome"] == [False, "cancelled"]
    assert answer["addresses"] == job.now
    assert job.change(job.now[:1])
    assert job.tell("change", [])["outcome"] == [False, "at least one worker must stay"]


def test_an_address_where_nothing_answers_is_refused(job: Job) -> None:
    nothing = job.worker()
    job.kill(nothing)
    for address, why in ((nothing, "ConnectionRefusedError"), ("nowhere.invalid:1", "gaierror")):
        answer = job.tell("change", [*job.first, address], 1.0)
        assert answer["outcome"][0] is False
        assert answer["outcome"][1] == "it took longer than 1 s" or why in answer["outcome"][1]
        assert answer["unable"] == ""
        assert answer["addresses"] == job.now


def test_a_server_that_stops_answering_ends_changes_until_it_answers(job: Job) -> None:
    c = job.worker()
    job.change([*job.first, c])
    job.change(job.first)
    job.processes[c].send_signal(signal.SIGSTOP)  # its name and address are as before
    why = f"worker {c} cannot be reached: no answer"
    try:
        answer = job.tell("change", [*job.first, c], 2.0)
        assert answer["outcome"] in ([False, why], [False, "it took longer than 2 s"])
        assert answer["addresses"] == job.now
        assert answer["longest_s"] < 2.0  # training has not waited for it
        assert job.tell("save")["result"] == 5
    finally:
        job.processes[c].send_signal(signal.SIGCONT)
    until("the change ends", lambda: job.tell("finish")["unable"] == "")


def test_a_change_that_hangs_is_refused_and_no_other_begins_until_it_ends(job: Job) -> None:
    """A server that hangs after it was reached: here one that answers as gRPC does, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()
        answers = threading.Thread(target=answer_settings, args=(server, ended))
        answers.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        answer = job.tell("change", [*job.now, address], 2.0)
        assert answer["outcome"] == [False, "it took longer than 2 s"]
        assert answer["unable"] == "a change did not end"
        assert answer["addresses"] == job.now
        assert answer["longest_s"] < 2.0
        assert job.tell("save")["result"] == 5
        assert job.tell("change", job.now[:1])["outcome"] == [False, "a change did not end"]
        ended.set()
        answers.join()
    host, _, port = address.rpartition(":")
    job.serve("worker", f"{host}:{port}")
    until("the change ends", lambda: job.tell("finish")["unable"] == "")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_that_left_may_end_or_be_out_of_reach(job: Job, how: signal.Signals) -> None:
    a, b = job.first
    c = job.worker()
    job.change([a, b, c])
    job.change([a, b])
    job.processes[c].send_signal(how)
    assert job.tell("save")["result"] == 5
    assert job.change([a, b, job.worker()])
    job.kill(c)


def test_a_worker_that_ends_before_it_has_trained_returns(job: Job) -> None:
    c = job.worker()
    job.tell("prepare", [*job.first, c])
    job.kill(c)
    job.send("finish")
    time.sleep(0.5)
    job.serve("worker", c)
    answer = job.answer()
    assert answer["outcome"] == [True, ""]
    assert sorted(answer["at"]) == sorted([*job.first, c])


def test_a_process_with_many_open_files_is_not_changed(job: Job) -> None:
    told = job.tell("crowded")
    assert told["unable"] == [f"many of the {told['limit']} files that the process may have open are open", ""]


def test_many_changes_leave_nothing_behind(job: Job) -> None:
    c = job.worker()
    job.change([*job.first, c])
    job.change(job.first)
    before = job.tell("counts")
    for _ in range(30):
        job.change([*job.first, c])
        job.change(job.first)
    after = job.tell("counts")
    assert after["threads"] <= before["threads"]  # of Python
    assert after["files"] <= before["files"] + 3

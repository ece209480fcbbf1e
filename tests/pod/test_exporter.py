"""The exporter as a process: what it serves of what launcher and program wrote, and of nonsense."""

import contextlib
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import elastic_tfjob.exporter
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.exporter import server
from elastic_tfjob.exporter.metrics import ProgressCollector as Metrics
from elastic_tfjob.exporter.server import Server
from elastic_tfjob.exporter.status import status
from elastic_tfjob.runtime import protocol
from elastic_tfjob.runtime.progress import Progress
from harness.controlplane import free_port
from harness.hostile_text import HUGE_NEGATIVE_NUMBERS, HUGE_NUMBERS, NO_JSON_OBJECT, NO_UTF8, named

from .pods import HIDDEN, TWICE, ended_early, until

Get = Callable[[str], bytes]


@pytest.fixture
def get(tmp_path: Path) -> Iterator[Get]:
    """`get(path)` from an exporter of `tmp_path`."""
    port = free_port()
    command = [sys.executable, "-m", "elastic_tfjob.exporter", "--dir", str(tmp_path), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)

    def ask(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            content: bytes = answer.read()
            return content

    def up() -> bool:
        try:
            return ask("/healthz") == b"ok\n"
        except OSError:  # refused, or a busy machine
            return False

    until("it serves", up)
    yield ask
    text = Path(f"/proc/{process.pid}/status").read_text()
    memory = int(text.partition("VmHWM:")[2].split()[0]) << 10
    print(f"exporter: {memory / 2**20:.1f} MiB resident at most")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == b""
    assert memory < 64 << 20


def test_the_exporter_installs_a_missing_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "HOOK_S", 0.05)
    folder = tmp_path / "volume"
    installing = threading.Thread(target=server._install, args=(folder,), daemon=True)
    installing.start()
    time.sleep(0.5)  # there is no place for it yet
    folder.mkdir()
    installing.join(60)
    assert (folder / "launcher.pyz").stat().st_mode & 0o111
    assert "the launcher is not installed" in capsys.readouterr().err


def test_a_signal_during_the_start_is_not_lost(tmp_path: Path) -> None:
    program = Path(elastic_tfjob.exporter.__path__[0], "__main__.py")
    ended = ended_early("elastic_tfjob.exporter.status", program, f"--dir={tmp_path}", f"--port={free_port()}")
    assert ended.returncode == 0, ended.stderr


def test_it_serves_ipv4_and_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def families() -> set[str]:
        port = free_port()
        reached = set()
        with Server(port, tmp_path) as server:
            ended = threading.Event()
            thread = threading.Thread(target=server.serve, args=(lambda: not ended.is_set(),))
            thread.start()
            for address in ("127.0.0.1", "[::1]"):
                with contextlib.suppress(urllib.error.URLError):
                    with urllib.request.urlopen(f"http://{address}:{port}/healthz", timeout=60) as answer:
                        assert answer.read() == b"ok\n"
                    reached.add(address)
            ended.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()
        return reached

    assert families() == {"127.0.0.1", *(["[::1]"] if socket.has_ipv6 else [])}
    make = socket.create_server

    def without_ipv6(*arguments: Any, **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return make(*arguments, **options)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    assert families() == {"127.0.0.1"}, "where the machine has no IPv6"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """That of an exporter in this process: what it costs in threads is this process's."""
    ended, port = threading.Event(), free_port()
    with Server(port, tmp_path) as server:
        thread = threading.Thread(target=server.serve, args=(lambda: not ended.is_set(),))
        thread.start()
        yield port
        ended.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join(60)


def ask(port: int, request: bytes, host: str = "127.0.0.1") -> bytes:
    """All that is answered to these bytes."""
    with socket.create_connection((host, port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    return answer


STATUS = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("says", ["nothing", "a byte each second", "a request whose answer it never reads"])
def test_silent_connections_do_not_block_requests(port: int, family: int, says: str) -> None:
    """1,100 of them took all threads of a pod with the usual limit of 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    threads, host = threading.active_count(), "127.0.0.1" if family == socket.AF_INET else "::1"
    files = len(os.listdir("/proc/self/fd"))  # earlier tests of this process keep some open
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(1100):
            connection = stack.enter_context(socket.socket(family))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.settimeout(20)
            connection.connect((host, port))
            if says.startswith("a request"):
                connection.sendall(STATUS)
            opened.append(connection)
        for byte in (b"G", b"E", b"T") if says.startswith("a byte") else (b"",):
            for connection in opened:
                with contextlib.suppress(OSError):  # dropped by now
                    connection.sendall(byte)
            begin = time.monotonic()
            assert ask(port, STATUS, host).startswith(b"HTTP/1.0 200 OK\r\n")
            assert time.monotonic() - begin < 15
        assert len(os.listdir("/proc/self/fd")) - files < 1100 + 200
        assert threading.active_count() == threads


def test_a_slow_client_is_disconnected(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.6)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        begin = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - begin < 10:
                connection.sendall(b"G")
                time.sleep(0.05)
        assert 0.5 < time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (STATUS, 200),
        (b"GET /healthz?x=1 HTTP/1.0\n\n", 200),
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /status HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET /status\r\n\r\n", 400),
        (b"\0\xff\r\n\r\n", 400),
        (b"GET /" + b"x" * (20 << 10), 431),
        (b"GET /status HTTP/1.1\r\n" + b"X: y\r\n" * 4000, 431),
    ],
)
def test_answers_to_requests(port: int, request_: bytes, code: int) -> None:
    answer = ask(port, request_)
    assert answer.startswith(b"HTTP/1.0 %d " % code)
    assert answer.count(b"Content-Length:") == 1


@pytest.mark.parametrize("fields", TWICE)
def test_a_body_is_not_read_as_a_second_request(port: int, fields: bytes) -> None:
    for method in (b"GET", b"POST", b"HEAD", b"DELETE"):
        head = method + b" /healthz HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n"
        assert ask(port, head + HIDDEN).count(b"HTTP/1.") == 1


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with Server(free_port(), tmp_path) as server, pytest.raises(OSError, match="in use"):
        Server(server.socket.getsockname()[1], tmp_path)


@pytest.mark.parametrize(
    ("launcher", "progress", "hook"),
    [
        ({"generation": 0, "hook": True}, {}, True),
        ({"generation": 0, "hook": False}, {}, False),
        ({"generation": 0, "hook": None}, {}, None),
        ({"generation": 0, "hook": "yes"}, {}, None),
        ({"generation": 0}, {"generation": 0}, None),  # an older operator's launcher
        ({}, {"generation": 0}, True),  # no launcher, and a program that reports
        ({}, {}, None),
    ],
)
def test_the_use_of_the_hook_is_reported(
    tmp_path: Path, launcher: dict[str, Any], progress: dict[str, Any], hook: bool | None
) -> None:
    for name, content in ((protocol.LAUNCHER, launcher), (protocol.PROGRESS, progress)):
        if content:
            protocol.write(tmp_path / name, content)
    assert status(tmp_path)["hook"] is hook


def samples(text: bytes) -> dict[str, float]:
    return {
        sample.name + "".join(f",{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def train(directory: Path, generation: int = 0, begin: int = 0, steps: int = 3) -> None:
    progress = Progress(directory, generation, lambda: None)
    progress.total_steps = 100
    progress._started = True  # without its thread, which would write, and measure anew, between what is written here
    progress.begin(begin, {"step": begin, "at": time.time() - 5, "seconds": 0.1, "bytes": 1000, "path": "/c/elastic-0"})
    for step in range(begin + 1, begin + steps + 1):
        time.sleep(0.02)
        progress.count(step, 0.5, 32)
        progress.write()  # as its thread does
    progress.close()


def test_before_the_first_report_nothing_is_known(get: Get) -> None:
    report = Report.parse(get("/status"))
    assert (report.launcher, report.generation, report.step) == (False, None, None)
    assert samples(get("/metrics")) == {}


def test_progress_shows(get: Get, tmp_path: Path) -> None:
    train(tmp_path)
    report = Report.parse(get("/status"))
    assert (report.generation, report.step, report.total_steps, report.loss) == (0, 3, 100, 0.5)
    assert report.steps_per_s is not None
    assert 0 < report.steps_per_s < 51
    assert report.checkpoint is not None
    assert report.checkpoint.bytes == 1000
    found = samples(get("/metrics"))
    assert found["elastic_tfjob_steps_total"] == 3
    assert found["elastic_tfjob_examples_total"] == 96
    assert found["elastic_tfjob_loss"] == 0.5
    assert found["elastic_tfjob_step_seconds_count"] == 3
    assert found["elastic_tfjob_step_seconds_bucket,0.01"] == 0
    assert 0.06 <= found["elastic_tfjob_step_seconds_sum"] < 60
    assert 5 <= found["elastic_tfjob_checkpoint_age_seconds"] < 60
    assert found["elastic_tfjob_checkpoint_size_bytes"] == 1000


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        *((str(loss), loss) for loss in (0.5, -2.0, 3, 2.0**63, -(2.0**64), 1e300, sys.float_info.max)),
        ("1" + "0" * 300, 1e300),  # which JSON has as an integer
        *((text, None) for text in (*HUGE_NUMBERS, *HUGE_NEGATIVE_NUMBERS, "true", '"0.5"', "[0.5]", "null")),
    ],
    ids=named,
)
def test_any_float_is_reported_as_loss(tmp_path: Path, text: str, loss: float | None) -> None:
    (tmp_path / protocol.PROGRESS).write_text(f'{{"step": 7, "loss": {text}}}')
    told = Report.parse(json.dumps(status(tmp_path)))
    assert (told.step, told.loss, told.loss_state) == (7, loss, "absent" if loss is None else "finite")
    shown = {family.name: family.samples[0].value for family in Metrics(tmp_path).collect() if family.samples}
    assert shown.get("elastic_tfjob_loss") == loss


def test_rescale_shows_as_downtime_and_lost_steps(get: Get, tmp_path: Path) -> None:
    train(tmp_path)
    time.sleep(0.3)
    train(tmp_path, generation=1, begin=1)
    report = Report.parse(get("/status"))
    assert report.generation == 1
    assert report.lost_steps == 2, "step 3 was done, and it went on from 1"
    assert report.downtime_s is not None
    assert 0.3 < report.downtime_s < 60
    found = samples(get("/metrics"))
    assert found["elastic_tfjob_steps_total"] == 6, "done in this pod, again or not"
    assert found["elastic_tfjob_rescale_downtime_seconds_count"] == 1


COUNTERS = {"steps", "examples", "hand_overs", "container_cpu_seconds", "container_cpu_throttled_seconds"}
HISTOGRAMS = {"step_seconds", "rescale_downtime_seconds"}
GAUGES = {
    *("step", "target_steps", "loss", "generation", "container_memory_bytes", "hand_over_pending"),
    *("checkpoint_age_seconds", "checkpoint_size_bytes", "checkpoint_duration_seconds", "checkpoint_failing"),
}


def test_metrics_keep_the_conventions_of_prometheus(get: Get, tmp_path: Path) -> None:
    train(tmp_path)
    cgroup = {"usage_s": 12.5, "throttled_s": 0.5, "used_bytes": 1 << 20}
    protocol.write(tmp_path / protocol.LAUNCHER, {"at": 1.0, "generation": 0, "cgroup": cgroup})
    text = get("/metrics").decode()
    families = {family.name.removeprefix("elastic_tfjob_"): family for family in text_string_to_metric_families(text)}
    kinds = dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(HISTOGRAMS, "histogram") | dict.fromkeys(GAUGES, "gauge")
    assert {name: family.type for name, family in families.items()} == kinds
    for name, family in families.items():
        assert family.documentation, name
        # Counters, and only they, end in _total; units are base units, in full and last.
        assert not re.search(r"(total|count|sum|bucket|counter|gauge|histogram|_s|_ms|_mb|milliseconds)$", name)
        assert not re.search(r"(seconds|bytes)_", name), "the unit comes last"
        identities = [(sample.name, *sample.labels.items()) for sample in family.samples]
        assert len(identities) == len(set(identities))
        if family.type == "counter":
            assert {sample.name for sample in family.samples} == {f"elastic_tfjob_{name}_total"}
        if family.type == "histogram":
            buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
            bounds = [float(sample.labels["le"]) for sample in buckets]
            assert bounds == sorted(bounds)
            assert bounds[-1] == math.inf
            counts = [sample.value for sample in buckets]
            assert counts == sorted(counts), "they are cumulative"
            assert counts[-1] == next(sample.value for sample in family.samples if sample.name.endswith("_count"))
    found = samples(text.encode())
    assert found["elastic_tfjob_container_cpu_seconds_total"] == 12.5
    assert found["elastic_tfjob_container_cpu_throttled_seconds_total"] == 0.5
    assert found["elastic_tfjob_container_memory_bytes"] == 1 << 20


def test_a_generation_without_a_step_has_no_first_step(get: Get, tmp_path: Path) -> None:
    train(tmp_path)
    protocol.write(tmp_path / protocol.LAUNCHER, {"at": 1.0, "generation": 1, "modes": ["overlap"], "switch": None})
    report = Report.parse(get("/status"))
    assert (report.launcher, report.generation, report.modes) == (True, 1, ("overlap",))
    assert report.first_step_at is None
    assert report.steps_per_s is None
    assert report.step == 3


def test_files_without_a_json_object_are_ignored(get: Get, tmp_path: Path) -> None:
    for text in (*NO_JSON_OBJECT, *NO_UTF8, '{"step": 1'):
        for name in (protocol.LAUNCHER, protocol.PROGRESS):
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        assert Report.parse(get("/status")).step is None
    get("/metrics")


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(dict.fromkeys(["step", "generation", "checkpoint", "cgroup", "prepared", "switch", "modes"], "x")),
        json.dumps({"step": float("nan"), "step_seconds": {"bounds": [1], "counts": ["x"], "sum": 1}, "loss": 1e999}),
        json.dumps({"step_seconds": {"bounds": [1], "counts": [1, "x"], "sum": 1}, "checkpoint": {"at": [1]}}),
        b'{"step": 1' + b"0" * 4000 + b', "step_seconds": {"bounds": [1' + b"0" * 4000 + b'], "counts": [1, 2]}}',
        json.dumps({"step": 1e308, "generation": -(2**70), "loss": True, "modes": [[1], {}], "hook": []}),
        b'{"step": 1, "x": [' + b"[]," * (1 << 20) + b"[]]}",  # too large for what launcher and program write
    ],
    ids=named,
)
def test_files_with_invalid_content_are_ignored(get: Get, tmp_path: Path, content: bytes | str) -> None:
    for name in (protocol.LAUNCHER, protocol.PROGRESS):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert Report.parse(get("/status")).step is None
    get("/metrics")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get("/etc/passwd")


def test_hostile_files_cost_neither_memory_nor_time(get: Get, tmp_path: Path) -> None:
    """`get` looks at the memory in the end: the container may have 96 MiB."""
    deep = "[" * 400 + "]" * 400
    hostile = {
        "largest that is read": ('{"save_error": "%s", "x": [' % ("y" * 9000)).encode() + b"{}," * 18_000 + b"{}]}",
        "300 MiB": None,
        "deep": f'{{"checkpoint": {deep}, "cgroup": {deep}, "step_seconds": {deep}}}'.encode(),
    }
    for name, content in hostile.items():
        for file in (tmp_path / protocol.LAUNCHER, tmp_path / protocol.PROGRESS):
            if content is None:
                with open(file, "wb") as sparse:
                    sparse.truncate(300 << 20)
            else:
                file.write_bytes(content)
        with ThreadPoolExecutor(32) as many:
            answers = list(many.map(get, ["/status", "/metrics"] * 40))
        assert max(map(len, answers)) < 16 << 10, name
        assert Report.parse(answers[0]).step is None


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_a_pipe_in_place_of_a_file_does_not_block(get: Get, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"step": 7, "generation": 0}')
    for file in (tmp_path / protocol.LAUNCHER, tmp_path / protocol.PROGRESS):
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "link":
            file.symlink_to(secret)
        else:
            file.mkdir()
    assert Report.parse(get("/status")).step is None
    assert samples(get("/metrics")) == {}

"""bench-rescale without a cluster: a job's pods are processes of this machine.

`processes-overlap`: launchers are told what the operator tells them, without its delays. `processes-overlap-exec`: the
same behind a shell, so that no program is forked from an interpreter that has imported TensorFlow.
`processes-restart`: what is done today, at its best: every program gets SIGTERM, the chief saves, and when all have
ended the job starts with the new size. What Kubernetes adds to that (scheduling, containers) is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.rescale_cost import Rescale, cost_of, parts_of
from harness.training import Line
from pod.jobs import PROGRAMS, SLOW, Job
from pod.pods import until

__all__ = ["WAYS", "measure_processes"]

OVERLAP, OVERLAP_EXEC, RESTART = WAYS = ("processes-overlap", "processes-overlap-exec", "processes-restart")
BEFORE_S = 6.0
ENDLESS = 10_000_000
LOOK_S = 0.005


class _Tail:
    """The lines that the chief has printed, with the times at which they came; a context manager."""

    def __init__(self, path: Path) -> None:
        self.seen: list[Line] = []
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> _Tail:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        begun = ""
        until("there is a log", self._path.exists, SLOW)
        with open(self._path) as file:
            while not self._over.wait(LOOK_S):
                *whole, begun = (begun + file.read()).split("\n")
                for text in whole:
                    content: Any = None
                    with contextlib.suppress(ValueError):
                        content = json.loads(text) if text.startswith("{") else None
                    if content is not None and "step" in content:
                        self.seen.append(Line(time.time(), "chief", content))


class _Plain:
    """The same job without launchers."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, replicas: dict[str, int]) -> None:
        self.job.configure(replicas)
        for (kind, index), config in self.job.configs.items():
            directory = self.job.directory / f"{kind}-{index}"
            directory.mkdir(exist_ok=True)
            environment = {**os.environ, "TF_CONFIG": config, "ELASTIC_TFJOB_CHECKPOINT_DIR": str(self.job.checkpoints)}
            with open(directory / "output", "ab") as output:
                self.processes.append(subprocess.Popen(self.job.program, env=environment, stdout=output, stderr=output))

    def stop(self) -> None:
        """The chief first, as what it saves is on the parameter servers; each is killed after a minute."""
        for process in self.processes:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []


def measure_processes(
    way: str,
    arguments: Sequence[str],
    sizes: dict[str, tuple[int, int]],
    times: int,
    said: Callable[[Rescale], None],
) -> None:
    """`times` changes each way, of each type of replica in `sizes`; each is told as soon as it is measured."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    size = {"chief": 1, **{kind: low for kind, (low, _) in sizes.items()}}
    changes = [(kind, sizes[kind][end]) for end in (1, 0) for kind in sizes] * times
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), PROGRAMS / "digits.py", f"--steps={ENDLESS}", *arguments)
        if way == OVERLAP_EXEC:
            job.program = ["sh", "-c", 'exec "$0" "$@"', *job.program]
        plain = _Plain(job) if way == RESTART else None
        try:
            with _Tail(Path(folder) / "chief-0" / "output") as tail:
                if plain:
                    plain.start(size)
                else:
                    job.start(**size)
                until("it trains", lambda: tail.seen and tail.seen[-1].step > 50, SLOW)
                until("there is a checkpoint", lambda: list(job.checkpoints.glob("*.complete")), SLOW)
                subject = _Subject(job, plain, tail, size)
                for kind, count in changes:
                    said(subject.change(kind, count))
        finally:
            if plain:
                plain.stop()
            job.stop()


@dataclass
class _Subject:
    """The job that is changed."""

    job: Job
    plain: _Plain | None
    tail: _Tail
    size: dict[str, int]
    generation: int = 0

    def change(self, kind: str, count: int) -> Rescale:
        """One change, from the request to the first steps after it."""
        before, lines = self.size[kind], self.tail.seen
        time.sleep(BEFORE_S)
        self.size[kind] = count
        self.generation += 1
        there, asked, resumed_at = set(self.job.pods), time.time(), lines[-1].resumed_at
        cpu: dict[str, list[float]] = {"kept": [], "added": []}
        if self.plain:
            self.plain.stop()
            self.plain.start(self.size)
        else:
            self.job.rescale(self.generation, "overlap", operator=True, **self.size)
        until("it trains on", lambda: lines[-1].resumed_at != resumed_at, SLOW)
        first = next(line for line in lines if line.at > asked and line.resumed_at != resumed_at)
        stable, parts = first.at, dict[str, float]()
        if not self.plain:
            before_it = lines[lines.index(first) - 1]
            parts = parts_of(self.job.chief.status, asked, before_it, first)
            pods = self.job.pods
            until("the new size runs", lambda: all(pod.status["prepared"] is None for pod in pods.values()), SLOW)
            stable = time.time()
            for replica, pod in pods.items():
                cpu["kept" if replica in there else "added"].append(pod.status["preparation"]["cpu_s"])
        until("it trains on", lambda: lines[-1].at > stable, SLOW)
        return cost_of(
            lines,
            asked,
            stable,
            before_s=BEFORE_S,
            change=f"{kind} {before}->{count}",
            grows=count > before,
            prepare_cpu_s=cpu,
            parts_s=parts,
        )

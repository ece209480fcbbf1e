"""Progress of training: counted in memory by the training thread, written to progress.json by another thread.

benchmarks/bench_hook.py measures the cost in the training thread: see `Progress.count`.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import operator
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable

from elastic_tfjob.runtime import protocol

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the step-time histogram, in seconds; one more bucket has all above."""
DOWNTIME_BUCKETS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
WRITE_S, WATCH_S = 1.0, 0.25
"""Writes and checks are rare, because each costs CPU (benchmarks/bench_hook.py): in a container of 50 millicores, 20
checks a second took a tenth of it. Training continues until a request to save is seen."""
RATE_S = 10.0
"""Steps per second are averaged over this time."""
MOST_ERRORS = 10
"""The number of different errors of the thread that are printed."""


class Progress:
    """Counters of the training program, and the thread that writes them every WRITE_S and calls `watch` every WATCH_S
    seconds. `directory`: the pod's shared directory; None to write nothing."""

    def __init__(self, directory: Path | None, generation: int, watch: Callable[[], None]) -> None:
        self.path = directory / protocol.PROGRESS if directory else None
        self.generation = generation
        self.watch = watch
        self.step: int | None = None
        self.total_steps: int | None = None
        self.loss: Any = None
        self.checkpoint: dict[str, Any] | None = None
        self.save_error: str | None = None
        self.durability_error: str | None = None
        self.not_restored: str | None = None
        self.last_step_at_s: float | None = None
        self._steps = self._examples = 0
        self._sum = 0.0
        self._counts = [0] * (len(BUCKETS) + 1)
        self._downtimes = [0] * (len(DOWNTIME_BUCKETS) + 1)
        self._downtime_sum = 0.0
        self._first_step_at_s: float | None = None
        self._first_step_reported = False
        self._longest_s = 0.0  # between two calls of `count`, since the last change of workers began
        self._stayed = False
        self._downtime_s: float | None = None
        self._lost: int | None = None
        self._resumed: int | None = None
        self._hand_overs = {"durable": 0, "failed": 0, "pending": 0}
        self._before: dict[str, Any] = {}
        self._clock = 0.0
        self._window: deque[tuple[float, int, int]] = deque()
        self._lock = threading.Lock()  # guards the file
        self._closed = threading.Event()
        self._started = False
        self._printed_errors: set[str] = set()
        self._rate = 0.0

    def begin(self, step: int, checkpoint: dict[str, Any] | None, elsewhere: dict[str, Any] | None = None) -> None:
        """Begin at `step`, which is that of `checkpoint` (its marker's content). Counters continue from those of the
        previous program in this pod. `elsewhere`: `step` and `last_step_at` of the previous one, if that was in another
        pod."""
        before = (self.path and protocol.read(self.path)) or elsewhere or {}
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            steps, examples = int(before["steps"]), int(before["examples"])
            times, downtimes = before["step_seconds"], before["downtimes"]
            counts, pauses = [[int(count) for count in each["counts"]] for each in (times, downtimes)]
            total, paused = float(times["sum"]), float(downtimes["sum"])
            if (len(counts), len(pauses)) == (len(self._counts), len(self._downtimes)):
                self._steps, self._examples, self._sum, self._downtime_sum = steps, examples, total, paused
                self._counts, self._downtimes = counts, pauses
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            known = before["hand_overs"]
            failed = int(known["failed"]) + int(known["pending"])  # the program before ended before it knew
            self._hand_overs.update(durable=int(known["durable"]), failed=failed)
        self._before = before
        self.step, self.checkpoint = step, checkpoint
        self._resumed = step
        if isinstance(before.get("step"), int):
            self._lost = max(before["step"] - step, 0)
        self._clock = time.perf_counter()
        self.write()
        if not self._started:
            self._started = True
            threading.Thread(target=self._loop, name="elastic-tfjob", daemon=True).start()

    def count(self, step: int, loss: Any, examples: int) -> None:
        """Count up to `step`, the number of steps done in all, and `examples` since the last call. Its cost is measured
        by benchmarks/bench_hook.py."""
        clock = time.perf_counter()
        done = step - self.step  # type: ignore[operator]
        self.step = step
        if done > 0:
            taken = clock - self._clock
            self._longest_s = max(self._longest_s, taken)
            self._counts[bisect.bisect_left(BUCKETS, taken / done)] += done
            self._sum += taken
            self._steps += done
            self._examples += examples
            self.last_step_at_s = time.time()
            if self._first_step_at_s is None:
                self._first_step()
        self._clock = clock
        if loss is not None:
            self.loss = loss

    def pause(self) -> None:
        """Exclude the time since the last step (a checkpoint) from the next step's time."""
        self._clock = time.perf_counter()

    def rate(self) -> float:
        """Steps per second, as last written; 0 if unknown."""
        return self._rate

    def begin_change(self) -> None:
        """The workers are going to change while training continues."""
        self._longest_s = 0.0

    def continue_as(self, generation: int) -> None:
        """The program continues as this generation, with other workers. Its downtime is the longest time between two
        calls of `count` since the change began."""
        self.generation, self._stayed, self._lost, self._resumed = generation, True, 0, self.step
        self._downtime_s = self._first_step_at_s = None
        self._first_step_reported = False

    def begin_hand_over(self) -> None:
        """The program has begun with values that are in no durable checkpoint yet."""
        self._hand_overs["pending"] = 1

    def end_hand_over(self, *, durable: bool) -> None:
        """They are now, or will not be."""
        self._hand_overs["pending"] = 0
        self._hand_overs["durable" if durable else "failed"] += 1

    def _first_step(self) -> None:
        self._first_step_at_s = self.last_step_at_s
        last = self._before.get("last_step_at")
        if self._stayed:
            self._downtime_s = self._longest_s
        elif isinstance(last, (int, float)) and self._first_step_at_s is not None:
            self._downtime_s = max(self._first_step_at_s - last, 0.0)
        if self._downtime_s is not None:
            self._downtimes[bisect.bisect_left(DOWNTIME_BUCKETS, self._downtime_s)] += 1
            self._downtime_sum += self._downtime_s

    def write(self) -> None:
        """Write the file now. Errors are ignored: a full or missing directory must not stop training."""
        now = time.monotonic()
        window = self._window
        window.append((now, self._steps, self._examples))
        while len(window) > 2 and window[1][0] < now - RATE_S:
            window.popleft()
        (begin, steps, examples), (end, steps_now, examples_now) = window[0], window[-1]
        seconds = end - begin
        self._rate = (steps_now - steps) / seconds if seconds > 0 else 0.0
        if self.path is None:
            return
        loss = _number(self.loss)
        content = {
            "at": time.time(),
            "generation": self.generation,
            "step": self.step,
            "total_steps": self.total_steps,
            "steps": self._steps,
            "examples": self._examples,
            "steps_per_s": self._rate if seconds > 0 else None,
            "examples_per_s": (examples_now - examples) / seconds if seconds > 0 else None,
            "loss": loss if loss is None or math.isfinite(loss) else None,
            "loss_problem": None if loss is None or math.isfinite(loss) else "nan" if math.isnan(loss) else "inf",
            "first_step_at": self._first_step_at_s,
            "last_step_at": self.last_step_at_s or self._before.get("last_step_at"),
            "downtime_s": self._downtime_s,
            "lost_steps": self._lost if self._first_step_at_s is not None else None,
            "resumed_step": self._resumed,
            "checkpoint": self.checkpoint,
            "save_error": self.save_error or self.durability_error,
            "not_restored": self.not_restored,
            "hand_overs": self._hand_overs,
            "step_seconds": {"bounds": BUCKETS, "counts": self._counts, "sum": self._sum},
            "downtimes": {"bounds": DOWNTIME_BUCKETS, "counts": self._downtimes, "sum": self._downtime_sum},
        }
        with self._lock, contextlib.suppress(OSError):
            if not self._closed.is_set():
                protocol.write(self.path, content)

    def close(self) -> None:
        """Write a last time; from then on the file belongs to the next generation."""
        self.write()
        with self._lock:
            self._closed.set()

    def reopen(self) -> None:
        """Continue to write: the switch to the next generation was given up."""
        self._closed.clear()

    def _loop(self) -> None:
        written = 0.0
        while True:
            time.sleep(WATCH_S)
            self._try(self.watch)
            now = time.monotonic()
            # A rescale waits for the report of the first step.
            first = self._first_step_at_s is not None and not self._first_step_reported
            if first or now - written >= WRITE_S:
                if first:  # the time before it (tracing, waiting for other replicas) is not part of the speed
                    self._first_step_reported = True
                    self._window = deque()
                written = now
                self._try(self.write)

    def _try(self, do: Callable[[], None]) -> None:
        """Call `do`. The thread must survive, since it reports and notices requests: each error is printed once."""
        try:
            do()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text not in self._printed_errors and len(self._printed_errors) < MOST_ERRORS:
                self._printed_errors.add(text)
                print(f"WARNING: elastic-tfjob, {do.__name__}: {text}", file=sys.stderr, flush=True)


def _number(value: Any) -> float | None:
    """A loss as a float; None if it is not a number. A tensor is copied from its device here."""
    try:
        value = value.numpy() if hasattr(value, "numpy") else value
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:
        return None


# -- Numbers of training programs (NumPy's, TensorFlow's, Keras') ------------------------------------------------------


def whole(name: str, value: Any) -> int:
    """`value` as an int. Raises TypeError if it is not a whole number, and ValueError if it is negative; both messages
    name it."""
    number: int = value
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value.numpy() if hasattr(value, "numpy") else value)
        except Exception:
            raise TypeError(
                f"{name} is {_brief(value)}; it must be a whole number: an int, a NumPy integer, or a tensor or "
                "variable of an integer type with one value"
            ) from None
    if number < 0:
        raise ValueError(f"{name} is {number}; it must be at least 0")
    return number


def scalar(name: str, value: Any) -> Any:
    """`value` itself, if it can be converted to a float later: a tensor is not copied from its device here. Raises
    TypeError, which names it, for anything other than one number."""
    if value is None or type(value) is float:
        return value
    shape = getattr(value, "shape", ())
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "numpy")) or _many(shape):
        raise TypeError(
            f"{name} is {_brief(value)}; it must be a number: a float, an int, one of NumPy's, or an eager tensor or "
            "variable with one value (call fetch() on the result of a ClusterCoordinator's schedule())"
        )
    return value


def _many(shape: Any) -> bool:
    try:
        return any(size != 1 for size in shape)
    except (TypeError, ValueError):  # a tensor of unknown rank
        return True


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = "?"
    return f"{text[:100]} ({type(value).__name__})"

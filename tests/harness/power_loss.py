"""What a power loss leaves of the checkpoints of a program that trains: `make test-power-loss`.

A program saves real TensorFlow checkpoints to a file system on a `lossy_disk`. Then the disk as it was at random
instants is mounted (which replays the journal), and a program resumes from it. It must resume

- from what had been reported as durable by then, or from something newer;
- from the save before the newest one at least: no more than the last interval is lost. A save younger than `FLUSH_S`
  may still be on its way to the disk; instants at which that was so are counted as "behind";
- without an error, and with the values of the step that it names.

For each wrong instant the disk's image (before anything mounts it) and all facts are kept below build/power-loss, and
the resume is tried a second time from a fresh image: two different results are a fault of this harness.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.lossy_disk import Recording, lossy_disk, missing, mounted

FOLDER = "checkpoints"
KEPT = Path("build/power-loss")
SIZE = 192 << 20
FLUSH_S = 5.0
"""A save that is older than this must be durable, however busy the machine is."""
OPTIONS = {"xfs": "nouuid"}
"""A mount that lives on in another mount namespace would keep an xfs of the same id from being mounted."""
FILE_SYSTEMS = {"ext4": ("mkfs.ext4", "-q"), "xfs": ("mkfs.xfs", "-q", "--unsupported")}


@dataclass(frozen=True)
class Event:
    """At a time (monotonic), a step had been saved or was reported as durable."""

    at: float
    kind: str
    step: int


@dataclass(frozen=True)
class Run:
    """A program that saves every `every_s` seconds, values of `values` bytes, for `seconds`."""

    every_s: float
    values: int
    seconds: float


FULL = (Run(1, 64 << 10, 25), Run(1, 8 << 20, 25), Run(0.3, 1 << 20, 15), Run(15, 4 << 20, 80))


def train(folder: Path, run: Run) -> list[Event]:
    """Train on a mounted disk; what was saved and durable when."""
    job, values = _job(folder, run)
    found, events, durable = job._checkpoints, [], 0
    job.resume()
    end = time.monotonic() + run.seconds
    step = 0
    while time.monotonic() < end:
        step += 1
        values.assign(values * 0 + step)
        job.step(step)
        events.append(Event(time.monotonic(), "saved", step))
        until = time.monotonic() + run.every_s
        while time.monotonic() < until:
            time.sleep(0.005)
            if (newest := max(list(getattr(found, "_durable", ())), default=0)) > durable:
                durable = newest
                events.append(Event(time.monotonic(), "durable", durable))
    return events


def resumed(folder: Path, run: Run) -> int:
    """The step that a program resumes from. Raises what it raises, and ValueError for values of another step."""
    job, values = _job(folder, run)
    step: int = job.resume()
    if not bool((values.numpy() == step).all()):
        raise ValueError(f"the values are not those of step {step}")
    if hasattr(job._checkpoints, "wait"):
        job._checkpoints.wait(60)
    return step


def _job(folder: Path, run: Run) -> tuple[Any, Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf  # noqa: PLC0415

    from elastic_tfjob.runtime import ElasticCheckpoint  # noqa: PLC0415

    values = tf.Variable(tf.zeros(run.values // 4))
    checkpoint = tf.train.Checkpoint(values=values)
    return ElasticCheckpoint(checkpoint, str(folder / FOLDER), every_s=None, every_steps=1), values


@dataclass(frozen=True)
class Outcome:
    """What a program made of a disk: the step that it resumed from (None: an error), what it printed, and the files
    that there were."""

    step: int | None
    output: str
    files: list[str]


def faults(events: Sequence[Event], at: float, step: int | None) -> list[str]:
    """What is wrong with resuming from `step` (None: an error) after a power loss at a time."""
    if step is None:
        return ["error"]
    saved = [event for event in events if event.kind == "saved" and event.at <= at]
    durable = [event.step for event in events if event.kind == "durable" and event.at <= at]
    lost = ["less than was durable"] if durable and step < durable[-1] else []
    flushed = [event.step for event in saved[:-1] if event.at <= at - FLUSH_S]
    return lost + (["more than the last interval"] if flushed and step < flushed[-1] else [])


def is_behind(events: Sequence[Event], at: float) -> bool:
    """Whether the save before the newest one was not durable yet."""
    saved, durable = ([e.step for e in events if e.kind == kind and e.at <= at] for kind in ("saved", "durable"))
    return len(saved) > 1 and max(durable, default=0) < saved[-2]


def outcome(image: Path, folder: Path, run: Run, options: str = "") -> Outcome:
    """Resume from a disk's image."""
    step, output = None, io.StringIO()
    with mounted(image, folder, options):
        files = sorted(f"{each.name} ({each.stat().st_size})" for each in folder.glob(f"{FOLDER}/*"))
        try:
            with contextlib.redirect_stderr(output):
                step = resumed(folder, run)
        except Exception as problem:
            output.write(f"{type(problem).__name__}: {str(problem)[:200]}")
    return Outcome(step, output.getvalue(), files)


def try_instants(
    recording: Recording,
    run: Run,
    events: Sequence[Event],
    scratch: Path,
    *,
    count: int,
    seed: int,
    options: str = "",
) -> Counter[str]:
    """Resume from the disk of `count` random instants while the program saved; how often what was wrong."""
    found: Counter[str] = Counter()
    draw = random.Random(seed)
    for number in range(count):
        at, image_seed = draw.uniform(events[0].at, events[-1].at), draw.randrange(1 << 32)
        image = scratch / f"image-{number}"
        recording.image(at, image, image_seed)
        seen = outcome(image, scratch / "after", run, options)
        image.unlink()
        wrong = faults(events, at, seen.step)
        found.update(wrong)
        found["tried"] += 1
        found["wrong"] += bool(wrong)
        found["behind"] += is_behind(events, at)
        if wrong:
            again = scratch / f"image-{number}-again"
            recording.image(at, again, image_seed)
            folder = KEPT / f"{os.getpid()}-{seed}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "--sparse=always", again, folder / "image"], check=True)
            shutil.copy(recording.log, folder / "log")
            facts = {
                "run": vars(run),
                "options": options,
                "at": at,
                "image_seed": image_seed,
                "wrong": wrong,
                "outcome": vars(seen),
                "second_outcome": vars(outcome(again, scratch / "after", run, options)),
                "events": [vars(event) for event in events],
            }
            again.unlink()
            (folder / "facts.json").write_text(json.dumps(facts, indent=1))
            print(f"  {at - events[0].at:.3f} s: {', '.join(wrong)} (resumed from {seen.step}), kept in {folder}")
            print(f"    {seen.output}\n    there were {', '.join(seen.files) or 'no files'}", flush=True)
        if (number + 1) % 20 == 0:
            print(f"  {number + 1} of {count} instants, {found['wrong']} wrong", flush=True)
    return found


def flush_times(events: Sequence[Event]) -> list[float]:
    """How long after its save each step was reported as durable, of those that were."""
    saved = {event.step: event.at for event in events if event.kind == "saved"}
    return sorted(event.at - saved[event.step] for event in events if event.kind == "durable")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file-system", choices=sorted(FILE_SYSTEMS), default="ext4")
    parser.add_argument("--mount-options", default="", help="such as data=writeback,nodelalloc")
    parser.add_argument("--train", nargs=2, metavar=("FOLDER", "RUN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps([vars(event) for event in train(Path(options.train[0]), Run(*json.loads(options.train[1])))]))
        return 0
    if why := missing():
        print(f"cannot be tried here: {why}")
        return 2
    total: Counter[str] = Counter()
    mount_options = ",".join(filter(None, (OPTIONS.get(options.file_system), options.mount_options)))
    for index, run in enumerate(FULL):
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            print(f"{run.values >> 10} KiB every {run.every_s:g} s, for {run.seconds:g} s", flush=True)
            size = SIZE if options.file_system == "ext4" else 2 * SIZE
            make = FILE_SYSTEMS[options.file_system]
            with lossy_disk(scratch, size, make, mount_options) as (volume, log):
                command = ["--train", str(volume), json.dumps([run.every_s, run.values, run.seconds])]
                done = subprocess.run([sys.executable, "-m", "harness.power_loss", *command], stdout=-1, check=True)
            events = [Event(**each) for each in json.loads(done.stdout.splitlines()[-1])]
            times = flush_times(events)
            print(f"  durable after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s at most", flush=True)
            share = options.instants * (index + 1) // len(FULL) - options.instants * index // len(FULL)
            total += try_instants(
                Recording(log, size),
                run,
                events,
                scratch,
                count=share,
                seed=options.seed + index,
                options=mount_options,
            )
    told = ", ".join(f"{count} {what}" for what, count in sorted(total.items()) if what not in ("tried", "wrong"))
    name = f"{options.file_system} {options.mount_options}".strip()
    print(f"{name}: {total['wrong']} of {total['tried']} instants wrong{': ' + told if told else ''}")
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())

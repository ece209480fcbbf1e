"""The files by which launcher, training program and exporter of one pod speak to each other.

    $ELASTIC_TFJOB_DIR/
      launcher.json      launcher: what runs, what is prepared, the switch, CPU and memory of the container
      committed.json     launcher: generation and TF_CONFIG that a restarted container goes on with
      imports.json       program: the packages that it has imported, and the variables that these read
      plain.json         launcher: why the program of a restarted container is started as without preparations
      progress.json      the program that trains: step, loss, step times, checkpoint
      generation-3/      of one generation's program
        imported.json    program: "I have imported ElasticCheckpoint"
        hello.json       program: "I use ElasticCheckpoint", and the variables it set before it imported TensorFlow
        ready.json       program: "I wait in resume()" (or, as a spare: "TensorFlow is imported")
        begun.json       a worker's program without parameter servers: "the chief has begun, so have I"
        go.json          launcher: the barrier of resume() is open
        start.json       launcher: the spare may start the user's program, with this TF_CONFIG
        save.json        launcher: "save and wait"; gone: "go on"
        saved.json       program: the answer

Each has one writer and is replaced as a whole, so a reader sees an old state or a new one, never half of one. All are
readable by everybody: the exporter has another user id.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = "ELASTIC_TFJOB_DIR"
COMMAND = "ELASTIC_TFJOB_COMMAND"
CHECKPOINTS = "ELASTIC_TFJOB_CHECKPOINT_DIR"
JOB = "ELASTIC_TFJOB_JOB"
"""The job of this pod: namespace/name/uid."""
GENERATION = "ELASTIC_TFJOB_GENERATION"
OPEN = "ELASTIC_TFJOB_OPEN"
"""Set where resume() has nothing to wait for: the program was started to run, whatever can be written."""
STDERR = "ELASTIC_TFJOB_STDERR"
"""The file descriptor of the container's own standard error, where the program's goes through the launcher."""

LAUNCHER, COMMITTED, PROGRESS = "launcher.json", "committed.json", "progress.json"
IMPORTS, PLAIN = "imports.json", "plain.json"
IMPORTED, HELLO, READY, BEGUN = (f"{name}.json" for name in ("imported", "hello", "ready", "begun"))
GO, START, SAVE, SAVED = (f"{name}.json" for name in ("go", "start", "save", "saved"))
READ_LIMIT = 1 << 20


def generation_directory(directory: Path, generation: int) -> Path:
    return directory / f"generation-{generation}"


def stage(path: Path, content: dict[str, Any]) -> str:
    """Write what is to replace a file; gives the name of a temporary one, for os.replace. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file)
        os.chmod(temporary, 0o644)
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file as a whole. Raises OSError."""
    temporary = stage(path, content)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path, limit: int = READ_LIMIT) -> dict[str, Any] | None:
    """A file's content; None if there is none, or it is not what `write` wrote, or has more than `limit` bytes. Never
    waits: a pipe or device by that name is no file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            text = file.read(limit + 1)
        content = json.loads(text) if len(text) <= limit else None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


@dataclass(frozen=True)
class Task:
    """What a replica does in its cluster, by its TF_CONFIG.

    `trains`: it runs the training loop: the chief, and every worker of a cluster without parameter servers. The others
    serve (parameter servers and their workers), or are outside the cluster (the evaluator). `port` is the replica's
    own, 0 if it has none. `workers`: how many replicas compute gradients.
    """

    trains: bool = True
    chief: bool = True
    serves: bool = False
    port: int = 0
    workers: int = 1

    @classmethod
    def of(cls, tf_config: str | None) -> Task:
        """A program without a (readable) TF_CONFIG trains alone."""
        try:
            config = json.loads(tf_config or "{}")
            cluster, task = config["cluster"], config["task"]
            kind, index = task["type"], int(task["index"])
            has_chief = bool(cluster.get("chief") or cluster.get("master"))
            has_ps = bool(cluster.get("ps"))
            chief = kind in ("chief", "master") or (kind == "worker" and index == 0 and not has_chief)
            workers = len(cluster.get("worker") or ())
            if has_ps and not has_chief:
                workers -= 1  # worker 0 only coordinates
            if has_chief and not has_ps:
                workers += 1
            addresses = cluster.get(kind) or []
            port = int(addresses[index].rsplit(":", 1)[1]) if index < len(addresses) else 0
            trains = chief or (kind == "worker" and not has_ps)
            return cls(trains, chief, not trains and kind in ("ps", "worker"), port, max(workers, 1))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return cls()


# -- What the operator commands a pod's launcher: a level, not an event; see docs/architecture.md ----------------------


@dataclass
class LauncherCommand:
    """What the operator wants, by the annotation that the kubelet shows as a file."""

    action: str
    generation: int = 0
    mode: str = "overlap"
    tf_config: str | None = None
    timeout_s: float = 120.0
    request: int = 0  # which stop of the job a `save` is for

    @classmethod
    def parse(cls, text: str) -> LauncherCommand:
        """Raises ValueError."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("action") not in ("prepare", "switch", "run", "save", "stop"):
            raise ValueError(f"no such command: {text[:200]}")
        if raw["action"] == "stop":
            return cls("stop")
        tf_config = raw.get("tf_config")
        if (
            isinstance(raw.get("generation"), bool)
            or not isinstance(raw.get("generation"), int)
            or raw["generation"] < 0
        ):
            raise ValueError(f"generation: {raw.get('generation')!r}")
        if tf_config is not None and not isinstance(tf_config, str):
            raise ValueError("tf_config is no text")
        if raw.get("mode", "overlap") not in ("overlap", "spare"):
            raise ValueError(f"mode: {raw['mode']!r}")
        return cls(
            raw["action"],
            raw["generation"],
            raw.get("mode", "overlap"),
            tf_config,
            float(raw.get("timeout_s") or 120.0),
            int(raw.get("request") or 0),
        )


# -- TensorFlow's errors, for people -----------------------------------------------------------------------------------

_LISTED = 10
"""So many names are told of each kind."""


def brief(error: Exception) -> str:
    """What went wrong in one line: without the places in the program that TensorFlow lists before it says that."""
    lines = [line.strip() for line in str(error).splitlines()]
    places = ("Graph execution error", "Detected at node", "File ", "[[", "Hint: ")
    told = " ".join(line for line in lines if line and not line.startswith(places))
    return f"{type(error).__name__}: {told[:300]}"


def some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")

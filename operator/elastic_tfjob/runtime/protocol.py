"""The files through which the launcher, the training program and the exporter of one pod communicate.

    $ELASTIC_TFJOB_DIR/
      launcher.json      launcher: what runs, what is prepared, the switch, CPU and memory of the container
      committed.json     launcher: the generation and TF_CONFIG that a restarted container continues with, or that it
                         has left
      imports.json       program: the packages that it has imported, and the variables that these read
      plain.json         launcher: why the next program of the container starts without imports ahead
      progress.json      the program that trains: step, loss, step times, checkpoint
      generation-3/      one generation's program
        imported.json    program: "I have imported ElasticCheckpoint"
        hello.json       program: "I use ElasticCheckpoint", and the variables it set before it imported TensorFlow
        ready.json       program: "I wait in resume()", and the newest checkpoint that it sees (or, as a spare:
                         "TensorFlow is imported")
        begun.json       a worker's program without parameter servers: "the chief has begun, so have I"
        go.json          launcher: the barrier of resume() is open; how far the chief came in another pod
        start.json       launcher: the spare may start the user's program, with this TF_CONFIG
        save.json        launcher: "save and wait"; removed: "train on"
        saved.json       program: the answer to save.json
        soon.json        launcher: "save at the next step, and train on", with a new number each time
        live.json        the chief's program: whether its workers can change while it trains, and why not
        workers.json     launcher: the workers that it is to have, for a switch in mode `live`
        changed.json     program: the answer to workers.json
        offer.json       launcher: "offer your values to the next generation"
        offered.json     program: where the next generation's parameter servers find the values, or why not
        on-chief.json    program: the values of the chief's own variables
        taken.json       program: it has the values of the one before, or why not
        kept.json        program: the values that it gave are in a durable checkpoint, or why not (the launcher's word,
                         where the program has ended)

Each file has one writer and is replaced as a whole, so a reader sees the old state or the new one, never a mixture. All
files are readable by every user: the exporter has a different user id.
"""

from __future__ import annotations

import contextlib
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
"""Set for a program that is started to run: resume() does not wait, even where go.json could not be written."""
BEFORE = "ELASTIC_TFJOB_BEFORE"
"""The folder of the running program, for one that is prepared to take its values in memory."""
STDERR = "ELASTIC_TFJOB_STDERR"
"""The file descriptor of the container's own standard error, for a program whose standard error is a pipe."""

LAUNCHER, COMMITTED, PROGRESS = "launcher.json", "committed.json", "progress.json"
IMPORTS, PLAIN = "imports.json", "plain.json"
IMPORTED, HELLO, READY, BEGUN = (f"{name}.json" for name in ("imported", "hello", "ready", "begun"))
GO, START, SAVE, SAVED, SOON = (f"{name}.json" for name in ("go", "start", "save", "saved", "soon"))
LIVE, WORKERS, CHANGED = (f"{name}.json" for name in ("live", "workers", "changed"))
OFFER, OFFERED, TAKEN, KEPT = (f"{name}.json" for name in ("offer", "offered", "taken", "kept"))
ON_CHIEF = "on-chief.json"
READ_LIMIT, OFFER_LIMIT = 1 << 20, 1 << 24
"""Most bytes of a file that are read, and of an offer."""
MODES = ("live", "overlap", "spare", "leave")
"""Ways in which a launcher takes part in a resize; `leave` is that of a chief whose next program is in another pod."""


def restore_stderr() -> None:
    """In the program that takes over: write directly to the container's own standard error from here on."""
    own = os.environ.pop(STDERR, None)
    with contextlib.suppress(OSError, ValueError):
        if own:
            os.dup2(int(own), 2)
            os.close(int(own))


def generation_directory(directory: Path, generation: int) -> Path:
    return directory / f"generation-{generation}"


def stage(path: Path, content: dict[str, Any]) -> str:
    """Write the new content of a file; returns the path of a temporary file for os.replace. Raises OSError."""
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
    """The content of a file; None if there is no file, it is not a JSON object, or it has more than `limit` bytes.
    Never blocks: a pipe or device by that name counts as no file."""
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
    """What a replica does in its cluster, according to its TF_CONFIG.

    `trains`: it runs the training loop, as the chief and every worker of a cluster without parameter servers do.
    `serves`: it is a parameter server, or a worker beside parameter servers. The evaluator does neither. `port`: the
    replica's own, 0 if it has none. `workers`: the number of replicas that compute gradients. `place`: which of them
    this one is, where all train; else 0.
    """

    trains: bool = True
    chief: bool = True
    serves: bool = False
    port: int = 0
    workers: int = 1
    place: int = 0

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
            place = index + has_chief if kind == "worker" and not has_ps else 0
            return cls(trains, chief, not trains and kind in ("ps", "worker"), port, max(workers, 1), place)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return cls()


def cluster_of(tf_config: dict[str, Any]) -> tuple[dict[str, list[str]], str, int]:
    """The addresses by job name of the cluster with exactly one chief, and this replica's task type and index in it.
    The first worker of a cluster without a chief is the chief; `master` is an older name of it."""
    cluster = {name: list(tasks) for name, tasks in tf_config["cluster"].items() if name != "evaluator"}
    kind, index = tf_config["task"]["type"], int(tf_config["task"]["index"])
    if "master" in cluster:
        cluster["chief"] = cluster.pop("master")
    if "chief" not in cluster:
        first, *others = cluster["worker"]
        cluster |= {"chief": [first], "worker": others}
        index -= kind == "worker"
    return cluster, kind, index


def chief_and_workers(tf_config: str | None) -> tuple[str, list[str]]:
    """The chief's address and those of the workers beside it, in a TF_CONFIG of a cluster with parameter servers; empty
    in any other one."""
    cluster = _addresses(tf_config)
    return (cluster["chief"][0], cluster.get("worker", [])) if cluster.get("ps") else ("", [])


def parameter_servers(tf_config: str | None) -> list[str]:
    """The addresses of the parameter servers in a TF_CONFIG; none if it has none."""
    return _addresses(tf_config).get("ps", [])


def _addresses(tf_config: str | None) -> dict[str, list[str]]:
    """The addresses by job name of a cluster with a chief; none without a (readable) TF_CONFIG."""
    try:
        cluster, _, _ = cluster_of(json.loads(tf_config or "{}"))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return {}
    return cluster if cluster["chief"] else {}


# -- The operator's command to a pod's launcher: a level, not an event; see docs/architecture.md -----------------------


@dataclass
class LauncherCommand:
    """The content of an annotation of the pod, which the kubelet shows as a file. `tf_config`: of the generation; None
    for the container's own. `timeout_s`: the limit for the save of a switch. `durable`: the switch waits for a
    checkpoint, values do not go through memory. `old_chief`: for a chief that is prepared in another pod, the address
    of the exporter in the running one's, and `saved` the step of that one's last checkpoint."""

    action: str
    generation: int = 0
    mode: str = "overlap"
    tf_config: str | None = None
    timeout_s: float = 120.0
    request: int = 0  # the number of the stop that a `save` is for, or of a save that a `run` asks for
    durable: bool = False
    old_chief: str = ""
    saved: int = 0

    @classmethod
    def parse(cls, text: str) -> LauncherCommand:
        """Raises ValueError, TypeError or RecursionError for an invalid command."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("action") not in ("prepare", "switch", "run", "save", "stop"):
            raise ValueError(f"action must be prepare, switch, run, save or stop, in {text[:200]}")
        if raw["action"] == "stop":
            return cls("stop")
        tf_config = raw.get("tf_config")
        if (
            isinstance(raw.get("generation"), bool)
            or not isinstance(raw.get("generation"), int)
            or raw["generation"] < 0
        ):
            raise ValueError(f"generation is {raw.get('generation')!r}; it must be an integer of at least 0")
        if tf_config is not None and not isinstance(tf_config, str):
            raise ValueError("tf_config must be a string")
        if raw.get("mode", "overlap") not in MODES:
            raise ValueError(f"mode is {raw['mode']!r}; it must be one of {', '.join(MODES)}")
        return cls(
            raw["action"],
            raw["generation"],
            raw.get("mode", "overlap"),
            tf_config,
            float(raw.get("timeout_s") or 120.0),
            int(raw.get("request") or 0),
            raw.get("durable") is True,
            raw["old_chief"] if isinstance(raw.get("old_chief"), str) else "",
            int(raw.get("saved") or 0),
        )


# -- Texts for people --------------------------------------------------------------------------------------------------

_LISTED = 10
"""Names that a message lists at most."""


def brief(error: Exception) -> str:
    """An error in one line, without the stack of the graph that TensorFlow puts before its message."""
    lines = [line.strip() for line in str(error).splitlines()]
    places = ("Graph execution error", "Detected at node", "File ", "[[", "Hint: ")
    message = " ".join(line for line in lines if line and not line.startswith(places))
    return f"{type(error).__name__}: {message[:300]}"


def some(names: list[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")

"""From nothing to a trained model: cluster, operator, a TFJob of handwritten digits that changes its size as it trains.

It starts with one worker, grows into the idle cluster, gives room back to a second job, and is followed to its end.

PYTHONPATH=tests python3 -m harness.demo           # at the end it says how to open the live page
PYTHONPATH=tests PAGE=1 python3 -m harness.demo    # the page is open from the start, until Ctrl-C
PYTHONPATH=tests PICTURE=FILE.svg python3 -m harness.demo    # its tables as a picture, too
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from harness import images, names
from harness.cluster import BUILD, Cluster, shared_folder
from harness.controlplane import free_port
from harness.deploy import NAMESPACE, deploy
from harness.progress import Problem, main
from harness.reasons import reason_of

SAMPLES = images.ROOT / "manifests" / "samples"
SAMPLE, CLAIM, SECOND = (SAMPLES / name for name in ("digits.yaml", "checkpoints.yaml", "second.yaml"))
STATE = "elastic.kubeflow.org/state"
ACCURACY_AT_LEAST = 0.95
PATIENCE_S = 1500.0
PAGE_SERVICE = "elastic-tfjob-query"
PAGE_READER = "elastic-tfjob-operator"
"""A service account that may list TFJobs everywhere: the cluster is for the demo alone."""
SECOND_AFTER_STEPS = 0.4
"""The second job comes when the first has grown; or after this part of its steps, should it not grow."""


@dataclass(slots=True)
class Followed:
    """What is known of the job so far: its newest state, where its pods ran, its rescales, the chief's reports."""

    state: str = "submitted"
    nodes: dict[str, str] = field(default_factory=dict)
    running: int = 0
    rescales: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, float]] = field(default_factory=list)

    @property
    def part(self) -> float:
        """How much of the training is done, from 0 to 1."""
        return self.reports[-1]["step"] / self.reports[-1]["steps"] if self.reports else 0.0

    @property
    def accuracy(self) -> float | None:
        """As last measured: not each report has it."""
        return next((report["accuracy"] for report in reversed(self.reports) if "accuracy" in report), None)

    def line(self) -> str:
        if not self.reports:
            return f"{self.state}: {self.running} of {len(self.nodes) or '?'} pods running"
        last = self.reports[-1]
        measured = f", accuracy {self.accuracy:.3f}" if self.accuracy is not None else ""
        return (
            f"{self.state}, {self.running} pods: step {last['step']:.0f} of {last['steps']:.0f} "
            f"at {last['steps_per_second']:.0f} a second, loss {last['loss']:.3f}{measured}"
        )


def run_job(cluster: Cluster, console: Console, steps: int = 0) -> tuple[dict[str, Any], Followed]:
    """Submit the sample anew, a second job when it has grown, and follow the first to its end: the job, and what was
    seen. `steps`: in place of the sample's own."""
    text = names.local(SAMPLE)
    if steps:
        text, found = re.subn(r"--steps=\d+", f"--steps={steps}", text)
        assert found, f"{SAMPLE} says no --steps"
    manifest = yaml.safe_load(text)
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    for sample in (SECOND, SAMPLE):
        cluster.kubectl("delete", "-f", sample, "--ignore-not-found", "--cascade=foreground")
    shutil.rmtree(shared_folder(namespace) / name, ignore_errors=True)  # or it would go on where the last one ended
    cluster.kubectl("apply", "-f", CLAIM)
    cluster.kubectl("apply", "-f", "-", stdin=text)
    console.print(f"submitted {SAMPLE.relative_to(images.ROOT)}")
    seen = Followed()
    second = False
    told = 0
    deadline = time.monotonic() + PATIENCE_S
    with console.status(seen.line()) as status:
        said = ""
        for job in _changes(cluster, namespace, name, seen):
            if (line := seen.line()) != said:
                said = line
                if console.is_terminal:
                    status.update(line)
                else:
                    console.print(line)
            for rescale in seen.rescales[told:]:
                console.print(f"  rescaled: {' '.join(_row(rescale)[:3])}: {rescale['reason']}")
            told = len(seen.rescales)
            if not second and (seen.rescales or seen.part > SECOND_AFTER_STEPS):
                second = True
                cluster.kubectl("apply", "-f", "-", stdin=names.local(SECOND))
                console.print(f"submitted {SECOND.relative_to(images.ROOT)}")
            if seen.state in ("Succeeded", "Failed"):
                return job, seen
            if time.monotonic() > deadline:
                break
    raise Problem(
        f"the job is not finished after {PATIENCE_S:.0f} s ({seen.line()}). Its events:\n"
        + cluster.kubectl("-n", namespace, "events", f"--for=tfjob/{name}")
    )


def _changes(cluster: Cluster, namespace: str, name: str, seen: Followed) -> Iterator[dict[str, Any]]:
    """The job again and again, `seen` brought up to date each time."""
    follower: threading.Thread | None = None
    while True:
        got = cluster.kubectl("-n", namespace, "get", f"tfjob/{name}", "-o", "json")
        pods = cluster.kubectl(
            "-n", namespace, "get", "pods", f"--selector=training.kubeflow.org/job-name={name}", "-o", "json"
        )
        job, items = json.loads(got), json.loads(pods)["items"]
        conditions = [c["type"] for c in job.get("status", {}).get("conditions", []) if c["status"] == "True"]
        annotations = job["metadata"].get("annotations", {})
        seen.rescales = json.loads(annotations.get(STATE, "{}")).get("history", [])
        seen.nodes |= {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in items}
        seen.running = sum(pod["status"].get("phase") == "Running" for pod in items)
        chief = next((pod for pod in items if pod["metadata"]["name"].endswith("-chief-0")), None)
        if chief and follower is None and chief["status"].get("phase") != "Pending":
            follower = threading.Thread(
                target=_follow_reports, args=(cluster, namespace, chief["metadata"]["name"], seen.reports), daemon=True
            )
            follower.start()
        seen.state = conditions[-1] if conditions else seen.state
        if seen.state in ("Succeeded", "Failed") and follower:
            follower.join(timeout=90)  # to the last line of the log
        yield job
        time.sleep(1)


def _follow_reports(cluster: Cluster, namespace: str, pod: str, reports: list[dict[str, float]]) -> None:
    """Append what the training program prints (a JSON object a line) until its container ends."""
    command = cluster.command("-n", namespace, "logs", "-f", "--container=tensorflow", pod)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("{"):
                reports.append(json.loads(line))


def how_to_open() -> str:
    """How the live page is opened, and how the token is made that it asks for."""
    path = f"/api/v1/namespaces/{NAMESPACE}/services/{PAGE_SERVICE}:http/proxy/"
    return f"kubectl proxy, then http://127.0.0.1:8001{path}\n{how_to_enter()}"


def how_to_enter() -> str:
    return f"  It asks for a token: kubectl -n {NAMESPACE} create token {PAGE_READER}"


@contextmanager
def open_page(cluster: Cluster, console: Console) -> Iterator[None]:
    """The live page at a port of this machine, until the body ends and then until Ctrl-C."""
    port = free_port()
    command = cluster.command("-n", NAMESPACE, "port-forward", f"service/{PAGE_SERVICE}", f"{port}:80")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        address = f"Live page: http://127.0.0.1:{port}/"
        try:
            console.print(f"{address}\n{how_to_enter()}")
            yield
            console.print(f"{address} stays open until Ctrl-C")
            if process.wait():
                raise Problem(f"the page is gone: {' '.join(command)} ended with {process.returncode}")
        finally:
            process.terminate()


def table(job: dict[str, Any], seen: Followed, seconds: float) -> Table:
    """What was trained, where, and how well."""
    last = seen.reports[-1] if seen.reports else {}
    result = Table(title="A TFJob on a real cluster", show_header=False, title_justify="left")
    result.add_row("job", f"{job['metadata']['namespace']}/{job['metadata']['name']}: {seen.state}")
    for pod, node in sorted(seen.nodes.items()):
        result.add_row("replica", f"{pod.removeprefix(job['metadata']['name'] + '-')} on {node}")
    result.add_row("steps", f"{last.get('step', 0)} at {last.get('steps_per_second', 0)} a second")
    result.add_row("accuracy", f"{seen.accuracy or 0:.1%} of the held-out digits")
    result.add_row("time", f"{seconds:.0f} s from submission to the end")
    return result


def _row(rescale: dict[str, Any]) -> tuple[str, str, str, str]:
    """From and to which size, how, with how many seconds of no training, and why."""

    def size(counts: dict[str, int]) -> str:
        return " + ".join(f"{counts[kind]} {kind}" for kind in ("PS", "Worker") if kind in counts)

    pause = rescale.get("downtime_s")
    return (
        f"{size(rescale['before'])} → {size(rescale['after'])}",
        rescale["mode"],
        "?" if pause is None else f"{pause:.2f} s",
        reason_of(rescale),
    )


def rescales(seen: Followed) -> Table:
    """Each change of size: how long training stopped for it, and why it was made."""
    result = Table(title="Its sizes", title_justify="left")
    for column in ("from → to", "mode", "training stopped", "steps lost", "reason"):
        result.add_column(column, no_wrap=column != "reason")
    for rescale in seen.rescales:
        change, mode, pause, reason = _row(rescale)
        lost = rescale.get("lost_steps")
        result.add_row(change, mode, pause, "?" if lost is None else str(lost), reason)
    return result


@main
def _main() -> None:
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)
    cluster = deploy(components=["query-api"])
    with open_page(cluster, console) if os.environ.get("PAGE") else nullcontext():
        _show(cluster, console)


def _show(cluster: Cluster, console: Console) -> None:
    begin = time.monotonic()
    job, seen = run_job(cluster, console)
    tables = (table(job, seen, time.monotonic() - begin), rescales(seen))
    console.print(*tables, sep="\n")
    if picture := os.environ.get("PICTURE"):
        drawn = Console(record=True, width=130, file=io.StringIO())
        drawn.print(*tables, sep="\n")
        fonts = re.compile(r"@font-face {.*?}\s*", re.DOTALL)  # which a browser would fetch from elsewhere
        Path(picture).write_text(fonts.sub("", drawn.export_svg(title="make demo")))
    console.print(f"Look around: export KUBECONFIG={cluster.kubeconfig} PATH={BUILD / 'bin'}:$PATH; kubectl get tfjobs")
    console.print(f"Live page: {how_to_open()}")
    if seen.state != "Succeeded":
        reasons = [f"{c['reason']}: {c['message']}" for c in job["status"]["conditions"] if c["type"] == "Failed"]
        sys.exit("✗ the job failed: " + "; ".join(reasons))
    if (seen.accuracy or 0.0) < ACCURACY_AT_LEAST:
        sys.exit(f"✗ accuracy {seen.accuracy} is less than {ACCURACY_AT_LEAST}")


if __name__ == "__main__":
    _main()

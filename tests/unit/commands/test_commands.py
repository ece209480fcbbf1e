"""What people type, on recorded objects: what they read, what is written, what is refused in which words."""

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result
from kubernetes.aio.config import ConfigException

from elastic_tfjob.cli import LAZY, complete, main
from elastic_tfjob.cli import tfjob as kubectl_tfjob
from elastic_tfjob.commands import cluster, show
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Expired, NotFound, Unavailable
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.query.rows.jobs import job_row
from harness.hostile_text import NO_YAML, TERMINAL_CONTROLS
from unit.build import raw_node
from unit.query.build import running, tfjob, waiting

from .conftest import Ask

JOBS = "/apis/kubeflow.org/v1/namespaces/ns/tfjobs"


class Server:
    """Some objects by the path of their collection; `patches` is what was written."""

    def __init__(self, *jobs: dict[str, Any], **collections: list[dict[str, Any]]) -> None:
        self.jobs = list(jobs)
        self.collections = {"events": [], "nodes": [], "pods": [], **collections}
        self.patches: list[tuple[str, Any]] = []
        self.logs: dict[str, list[list[bytes]]] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.error: ApiError | None = None
        self.looks = 0
        self.later: Callable[[int], None] = lambda _: None

    async def once(self, method: str, path: str, body: Any = None, timeout_s: float = 5.0) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        asked = urlsplit(path)
        if asked.path in self.objects:
            return self.objects[asked.path]
        *_, resource = asked.path.split("/")
        if resource == "tfjobs":
            # Pages of two, so that there is a next one.
            begin = int(parse_qs(asked.query).get("continue", ["0"])[0])
            more = {"continue": str(begin + 2)} if len(self.jobs) > begin + 2 else {}
            return {"items": self.jobs[begin : begin + 2], "metadata": more}
        if resource in self.collections:
            ours = "%21%3D" not in asked.query  # not `label!=value`: pods of TFJobs
            return {"items": [each for each in self.collections[resource] if each.get("ours", True) == ours]}
        kind = "tfjobs" if "/tfjobs/" in asked.path else "pods"
        found = self.jobs if kind == "tfjobs" else self.collections["pods"]
        self.looks += 1
        self.later(self.looks)
        for each in found:
            if each["metadata"]["name"] == resource:
                return each
        raise NotFound(f"GET {path}", 404, "NotFound", "no")

    async def patch(self, path: str, body: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.patches.append((path, body))
        return {}

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        *_, name, _ = urlsplit(path).path.split("/")
        for line in self.logs[name].pop(0):
            yield line


def test_jobs_in_a_table_and_in_json_are_the_same(ask: Ask) -> None:
    server = Server(running("b"), waiting("a", why="no room for 2 workers"), running("c"))
    result = ask(server, "jobs", "--sort", "state")
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[0][:3] == ["NAME", "STATE", "SIZE"]
    assert [line[:2] for line in lines[1:]] == [["b", "Running"], ["c", "Running"], ["a", "Waiting"]]
    assert "1 chief + 1 PS + 4 workers" in result.output
    assert "500/1000" in result.output
    assert result.output.splitlines()[-1].endswith("no room for 2 workers")
    found = json.loads(ask(server, "jobs", "-o", "json", "--sort", "state").output)
    assert [(each["name"], each["state"]) for each in found] == [("b", "Running"), ("c", "Running"), ("a", "Waiting")]


def test_wide_has_bounds_and_a_filter_leaves_out(ask: Ask) -> None:
    result = ask(Server(running(), waiting()), "jobs", "-o", "wide", "--state", "Running")
    assert "Worker 2-4" in result.output
    assert "0.20s" in result.output
    assert len(result.output.splitlines()) == 2


def test_jobs_are_filtered_by_the_code_of_their_reason(ask: Ask) -> None:
    short = waiting("short", why={"code": "short", "facts": {"cpu": 2500, "cpu_free": 400}})
    found = ask(Server(running(), waiting(), short), "jobs", "--reason", "short")
    assert [line.split()[0] for line in found.output.splitlines()] == ["NAME", "short"]
    assert "needs 2.5 CPU, 0.4 free" in found.output
    assert "no matching TFJobs in namespace" in ask(Server(running()), "jobs", "--reason", "lost").stderr
    wrong = ask(Server(running()), "jobs", "--reason", "shrt")
    assert (wrong.exit_code, "Did you mean short?" in wrong.stderr) == (2, True)
    assert "reason code:  short" in ask(Server(short), "explain", "short").output
    assert "reason code" not in ask(Server(running()), "explain", "j").output


class Watched(Server):
    """`watches` are what it sends when it is asked to go on, each until its end or the error in it; `versions` is from
    where that was."""

    def __init__(self, *jobs: dict[str, Any], watches: list[list[Any]]) -> None:
        super().__init__(*jobs)
        self.watches = watches
        self.versions: list[str] = []

    async def once(self, method: str, path: str, body: Any = None, timeout_s: float = 5.0) -> dict[str, Any]:
        found = await super().once(method, path, body, timeout_s)
        return {**found, "metadata": {"resourceVersion": "1"}}

    async def watch(self, path: str, *, version: str) -> AsyncIterator[dict[str, Any]]:
        assert path == JOBS
        self.versions.append(version)
        for each in self.watches.pop(0):
            if isinstance(each, ApiError):
                self.jobs = [running("z")]
                raise each
            yield each


def _watched() -> Watched:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}
    return Watched(
        running("a"),
        running("b"),
        watches=[
            [{"type": "ADDED", "object": waiting("c", version=10)}, bookmark],
            [
                {"type": "MODIFIED", "object": waiting("b", version=30)},
                {"type": "DELETED", "object": running("a", version=40)},
                Expired("WATCH", 410, "Expired", "too old"),
            ],
            [ApiError("WATCH", 403, "Forbidden", "taken away")],
        ],
    )


def test_jobs_are_followed_across_the_ends_of_a_watch(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_tfjob.commands.tables._AGAIN_S", 0.0)
    server = _watched()
    result = ask(server, "jobs", "-w", "-o", "json")
    shown = [
        " ".join(f"{each['name']}:{each['state']}" for each in json.loads(line))
        for line in result.stdout.split("\n")[:-1]
    ]
    assert shown == [
        "a:Running b:Running",
        "a:Running b:Running c:Waiting",
        "a:Running b:Waiting c:Waiting",
        "b:Waiting c:Waiting",
        "z:Running",  # all is read anew
    ]
    assert server.versions == ["1", "20", "1"]
    assert (result.exit_code, result.stderr) == (1, "Error: not allowed: taken away\n")
    tables = ask(_watched(), "jobs", "-w", "--state", "Waiting").stdout.split("NAME")[1:]
    assert [[line.split()[0] for line in each.splitlines()[1:]] for each in tables] == [
        [],
        ["c"],
        ["b", "c"],
        ["b", "c"],
        [],
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output goes to a terminal, as far as rich knows."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_a_table_takes_the_place_of_the_last_one(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_tfjob.commands.tables._AGAIN_S", 0.0)
    shown = ask(_watched(), "jobs", "-w").stdout
    up = "\x1b[1A\x1b[2K"
    assert shown.count("NAME") > 4
    assert shown.count("NAME") == 1 + sum(up in between for between in shown.split("NAME")[1:-1])
    assert shown.endswith("\x1b[?25h")  # the cursor is there again


def test_an_empty_list_of_jobs_is_reported_on_standard_error(ask: Ask) -> None:
    result = ask(Server(), "jobs")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no TFJobs in namespace ns\n")


def test_a_reason_of_a_job_cannot_control_the_terminal(ask: Ask) -> None:
    result = ask(Server(waiting(why=TERMINAL_CONTROLS)), "jobs")
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
    assert "[red]x[/red]" in result.output
    assert len(result.output.splitlines()) == 2
    assert show.plain("a\tb\r\nc\x9bd") == "a b  c d"


def test_explain_tells_what_happened_and_why(ask: Ask) -> None:
    event = {"lastTimestamp": "2026-01-02T03:09:00Z", "reason": "Rescaling", "message": "goes to 4 workers"}
    server = Server(
        running(annotations={"max-workers": "4", "checkpoint-dir": "/c", "deadline": "30m"}), events=[event]
    )
    text = ask(server, "explain", "j").output
    assert text.startswith("ns/j: Running\n  reason:       idle CPU")
    assert "size:         1 chief + 1 PS + 4 workers" in text
    assert "bounds:       Worker 2 to 4" in text
    assert "500 of 1000, 5 steps/s" in text
    assert "1, the last one paused training for 0.20 s" in text
    assert text.index("goes to 4 workers") < text.index(
        "Rescaled from 1 chief + 1 PS + 2 workers to 1 chief + 1 PS + 4 workers"
    )
    found = json.loads(ask(server, "explain", "j", "-o", "json").output)
    assert found["timeline"][-1]["kind"] == "rescaled"
    assert found["forecast"]["source"] == "measured"


PENDING = {
    "lastTimestamp": "2026-01-02T03:09:00Z",
    "reason": "RescalePending",
    "message": "The job keeps its size: no room",
}


@pytest.mark.parametrize(
    ("wanted", "later", "said"),
    [("3", None, True), ("4", None, False), ("3", "RescaleRolledBack", False), ("3", "SuccessfulCreatePod", True)],
)
def test_explain_says_why_a_requested_size_is_pending(ask: Ask, wanted: str, later: str | None, said: bool) -> None:
    annotations = {"max-workers": "4", "checkpoint-dir": "/c", "target-workers": wanted}
    after = [{"lastTimestamp": "2026-01-02T03:10:00Z", "reason": later, "message": "later"}] if later else []
    server = Server(running(annotations=annotations), events=[PENDING, *after])
    assert ("pending:      The job keeps its size: no room" in ask(server, "explain", "j").output) is said
    found = json.loads(ask(server, "explain", "j", "-o", "json").output)["pending"]
    assert found == ("The job keeps its size: no room" if said else "")


def test_the_newest_events_are_shown_whatever_their_order(ask: Ask) -> None:
    """The API server sorts events by their names."""
    older = [{**PENDING, "lastTimestamp": "2026-01-02T03:08:00Z", "reason": f"Older{k}"} for k in range(60)]
    annotations = {"max-workers": "4", "checkpoint-dir": "/c", "target-workers": "3"}
    found = json.loads(
        ask(Server(running(annotations=annotations), events=[PENDING, *older]), "explain", "j", "-o", "json").output
    )
    assert found["pending"] == "The job keeps its size: no room"
    assert len(found["events"]) == 50


STARTING = tfjob(conditions={"Created": "2026-01-02T03:00:01Z"})


@pytest.mark.parametrize(
    ("raw", "reason", "later", "why"),
    [
        (STARTING, "FailedCreateService", "", "the API server refused a Service: exceeded quota"),
        (STARTING, "FailedCreateService", "SuccessfulCreatePod", "the API server refused a Service: exceeded quota"),
        (STARTING, "FailedCreateService", "SuccessfulCreateService", "TFJob is Created."),
        (STARTING, "FailedCreatePod", "", "the API server refused a Pod: exceeded quota"),
        (running(), "FailedCreateService", "", "the API server refused a Service: exceeded quota"),
        (running(), "FailedCreatePod", "", "idle CPU"),  # of a change that was rolled back
    ],
)
def test_explain_names_what_is_refused(ask: Ask, raw: dict[str, Any], reason: str, later: str, why: str) -> None:
    """Not that the job is created: that is so of each."""
    refusal = {"lastTimestamp": "2026-01-02T03:09:00Z", "reason": reason, "message": "Error creating: exceeded quota"}
    after = {"lastTimestamp": "2026-01-02T03:09:30Z", "reason": later, "message": "Created"}
    server = Server(raw, events=[refusal, *([after] if later else [])])
    assert f"  reason:       {why}" in ask(server, "explain", "j").output
    refused = json.loads(ask(server, "explain", "j", "-o", "json").output)["refused"]
    assert refused == ([why] if why.endswith("quota") else [])


@pytest.mark.parametrize(
    ("starts", "said"),
    [
        ("fork", "next start:   by fork, from an interpreter that has already imported the program's modules"),
        ("exec: no Python program", "next start:   as a new process: no Python program"),
    ],
)
def test_explain_tells_how_the_next_program_starts(ask: Ask, starts: str, said: str) -> None:
    assert said in ask(Server(running(starts=starts)), "explain", "j").output
    assert "next start" not in ask(Server(running()), "explain", "j").output


def test_explain_tells_what_a_job_orders(ask: Ask) -> None:
    ordered = {"generation": 0, "replicas": {}, "reason": "no room", "orders": {"PS": 1, "Worker": 2}}
    text = ask(Server(tfjob("j", target=ordered)), "explain", "j").output
    assert "ordered:      nodes for 1 PS + 2 workers" in text


ELASTIC = "profile: elastic\nprofiles: {elastic: {lend: none}}\nautoscaling: {order: {when: WHEN}}"
OPERATOR = "/apis/apps/v1/namespaces/kubeflow/deployments/elastic-tfjob-operator"
ONE_NAMESPACE = {"spec": {"template": {"spec": {"containers": [{"args": ["operator", "--namespace=ns"]}]}}}}


@pytest.mark.parametrize(
    ("when", "nodes", "objects", "why"),
    [
        ("auto", [], {}, "no autoscaler was found (autoscaling.order.when: auto)"),
        ("never", [], {}, "autoscaling.order.when is never"),
        ("always", [], {}, ""),
        ("always", [], {OPERATOR: ONE_NAMESPACE}, "the operator serves one namespace (--namespace)"),
        ("auto", [], {"/apis": {"groups": [{"name": "karpenter.sh"}]}}, ""),
        ("auto", [raw_node("n", cpu="3")], {}, "no autoscaler was found"),
        ("auto", [raw_node("n", cpu="3", labels={"cloud.google.com/gke-nodepool": "a"})], {}, ""),
        ("auto", [raw_node("n", cpu="3"), raw_node("m", cpu="1")], {}, ""),
        ("auto", [raw_node("n", cpu="3"), raw_node("m", cpu="1", unschedulable=True)], {}, "no autoscaler was found"),
        (
            "auto",
            [raw_node("n", cpu="9", taints=[{"key": "a", "effect": "NoSchedule"}])],
            {},
            "no autoscaler was found",
        ),
    ],
)
def test_explain_says_why_no_node_comes_for_a_job_that_does_not_fit_on_those_present(
    ask: Ask, when: str, nodes: list[dict[str, Any]], objects: dict[str, Any], why: str
) -> None:
    server = Server(waiting("j"), nodes=nodes)
    config_map = {"data": {"config.yaml": ELASTIC.replace("WHEN", when)}}
    path = "/api/v1/namespaces/kubeflow/configmaps/elastic-tfjob-operator"
    server.objects = {path: config_map, "/apis": {"groups": []}, **objects}
    text = ask(server, "explain", "j").output
    assert ("even its smallest size does not fit on the present nodes, and jobs order none" in text) == bool(why)
    assert why in text
    del server.objects[path]
    assert "jobs order none" not in ask(server, "explain", "j").output, "it may not be read"


HAS = {"Chief": 1, "PS": 1, "Worker": 4}
EDITED = tfjob(
    annotations={"max-workers": "4", "checkpoint-dir": "/c"},
    target={"generation": 1, "replicas": {**HAS, "Worker": 2}, "declared": HAS, "reason": "asked"},
    state={
        "phase": "Stable",
        "generation": 0,
        "replicas": HAS,
        "refused": {"generation": 1, "reason": "no node for it", "at": "2026-01-01T00:00:00Z"},
    },
)
"""Its spec says two workers by now; it has four, and could not get there."""


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (waiting("j"), "room for 1 chief + 1 PS + 2 workers"),
        (tfjob(runPolicy={"suspend": True}), "elastic-tfjob resume j -n ns"),
        (tfjob(annotations={"max-workers": "4"}), "set the annotation checkpoint-dir"),
        (tfjob(annotations={"max-workers": "4", "checkpoint-dir": "/c", "rescale": "never"}), "rescale: never"),
        (tfjob(annotations={"checkpoint-dir": "/c"}), "set bounds that differ"),
        (
            running(annotations={"max-workers": "4", "checkpoint-dir": "/c", "target-workers": "3"}),
            "elastic-tfjob auto j",
        ),
        (running(annotations={"max-workers": "4", "checkpoint-dir": "/c", "deadline": "1m"}), "miss its deadline"),
        (EDITED, "an edit of the spec requests 2 workers, which failed so far: no node for it"),
    ],
)
def test_explain_says_what_would_have_to_change(ask: Ask, raw: dict[str, Any], hint: str) -> None:
    text = ask(Server(raw), "explain", "j").output
    assert hint in text.partition("What you can do:")[2]


def _pod(name: str, node: str, cpu: str, *, ours: bool = True, uid: str = "") -> dict[str, Any]:
    labels = {
        "training.kubeflow.org/job-name": "j",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
    }
    container = {"name": "tensorflow", "resources": {"requests": {"cpu": cpu}}}
    return {
        "ours": ours,
        "metadata": {"namespace": "ns", "name": name, "uid": uid or name, "resourceVersion": "1", "labels": labels},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


def test_top_shows_what_is_held_and_lent(ask: Ask) -> None:
    pods = [_pod("j-worker-0", "n1", "1500m"), _pod("dns", "n1", "250m", ours=False)]
    server = Server(running(), nodes=[raw_node("n1")], pods=pods)
    (row,) = ask(server, "top").output.splitlines()[1:]
    assert row.split() == ["n1", "ready", "4.00", "1.50", "0.50", "0.25", "2.25", "1", "1"]
    assert ask(server, "top", "jobs").output.splitlines()[1].split() == ["ns", "j", "1", "1.50", "0.50", "n1"]
    assert json.loads(ask(server, "top", "jobs", "-o", "json").output)[0]["lent"] == 500


class Changing(Server):
    """Which goes on after each look at its jobs."""

    async def once(self, method: str, path: str, body: Any = None, timeout_s: float = 5.0) -> dict[str, Any]:
        if "/tfjobs" in path:
            self.looks += 1
            self.later(self.looks)
        return await super().once(method, path, body, timeout_s)


@pytest.mark.parametrize("what", ["nodes", "jobs"])
def test_top_looks_again_and_shows_what_has_changed(ask: Ask, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr("elastic_tfjob.commands.tables._LOOK_S", 0.0)
    server = Changing(running(), nodes=[raw_node("n1")], pods=[_pod("j-worker-0", "n1", "1500m")])

    def later(looks: int) -> None:
        if looks == 3:
            server.collections["pods"] = [_pod("j-worker-0", "n1", "2")]
        if looks == 5:
            server.error = Unavailable("GET", 503, "", "gone")

    server.later = later
    result = ask(server, "top", what, "-w", "-o", "json")
    assert [row["held"] for line in result.stdout.splitlines() for row in json.loads(line)] == [1500, 2000]
    assert (result.exit_code, result.stderr) == (1, "Error: the API server does not answer: gone\n")


def test_scale_asks_by_annotations_and_auto_takes_them_back(ask: Ask) -> None:
    server = Server(running())
    assert ask(server, "scale", "j", "--workers", "3").output == "j: 3 workers requested\n"
    asked = {"elastic.kubeflow.org/target-workers": "3"}
    assert server.patches == [(f"{JOBS}/j", {"metadata": {"annotations": asked, "uid": "ns-j"}})]
    server = Server(running(annotations={"max-workers": "4", "checkpoint-dir": "/c", "target-workers": "3"}))
    assert ask(server, "auto", "j").exit_code == 0
    assert server.patches[0][1]["metadata"]["annotations"] == {"elastic.kubeflow.org/target-workers": None}
    assert "no size was requested" in ask(Server(running()), "auto", "j").output


def test_scale_waits_until_the_job_has_the_size(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_tfjob.commands.change._LOOK_S", 0.01)
    server = Server(tfjob(state={"phase": "Stable", "replicas": {"Chief": 1, "PS": 1, "Worker": 2}}))

    def grow(looks: int) -> None:
        if looks == 4:
            server.jobs = [running()]

    server.later = grow
    result = ask(server, "scale", "j", "--workers", "4", "--wait")
    assert result.output.splitlines()[-1] == "j: now has 1 chief + 1 PS + 4 workers"
    late = ask(Server(running()), "scale", "j", "--workers", "3", "--wait", "--timeout", "1")
    assert late.exit_code == cluster.EXIT_NOT_IN_TIME
    assert "did not reach the size within 1 s (Running: idle CPU)" in late.stderr
    annotations = {"max-workers": "4", "checkpoint-dir": "/c", "target-workers": "3"}
    server = Server(running(annotations=annotations), events=[PENDING])
    late = ask(server, "scale", "j", "--workers", "3", "--wait", "--timeout", "1")
    assert "did not reach the size within 1 s (Running: The job keeps its size: no room)" in late.stderr


def test_a_command_that_waits_shows_on_a_terminal_what_it_waits_for(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a program, which reads standard output or a file, has nothing of it."""
    monkeypatch.setattr(
        "elastic_tfjob.commands.change._LOOK_S", 0.2
    )  # a tenth of a second is from one look to the next

    def scaled() -> Result:
        server = Server(tfjob(state={"phase": "Stable", "replicas": {"Chief": 1, "PS": 1, "Worker": 2}}))

        def grow(looks: int) -> None:
            if looks == 4:
                server.jobs = [running()]

        server.later = grow
        return ask(server, "scale", "j", "--workers", "4", "--wait")

    said = "j: 4 workers requested\nj: now has 1 chief + 1 PS + 4 workers\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert (scaled().stdout, scaled().stderr) == (said, "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    told = scaled()
    assert told.stdout == said
    assert "j: waiting for 4 workers (" in told.stderr
    assert told.stderr.endswith("\x1b[1A\x1b[2K")  # and it is gone


KUEUE = {"kueue.x-k8s.io/queue-name": "q"}


def _queued() -> dict[str, Any]:
    raw = running()
    raw["metadata"]["labels"] = KUEUE
    return raw


@pytest.mark.parametrize(
    ("raw", "words", "code", "said"),
    [
        (running(), ["scale", "j"], 2, "no size is given; use --workers, --ps, or both"),
        (running(), ["scale", "j", "--workers", "9"], 1, "9 workers requested, out of bounds; allowed: 2 to 4"),
        (running(), ["scale", "j", "--workers", "-1"], 2, "-1 is not in the range"),
        (
            tfjob(annotations={}),
            ["scale", "j", "--ps", "1"],
            1,
            "it needs the annotation elastic.kubeflow.org/checkpoint-dir",
        ),
        (tfjob(conditions={"Succeeded": "2026-01-02T03:01:00Z"}), ["scale", "j", "--ps", "1"], 1, "j has ended"),
        (_queued(), ["scale", "j", "--workers", "4"], 1, "allowed: 2 to 2, as admitted by Kueue (queue q)"),
        (_queued(), ["suspend", "j"], 1, "only Kueue suspends and resumes this job"),
        (running(), ["resume", "other"], 3, "namespace ns has no TFJob other: `elastic-tfjob jobs -n ns` lists"),
        (running(), ["logs", "j"], 3, "j currently has no pod j-chief-0; --follow waits for it"),
        (running(), ["logs", "j", "--all", "--replica", "ps-0"], 2, "cannot be combined"),
        (running(), ["jobs", "--sort", "luck"], 2, "'luck' is not one of 'name', 'created'"),
    ],
)
def test_an_impossible_change_is_refused_with_a_message(
    ask: Ask, raw: dict[str, Any], words: list[str], code: int, said: str
) -> None:
    server = Server(raw)
    result = ask(server, *words)
    assert (result.exit_code, server.patches) == (code, [])
    assert said in " ".join(result.stderr.split())


def test_suspend_and_resume_write_once(ask: Ask) -> None:
    server = Server(running())
    ask(server, "suspend", "j")
    assert server.patches == [(f"{JOBS}/j", {"spec": {"runPolicy": {"suspend": True}}, "metadata": {"uid": "ns-j"}})]
    assert ask(Server(running()), "resume", "j").output == "j is not suspended\n"
    suspended = Server(tfjob(runPolicy={"suspend": True}))
    assert ask(suspended, "resume", "j").output == "j: resumed\n"


def test_export_trace_writes_a_workload_and_the_command_for_it(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    server = Server(running(), waiting("w"), nodes=[raw_node("n1"), raw_node("n2")])
    result = ask(server, "export-trace", str(file), "-A")
    assert result.exit_code == 0, result.output
    assert "ns/w is skipped: it has not ended" in result.stderr
    assert "--nodes 2 --cpus-per-node 4" in result.stdout
    words = ["simulate", str(file), "--nodes", "2", "--profile", "elastic", "--speed-model", "linear"]
    assert CliRunner().invoke(main, [*words, "--set", "elastic.lend=none"]).exit_code == 0
    before = file.read_text()
    refused = ask(Server(waiting("w")), "export-trace", str(file))
    assert (refused.exit_code, file.read_text()) == (1, before)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ApiError("GET", 403, "Forbidden", "User x cannot list tfjobs"), "not allowed: User x cannot list tfjobs"),
        (Unavailable("GET", 0, "ClientConnectorError", "refused"), "the API server does not answer: refused"),
    ],
)
def test_errors_of_the_api_server_are_told(ask: Ask, error: ApiError, said: str) -> None:
    server = Server()
    server.error = error
    for words in (["jobs"], ["explain", "j"], ["top"], ["suspend", "j"]):
        result = ask(server, *words)
        assert (result.exit_code, result.stderr) == (1, f"Error: {said}\n")


def test_a_job_that_was_made_anew_is_not_changed(ask: Ask) -> None:
    class Changed(Server):
        async def patch(self, path: str, body: Any) -> dict[str, Any]:
            raise Conflict("PATCH", 409, "Conflict", "uid")

    assert "was deleted and recreated" in ask(Changed(running()), "suspend", "j").stderr


def test_logs_go_on_across_pods_and_repeat_nothing(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_tfjob.commands.logs._LOOK_S", 0.0)
    server = Server(running(), pods=[_pod("j-chief-0", "n1", "1", uid="first")])
    server.logs["j-chief-0"] = [
        [b"2026-01-02T03:01:00.1Z one", b"2026-01-02T03:01:00.2Z two"],
        [b"2026-01-02T03:01:00.1Z one", b"2026-01-02T03:01:00.2Z two", b"2026-01-02T03:01:00.3Z three"],
        [b"2026-01-02T03:02:00Z four"],
    ]

    def later(_: int) -> None:
        left = len(server.logs["j-chief-0"])
        if left == 1:
            server.collections["pods"] = [_pod("j-chief-0", "n1", "1", uid="second")]
            server.jobs = [tfjob(conditions={"Succeeded": "2026-01-02T03:01:00Z"})]

    server.later = later
    result = ask(server, "logs", "j", "-f")
    assert result.stdout.split() == ["one", "two", "three", "four"]
    assert result.stderr == "--- j-chief-0 was recreated\n"


def test_a_log_that_the_kubelet_cannot_read_is_told(ask: Ask) -> None:
    """In the kubelet's words, which have no time before them: nothing is asked for since `unable`."""
    server = Server(running(), pods=[_pod("j-chief-0", "n1", "1", uid="first")])
    server.logs["j-chief-0"] = [[b"2026-01-02T03:01:00.1Z one", b"unable to retrieve container logs for x"]]
    assert ask(server, "logs", "j").stdout.splitlines() == ["one", "unable to retrieve container logs for x"]


def test_logs_cannot_control_the_terminal() -> None:
    """Colours and progress bars stay; titles, links, the clipboard and moves of the cursor do not."""
    assert show.harmless("\r12/60 [==>]\tloss") == "\r12/60 [==>]\tloss"
    assert show.harmless("\x1b[1;31mred\x1b[0m") == "\x1b[1;31mred\x1b[0m\x1b[0m"
    told = show.harmless("\x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b]0;title\x9b2J\u202eab\x1b[31m")
    assert not {"\x07", "\x9b", "\u202e"} & set(told)
    assert told.replace("\x1b[31m", "").replace("\x1b[0m", "").isprintable()


@pytest.mark.parametrize("words", [["jobs"], ["top"], ["top", "jobs"]])
def test_an_object_that_cannot_be_read_hides_no_other(ask: Ask, words: list[str]) -> None:
    """A tenant wrote it: a spec that is nested too deep, labels that are none of a replica."""
    bad, strange = running("bad"), _pod("j-worker-0", "n1", "1")
    nested: Any = {}
    for _ in range(2000):
        nested = {"a": nested}
    bad["spec"]["tfReplicaSpecs"]["Worker"]["template"]["x"] = nested
    strange["metadata"]["resourceVersion"] = "x"
    server = Server(bad, running("j"), pods=[strange, _pod("j-chief-0", "n1", "1")])
    result = ask(server, *words)
    assert result.exit_code == 0, result.exception
    assert "ns/bad is skipped: TFJob that cannot be read" in result.stderr
    assert "ns/j-worker-0 is skipped" in result.stderr or words == ["jobs"]
    assert ("j" if "jobs" in words else "HELD") in result.stdout.split()
    assert ask(server, "explain", "bad").exit_code == 1


def test_a_message_of_a_webhook_cannot_control_the_terminal(ask: Ask) -> None:
    server = Server(running())
    server.error = ApiError("PATCH", 403, "Forbidden", "no \x1b]0;title\x07")
    told = ask(server, "suspend", "j").stderr
    assert "not allowed: no" in told
    assert "\x1b" not in told


def test_a_context_is_that_of_a_kubeconfig_also_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the command would go to the pod's own cluster, and not to the one that was named."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    asked: list[str | None] = []

    async def load(*, context: str | None, **_: object) -> None:
        asked.append(context)
        raise ConfigException("none")

    monkeypatch.setattr(cluster, "load_kube_config", load)
    monkeypatch.setattr(cluster, "_refuse_missing", lambda _: None)
    assert CliRunner().invoke(main, ["jobs", "--context", "other"]).exit_code == 1
    assert asked == ["other"]


def test_without_a_kubeconfig_it_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    empty = tmp_path / "config"
    empty.write_text("{}")
    result = CliRunner().invoke(main, ["jobs", "--kubeconfig", str(empty)])
    assert result.exit_code == 1
    assert f"cannot connect to a cluster: {empty}: " in result.stderr


@pytest.mark.parametrize("named", ["", "/nowhere/config", "/nowhere/a:/nowhere/b"])
def test_a_missing_kubeconfig_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", named)
    monkeypatch.setenv("HOME", str(tmp_path))
    result = CliRunner().invoke(main, ["jobs"])
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert f"kubeconfig {named or '~/.kube/config'} does not exist;" in line


_KUBECONFIG = """
current-context: a
contexts: [{name: a, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not a kubeconfig"),
        (b"hello", "it is not a kubeconfig"),
        (b"[]", "it is not a kubeconfig"),
        (b"\xff\xfe\x00", "it is not a kubeconfig"),
        *((text, "it ") for text in NO_YAML),
        (b"{{{", "it is not YAML: "),
        (_KUBECONFIG.replace("user: {}", "user: hello"), "it is not a kubeconfig"),
        (_KUBECONFIG.replace("context: a", 'context: ""', 1), "it has no current-context; "),
        (_KUBECONFIG.replace("user: {}", "user: {tokenFile: /nowhere/token}"), "/nowhere/token: No such file"),
        (_KUBECONFIG.replace("user: {}", "user: {client-key-data: '!', client-certificate-data: a}"), "cannot be used"),
        (_KUBECONFIG.replace('1"}', '1", certificate-authority-data: aGVsbG8=}'), "a certificate or key in it"),
        (_KUBECONFIG.replace("https://127.0.0.1:1", "not a URL"), "the cluster's server is 'not a URL'; "),
        (_KUBECONFIG.replace("127.0.0.1:1", "127.0.0.1:99999"), "is 'https://127.0.0.1:99999'; a URL is needed"),
        (_KUBECONFIG.replace("https://127.0.0.1:1", ""), "the cluster's server is ''; "),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, why: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    broken = tmp_path / "config"
    broken.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = CliRunner().invoke(main, ["jobs", "--kubeconfig", str(broken)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot connect to a cluster: {broken}: " in result.stderr
    assert why in result.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["job"], "Did you mean jobs?"),
        (["explian", "a"], "Did you mean explain?"),
        (["jobs", "--state", "Runing"], "Did you mean Running?"),
        (["jobs", "--sort", "slack"], "Did you mean slack_s?"),
        (["top", "node"], "Did you mean nodes?"),
        (["simulate", "t.csv", "--nodes", "1", "--profile", "elastc"], "Did you mean elastic?"),
        (["completion", "bsh"], "Did you mean bash?"),
    ],
)
def test_a_slip_of_the_pen_is_answered_with_the_nearest_word(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert meant in result.stderr


@pytest.mark.parametrize("name", sorted(set(LAZY) - {"simulate"}))
def test_help_teaches_with_examples(name: str) -> None:
    text = CliRunner().invoke(main, [name, "--help"]).output
    assert "Example" in text
    assert "elastic-tfjob " in text


def test_kubectl_has_the_commands_for_people_and_completes_them(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = ask(Server(running()), "jobs", group=kubectl_tfjob)
    assert "Running" in result.output
    assert ask(Server(), "simulate", group=kubectl_tfjob).exit_code == 2
    for words, expected in ((["s"], "scale\nsuspend\n:4\n"), (["explain", ""], "a\nb\n:4\n"), ([], "auto\n")):
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-tfjob", *words])
        ask(Server(running("a"), running("b")), "jobs")  # who answers
        complete()
        assert capsys.readouterr().out.startswith(expected)


def test_completion_is_a_script_for_the_shell() -> None:
    assert "_ELASTIC_TFJOB_COMPLETE" in CliRunner().invoke(main, ["completion", "zsh"]).output


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_table_splits_no_word_and_fits(width: int, rows: int) -> None:
    now = datetime(2026, 9, 1, tzinfo=UTC)
    row = job_row(TFJob.parse(running("resnet-imagenet")))
    columns = {"wide": True, "namespaces": True}
    cells = show.job_cells(row, now, **columns)
    cells[-1] = "it waits for 4 workers: node-3 has no room for their memory until another job has ended"
    text = show.table(show.job_head(**columns), [cells] * rows, width=width)
    assert max(map(len, text.splitlines())) <= width
    words = Counter(text.split())
    for word in {*" ".join(cells).split()}:
        assert words[word] >= rows, word


def test_columns_without_values_are_left_out() -> None:
    text = show.table(["NAME", "SLACK", "WHY"], [["a", "", "b"], ["c", "", "d"]], width=80)
    assert text.splitlines() == ["NAME  WHY", "a     b", "c     d"]
    assert show.table(["NAME", "SLACK"], []) == "NAME  SLACK"

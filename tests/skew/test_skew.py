"""A job that runs across an upgrade or a downgrade of the operator goes on, is rescaled and ends.

tests/skew/recorded holds what an older version wrote in each phase (record.py made it). Here the present version goes
on from that; and the older one, taken from git at the commit that it was recorded with, goes on from what the present
one writes.
"""

import copy
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.model.pod import EXPORTER, Pod
from elastic_tfjob.controller.model.reports import Report
from elastic_tfjob.controller.model.speed_checks import CAUSES_ANNOTATION
from elastic_tfjob.controller.model.state import StoredState
from elastic_tfjob.controller.model.target import Target
from elastic_tfjob.exporter.files import status
from pod.pods import Pod as Launched
from pod.pods import until
from pod.programs import TRAINER, tf_config

from . import world

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
FILES = sorted(Path(__file__).with_name("recorded").glob("*.json"))
RECORDS: dict[str, Json] = {file.stem: json.loads(file.read_text()) for file in FILES}
LAUNCHER = RECORDS.pop("launcher")
OLD = LAUNCHER["commit"]

PHASES = {
    "stable": "Stable",
    "waiting": "Waiting",
    "preparing": "Preparing",
    "preparing-told": "Preparing",
    "checkpointing": "Checkpointing",
    "switching": "Switching",
    "rolling-back": "RollingBack",
    "refused": "Stable",
    "recreating": "Recreating",
    "generation-2": "Stable",
}
BEGINS_WITH = {"Chief": 1, "PS": 1, "Worker": 2}
GROWS_TO = {"Chief": 1, "PS": 1, "Worker": 3}
ENDS_WITH = {
    "stable": (0, BEGINS_WITH),
    "waiting": (0, BEGINS_WITH),
    "preparing": (1, GROWS_TO),
    "preparing-told": (1, GROWS_TO),
    "checkpointing": (1, GROWS_TO),
    "switching": (1, {"Chief": 1, "PS": 2, "Worker": 3}),
    "rolling-back": (0, BEGINS_WITH),
    "refused": (0, BEGINS_WITH),
    "recreating": (1, GROWS_TO),
    "generation-2": (2, {"Chief": 1, "PS": 2, "Worker": 1}),
}
"""Generation and replicas that each record comes to rest at."""


@pytest.fixture(scope="session")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older version's package, and the pretended cluster that went with it."""
    archive = ["git", "-C", str(ROOT), "archive", OLD, "operator", "tests/unit"]
    found = subprocess.run(archive, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"no commit {OLD[:7]} here, to take the older version from: {found.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


Ask = Callable[..., list[Any]]


@pytest.fixture
def old(old_tree: Path) -> Ask:
    """`old(order, …)`: what the older version answers to each of world.py's orders."""

    def ask(*orders: list[Any]) -> list[Any]:
        path = os.pathsep.join((str(old_tree / "operator"), str(old_tree / "tests")))
        program = "import elastic_tfjob, runpy, sys; assert elastic_tfjob.__file__.startswith(sys.argv[1]); "
        program += "runpy.run_path(sys.argv[2], run_name='__main__')"
        ran = subprocess.run(
            [sys.executable, "-c", program, str(old_tree), str(Path(world.__file__))],
            input=json.dumps(orders),
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        answers: list[Any] = json.loads(ran.stdout)
        return answers

    return ask


@pytest.fixture(scope="session")
def fresh() -> dict[str, Json]:
    """What the present version writes, in the same situations. Through JSON, as the API server has it."""
    found: dict[str, Json] = json.loads(
        json.dumps({name: world.record(job) for name, job in world.situations().items()})
    )
    return found


@pytest.fixture(scope="session")
def stopping() -> dict[str, Json]:
    """What the present version writes while a plan stops a job."""
    found: dict[str, Json] = json.loads(json.dumps({name: world.record(job) for name, job in world.stops().items()}))
    return found


def goes_well(name: str, known: Json, end: Json) -> None:
    """It came to rest where it was going, was rescaled once more and succeeded, and no pod was lost on the way."""
    assert "error" not in end, end
    generation, replicas = ENDS_WITH[name]
    assert end["first"]["phase"] == "Stable", end["events"]
    assert (end["first"]["generation"], end["first"]["replicas"]) == (generation, replicas), end["events"]
    assert set(end["first"]["running"].values()) == {generation}
    assert end["second"]["generation"] == generation + 5
    assert end["second"]["replicas"]["Worker"] == 4
    assert set(end["second"]["running"].values()) == {generation + 5}
    assert end["ended"] == "Succeeded"
    if name != "recreating":
        lived = {f"j-{role}" for role in end["first"]["running"]} & known["pods"].keys()
        assert set(end["kept"]) == lived, "pods were made anew"
    if name not in ("rolling-back", "refused"):
        assert not [event for event in end["events"] if event.startswith(("RescaleRolledBack", "Invalid", "Failed"))]


def test_each_phase_is_recorded() -> None:
    states = {name: StoredState.parse(known["annotations"][f"{PREFIX}state"]) for name, known in RECORDS.items()}
    assert {name: state and state.phase for name, state in states.items()} == PHASES


def test_what_is_pretended_says_what_live_jobs_say(fresh: dict[str, Json], stopping: dict[str, Json]) -> None:
    """Else the older version is never shown a key that it does not know."""
    for name, known in {**fresh, **stopping}.items():
        said = {key for key, value in json.loads(known["annotations"][f"{PREFIX}state"]).items() if value is not None}
        ends = {"eta", "eta_earliest", "eta_latest", "eta_source"} if name != "stopped" else set()
        assert name == "waiting" or {"step", "total_steps", "starts", *ends} <= said, name
        assert ("stop" in said) == (name in stopping), name


@pytest.mark.parametrize("name", PHASES)
class TestUpgrade:
    def test_a_job_goes_on(self, name: str) -> None:
        goes_well(name, RECORDS[name], world.to_the_end(RECORDS[name]))

    def test_annotations_say_the_same(self, name: str) -> None:
        """Each value that the older version wrote is read, and written again as it was."""
        notes = RECORDS[name]["annotations"]
        for key, kind in (("state", StoredState), ("target", Target)):
            text = notes[f"{PREFIX}{key}"]
            read = kind.parse(text)
            assert read is not None
            again = json.loads(read.to_json())
            assert {field: again.get(field) for field in json.loads(text)} == json.loads(text)

    def test_pods_are_what_they_were(self, name: str) -> None:
        for name_, body in RECORDS[name]["pods"].items():
            pod = Pod.parse(body)
            assert (pod.name, pod.job, pod.owner, pod.exporter) == (name_, "j", "job-uid", True)
            assert pod.command == body["metadata"].get("annotations", {}).get(f"{PREFIX}command", "")

    def test_answers_are_read(self, name: str) -> None:
        for answer in RECORDS[name]["reports"].values():
            report = Report.parse(json.dumps(answer))
            assert (report.generation, report.launcher, report.step) == (answer["generation"], True, answer["step"])
            assert report.step is not None
            assert report.step > 100
            assert (report.prepared is None) == (answer["prepared"] is None)
            assert (report.switch is None) == (answer["switch"] is None)


class TestDowngrade:
    def test_jobs_go_on(self, old: Ask, fresh: dict[str, Json]) -> None:
        for name, end in zip(fresh, old(*(["to_the_end", known] for known in fresh.values())), strict=True):
            goes_well(name, fresh[name], end)
            told = [
                pod
                for pod in fresh[name]["pods"].values()
                if f"{PREFIX}command" in pod["metadata"].get("annotations", {})
            ]
            assert end["commands_understood"] == len(told)

    def test_a_job_that_has_moved_keeps_its_pods(self, old: Ask) -> None:
        """The older version does not know that there is no worker-1, and makes one, which nobody uses."""
        job = world.running()
        nodes = {"Chief": ("any",), "PS": ("any",), "Worker": ("any", "elsewhere")}
        moved = Target(1, BEGINS_WITH, nodes, {}, "moved", BEGINS_WITH)
        job.annotations[f"{PREFIX}target"] = moved.to_json()
        job.run(25)
        assert sorted(job.running) == ["chief-0", "ps-0", "worker-0", "worker-2"]
        known = json.loads(json.dumps(world.record(job)))
        (end,) = old(["to_the_end", known])
        assert "error" not in end, end
        assert end["kept"] == ["j-chief-0", "j-ps-0", "j-worker-0", "j-worker-2"]
        assert end["second"]["replicas"]["Worker"] == 4
        assert end["ended"] == "Succeeded"
        (known,) = old(["go_on", known, 5])
        back = world.restore(known)
        back.run(10)
        assert sorted(back.running) == ["chief-0", "ps-0", "worker-0", "worker-2"]

    @pytest.mark.parametrize("phase", ["Preparing", "Switching", "Stable"])
    def test_causes_are_no_matter_to_it(self, old: Ask, phase: str) -> None:
        """They are in an annotation that the older version leaves as it is, and the present version knows them when it
        is back."""
        job = world.running()
        asked = Target(1, GROWS_TO, reason="more", declared=BEGINS_WITH, cause="asked")
        job.annotations[f"{PREFIX}target"] = asked.to_json()
        job.run(30) if phase == "Stable" else job.until(phase)
        assert job.annotations[CAUSES_ANNOTATION] == '{"1":"asked"}'
        job.target(1, Worker=3)
        known = json.loads(json.dumps(world.record(job)))
        (after,) = old(["go_on", known, 40])
        back = world.restore(after)
        assert [back.state.cause(done) for done in back.state.history] == ["asked"]
        (end,) = old(["to_the_end", known])
        goes_well("preparing", known, end)

    def test_a_target_with_keys_that_it_does_not_know(self, old: Ask, fresh: dict[str, Json]) -> None:
        """The older version follows the target all the same."""
        before = copy.deepcopy(fresh)
        for known in before.values():
            target = json.loads(known["annotations"][f"{PREFIX}target"])
            more = {"cause": "asked", "memory": {"las.forgiven": 1.0}, "of_tomorrow": [1]}
            known["annotations"][f"{PREFIX}target"] = json.dumps({**target, **more})
        for name, end in zip(before, old(*(["to_the_end", known] for known in before.values())), strict=True):
            goes_well(name, before[name], end)

    def test_a_stop_ends_and_the_job_comes_back(self, old: Ask, stopping: dict[str, Json]) -> None:
        """The older version knows no checkpoint before the end: it ends the pods, none of which stays."""
        for name, known in zip(stopping, old(*(["go_on", each, 20] for each in stopping.values())), strict=True):
            assert "error" not in known, (name, known)
            state = json.loads(known["annotations"][f"{PREFIX}state"])
            assert (state["phase"], state["replicas"], known["pods"]) == ("Waiting", {}, {}), name
            for end in (world.to_the_end(known), *old(["to_the_end", known])):
                assert "error" not in end, (name, end)
                assert (end["first"]["phase"], end["first"]["replicas"]) == ("Stable", BEGINS_WITH), (name, end)
                assert end["second"]["replicas"]["Worker"] == 4, name
                assert end["ended"] == "Succeeded", name

    @pytest.mark.parametrize("name", ["preparing", "checkpointing", "switching", "rolling-back", "recreating"])
    def test_back_and_forth(self, old: Ask, name: str) -> None:
        """Every two seconds the other version is at work."""
        known = RECORDS[name]
        for turn in range(6):
            if turn % 2:
                (known,) = old(["go_on", known, 2])
                assert "error" not in known, known
            else:
                known = json.loads(json.dumps(world.go_on(known, 2)))
        end = world.to_the_end(known)
        assert (end["first"]["generation"], end["first"]["replicas"]) == ENDS_WITH[name], end["events"]
        assert end["second"]["replicas"]["Worker"] == 4
        assert end["ended"] == "Succeeded"
        if name != "recreating":
            assert "j-chief-0" in end["kept"]


class TestNewerStill:
    """What a version that is newer than this one may have added is passed over: else no version could add anything."""

    @pytest.mark.parametrize("name", PHASES)
    def test_unknown_keys(self, name: str) -> None:
        known = copy.deepcopy(RECORDS[name])
        for key in ("state", "target"):
            text = json.loads(known["annotations"][f"{PREFIX}{key}"])
            for each in (text, text.get("next"), text.get("refused"), *(text.get("history") or ())):
                if each:
                    each["of_tomorrow"] = {"a": [1]}
            known["annotations"][f"{PREFIX}{key}"] = json.dumps(text)
        for body in known["pods"].values():
            if command := body["metadata"].get("annotations", {}).get(f"{PREFIX}command"):
                more = {**json.loads(command), "of_tomorrow": 1}
                body["metadata"]["annotations"][f"{PREFIX}command"] = json.dumps(more)
        for answer in known["reports"].values():
            answer["of_tomorrow"] = {"a": [1]}
        end = world.to_the_end(known)
        assert (end["first"]["generation"], end["first"]["replicas"]) == ENDS_WITH[name], end["events"]
        assert end["ended"] == "Succeeded"

    @pytest.mark.parametrize("name", PHASES)
    def test_unknown_words_of_what_is_only_told(self, name: str) -> None:
        known = copy.deepcopy(RECORDS[name])
        state = json.loads(known["annotations"][f"{PREFIX}state"])
        past = json.loads(RECORDS["generation-2"]["annotations"][f"{PREFIX}state"])["history"][0]
        state["history"] = [{**past, "mode": "of-tomorrow"}, *(state.get("history") or ()), {"of_tomorrow": 1}]
        known["annotations"][f"{PREFIX}state"] = json.dumps(state)
        known["annotations"][CAUSES_ANNOTATION] = json.dumps({"1": "of-tomorrow"})
        target = json.loads(known["annotations"][f"{PREFIX}target"])
        known["annotations"][f"{PREFIX}target"] = json.dumps({**target, "cause": "of-tomorrow"})
        goes_well(name, known, world.to_the_end(known))

    @pytest.mark.parametrize("name", PHASES)
    def test_figures_of_another_kind(self, name: str) -> None:
        """What was measured is forgotten, each of it with an event; the job goes on with the pods that it has."""
        known = copy.deepcopy(RECORDS[name])
        state = json.loads(known["annotations"][f"{PREFIX}state"])
        other = {"of_tomorrow": 1}
        figures = {"step": other, "steps_per_s": [1.0], "eta": other, "speeds": {"1/2/1": 3.0}, "numbers_at": 0}
        known["annotations"][f"{PREFIX}state"] = json.dumps({**state, **figures})
        end = world.to_the_end(known)
        told = [event for event in end["events"] if event.startswith("Invalid")]
        assert len(set(told)) == len(figures)
        goes_well(name, known, {**end, "events": [event for event in end["events"] if event not in told]})

    @pytest.mark.parametrize("name", PHASES)
    def test_unknown_words_that_matter(self, name: str) -> None:
        """The job is left as it is till an operator that knows the word is back, and goes on there."""
        known = copy.deepcopy(RECORDS[name])
        state = json.loads(known["annotations"][f"{PREFIX}state"])
        state = {**state, "next": {**state["next"], "mode": "of-tomorrow"}} if state.get("next") else state
        for changed in (state, {**state, "phase": "Of-tomorrow"}):
            if changed == json.loads(RECORDS[name]["annotations"][f"{PREFIX}state"]):
                continue  # no way to another size, so no mode
            known["annotations"][f"{PREFIX}state"] = json.dumps(changed)
            job = world.restore(known)
            before = {name: pod for name, pod in job.pods.items() if not pod.terminating}
            job.run(20)
            assert job.annotations == known["annotations"]
            assert job.pods == before
            assert job.status == known["status"]
            assert {reason for reason, _ in job.events} == {"UnknownState"}
            after = json.loads(json.dumps(world.record(job)))
            after["annotations"][f"{PREFIX}state"] = RECORDS[name]["annotations"][f"{PREFIX}state"]
            goes_well(name, RECORDS[name], world.to_the_end(after))


# In the pod: launcher, program and exporter of one version, operator of the other


@pytest.mark.parametrize("moment", ["running", "prepared", "switched"])
def test_the_exporter_reads_an_older_launchers_files(moment: str, tmp_path: Path) -> None:
    """The answer has all that it had then, and the operator understands it."""
    known = LAUNCHER[moment]
    for name, content in known["files"].items():
        (tmp_path / name).write_text(json.dumps(content))
    answer = status(tmp_path)
    assert {key: answer[key] for key in known["status"] if key != "at"} == {
        key: value for key, value in known["status"].items() if key != "at"
    }
    _tells(Report.parse(json.dumps(answer)), moment)


@pytest.mark.parametrize("moment", ["running", "prepared", "switched"])
def test_an_older_exporters_answers_are_understood(moment: str) -> None:
    _tells(Report.parse(json.dumps(LAUNCHER[moment]["status"])), moment)


def _tells(report: Report, moment: str) -> None:
    assert report.launcher
    assert report.generation == (1 if moment == "switched" else 0)
    assert report.modes == ("overlap", "spare")
    if moment == "prepared":
        assert report.prepared is not None
        assert (report.prepared.generation, report.prepared.state) == (1, "ready")
    if moment == "switched":
        assert report.switch is not None
        assert report.switch.state == "committed"


@pytest.fixture
def chief(tmp_path: Path) -> Iterator[Launched]:
    program = tmp_path / "train.py"
    program.write_text(TRAINER)
    pod = Launched(tmp_path / "pod", [sys.executable, program], {"TF_CONFIG": tf_config("chief")})
    yield pod
    pod.stop()


def _rescaled(pod: Launched, fresh: dict[str, Json]) -> dict[str, Json]:
    """The launcher obeys the commands of `fresh`, and the present exporter tells of it; its answers on the way."""
    body = fresh["checkpointing"]["pods"]["j-chief-0"]
    command = json.loads(body["metadata"]["annotations"][f"{PREFIX}command"])
    assert command["action"] == "switch"
    pod.start()
    until("it can be rescaled", lambda: pod.status["modes"])
    answers = {"running": pod.status}
    config = {**command, "tf_config": tf_config("chief", port=2223)}
    pod.command(**{**config, "action": "prepare"})
    until("prepared", lambda: (pod.status["prepared"] or {}).get("state") == "ready")
    answers["prepared"] = pod.status
    pod.command(**config)
    until("switched", lambda: pod.status["generation"] == 1)
    answers["switched"] = pod.status
    pod.command(**{**config, "action": "run"})
    report = Report.parse(json.dumps(pod.status))
    assert report.switch is not None
    assert (report.generation, report.launcher, report.switch.state) == (1, True, "committed")
    return answers


def test_an_older_launcher_obeys_this_operator(chief: Launched, old_tree: Path, fresh: dict[str, Json]) -> None:
    subprocess.run(
        [sys.executable, "-m", "elastic_tfjob.runtime.install", str(chief.shared)],
        env={**os.environ, "PYTHONPATH": str(old_tree / "operator")},
        check=True,
        cwd=chief.directory,
    )
    _rescaled(chief, fresh)


def test_this_launcher_obeys_an_older_operator_which_understands_its_answers(chief: Launched, old: Ask) -> None:
    answers = _rescaled(chief, RECORDS)
    running, prepared, switched = old(*(["understood", answer] for answer in answers.values()))
    for report, generation in ((running, 0), (prepared, 0), (switched, 1)):
        assert "error" not in report, report
        assert (report["generation"], report["launcher"], set(report["modes"])) == (
            generation,
            True,
            {"overlap", "spare"},
        )
    assert (prepared["prepared"]["generation"], prepared["prepared"]["state"]) == (1, "ready")
    assert switched["switch"]["state"] == "committed"


@pytest.mark.parametrize("name", ["stable", "switching"])
def test_an_older_pod_is_made_of_an_image_that_is_still_there(name: str) -> None:
    """The commands in a pod are the entry points of the image: without them an old pod cannot restart."""
    for body in RECORDS[name]["pods"].values():
        inits = {each["name"]: each["command"] for each in body["spec"]["initContainers"]}
        assert inits["elastic-tfjob-install"][:3] == ["python", "-m", "elastic_tfjob.runtime.install"]
        assert inits[EXPORTER][:3] == ["python", "-m", "elastic_tfjob.exporter"]
        for command in inits.values():
            module = command[2].split(".")
            file = ROOT / "operator" / Path(*module)
            assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), command

"""One scripted history through both builders of Snapshots: what a policy sees of a job is the same, live and simulated.

A profile that does what a script says decides in both worlds. Live its Plans become targets, which the real reconcile
loop follows on a pretended cluster; in the simulation the engine carries them out. When things have settled after each
entry of the script, the two Snapshots are compared whole: see whole.py.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache

import pytest

from elastic_tfjob.api.annotations import PREFIX
from elastic_tfjob.controller.job.decision import ReconcileSettings
from elastic_tfjob.controller.model.annotations import TARGET_ANNOTATION
from elastic_tfjob.controller.model.pod import Pod
from elastic_tfjob.controller.model.reports import MemoryUse
from elastic_tfjob.controller.planning.job_view import JobView, view_of
from elastic_tfjob.controller.planning.round import assemble
from elastic_tfjob.controller.planning.targets import decide
from elastic_tfjob.runtime.memory_use import MemoryTrend
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.orders import Fifo
from elastic_tfjob.scheduling.places import BestFit
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts, Cpu, Job, Node, ReplicaGroup, Snapshot
from elastic_tfjob.simulation.engine import Simulation, SimulationInput
from elastic_tfjob.simulation.event_queue import NodeChange
from elastic_tfjob.simulation.memory import Figures, PsMemory
from elastic_tfjob.simulation.speed_models.base import LINEAR
from elastic_tfjob.simulation.workload import LossCurve, MemoryGrowth, WorkloadJob

from .build import NOW
from .pretend import Cluster, Report
from .test_snapshot import node
from .whole import differences

CHIEF = "Chief"
ONE = Resources(100, 32 << 20, pods=1)
"""A replica's request, with that of the launcher that is injected."""
EACH = Resources(1000, 8 << 30, 2, pods=110)
NODES = ("n1", "n2", "n3", "n4", "n5")
CURVE = LossCurve(0.001, 0.2)


@dataclass(frozen=True, slots=True)
class Entry:
    """From `at_s` after the job's arrival on it shall have this size and CPU; none: it waits."""

    at_s: float
    counts: Counts = field(default_factory=dict)
    cpu: Cpu = field(default_factory=dict)
    moves: int = 0
    """How often the first worker has gone to another node by then."""


def size(ps: int, workers: int) -> Counts:
    return {CHIEF: 1, PS: ps, WORKER: workers}


HISTORY = (
    Entry(0.0),
    Entry(30.0, size(1, 2)),  # start
    Entry(100.0, size(1, 4)),  # grow
    Entry(200.0, size(2, 3)),  # a server more, a worker less
    Entry(300.0, size(2, 3), {WORKER: (300, 100, 200)}),  # CPU in place
    Entry(400.0),  # stop
    Entry(500.0, size(1, 2)),  # resume
    Entry(600.0, size(1, 1)),  # shrink
    Entry(700.0, size(1, 1), moves=1),  # move
    Entry(800.0, size(1, 3), moves=1),  # grow, with a worker that has moved
    Entry(900.0, size(1, 3), moves=2),
    Entry(1000.0, size(1, 3), moves=2),  # nothing but what is remembered
)
MOMENTS = (*(entry.at_s - 1.0 for entry in HISTORY[1:]), HISTORY[-1].at_s + 60.0)
"""Just before the next entry, when things have settled."""


@dataclass(frozen=True, slots=True)
class Script:
    """A step of a round that has each job as the history says."""

    history: tuple[Entry, ...]

    def __call__(self, round_: Round) -> None:
        for job in round_.snapshot.jobs.values():
            passed_s = round_.now - job.spec.arrival_s
            begun = [each for each in self.history if each.at_s <= passed_s + 1e-6]
            if job.phase != "rescaling":
                round_.remember(job, "script.begun", len(begun))
            self._follow(round_, job, begun[-1])

    def _follow(self, round_: Round, job: Job, entry: Entry) -> None:
        if job.phase == "rescaling":
            return
        if not entry.counts:
            if job.placement:
                round_.stop(job, "script")
            else:
                round_.refuse(job, "script")
            return
        if not job.placement:
            assert round_.start(job, entry.counts, "script")
        elif dict(job.counts) != dict(entry.counts):
            assert round_.resize(job, entry.counts, "script")
        elif entry.moves > job.migrations:
            elsewhere = next(name for name in sorted(round_.nodes) if name not in job.placement[WORKER])
            assert round_.move(job, (WORKER, 0), elsewhere, "script")
        elif entry.cpu != job.cpu:
            for type_, names in job.placement.items():
                for index, name in enumerate(names):
                    held = job.cpu.get(type_, (ONE.cpu_millicores,) * len(names))[index]
                    wanted = entry.cpu.get(type_, (ONE.cpu_millicores,) * len(names))[index]
                    round_.room.take_cpu(round_.room.index[name], wanted - held)
            round_.grant(job, entry.cpu, "script")


PROFILE = Profile(
    name="script",
    order=Fifo(),
    steps=(Script(HISTORY),),
    place=BestFit(),
    needs=frozenset({"cpu", "stop", "resize"}),
    drifts=True,
    interval_s=1.0,
    learns=True,
)


@dataclass(frozen=True, slots=True)
class Story:
    """What the policy decides, what happens to nodes (seconds, name, whether it is there from then on), and when to
    look."""

    entries: tuple[Entry, ...]
    moments: tuple[float, ...]
    nodes: tuple[tuple[float, str, bool], ...] = ()
    begins_with: tuple[str, ...] = NODES
    memory: MemoryGrowth | None = None
    """What the parameter server uses, with a limit of 512 MiB; else nothing is known of it."""

    @property
    def profile(self) -> Profile:
        return replace(PROFILE, steps=(Script(self.entries),))


CALM = Story(HISTORY, MOMENTS)
ROBBED = Story(
    (Entry(0.0), Entry(30.0, size(1, 2)), Entry(400.0, size(1, 3))),
    moments=(99.0, 160.0, 260.0, 360.0, 460.0),
    nodes=((100.0, "n1", False), (200.0, "n4", True), (300.0, "n2", False), (300.0, "n3", False)),
    begins_with=("n1", "n2", "n3"),
)
"""The job is on n1; when that is lost it goes to n2, and when that and n3 are lost, to n4, which has come meanwhile."""
GROWING = Story(
    (Entry(0.0), Entry(30.0, size(1, 2))),
    moments=(200.0, 600.0, 1000.0),
    memory=MemoryGrowth(0.2 * 2**30, per_h=2**30, most=2 << 30),
)
"""Its memory is raised after about 380 and 830 s."""


@dataclass
class Training(Cluster):
    """The pretended cluster, whose programs train and say how far they are: half a step per second and worker, as
    LINEAR has it for two declared workers and as many steps as seconds."""

    growing: PsMemory | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trained = 0.0
        self.trend = MemoryTrend(lambda: round(self.growing.used(self.trained)) if self.growing is not None else None)

    @property
    def rate(self) -> float:
        """Of the workers that run what the chief runs."""
        chief = next((each for each in self.launchers.values() if each.chief and each.generation is not None), None)
        if chief is None or (chief.saved is not None and chief.saved.state == "saved"):
            return 0.0  # what has saved before its pod ends stands still
        same = [name for name, each in self.launchers.items() if each.generation == chief.generation]
        return 0.5 * sum("-worker-" in name for name in same)

    def tick(self, seconds: float = 1.0) -> None:
        super().tick(seconds)
        self.trained += self.rate * seconds
        self.resumes_at = int(self.trained)
        for each in self.launchers.values():
            each.step = int(self.trained)
        now_s = self.now.timestamp()
        self.trend.sample(now_s, now_s if self.rate == 0 else 0.0)
        told = self.trend.report(None, 0.0)
        self.memory = MemoryUse(**{name: told[name] for name in Figures._fields})

    def reports(self) -> dict[str, Report]:
        steps, rate, loss = int(self.trained), self.rate, CURVE.at(self.trained)
        return {
            name: replace(each, step=steps, steps_per_s=rate, loss=loss) for name, each in super().reports().items()
        }


def live(story: Story = CALM) -> dict[float, Snapshot]:
    """The operator's Snapshots at each moment. Pods of a node that is gone are gone."""
    nodes = {name: node(name, cpu="1") for name in story.begins_with}
    bounds = {f"{PREFIX}max-workers": "4", f"{PREFIX}min-workers": "1", f"{PREFIX}max-ps": "2"}
    memory = {} if story.memory is None else {f"{PREFIX}max-memory": f"ps={story.memory.most}"}
    cluster = Training(
        annotations={**bounds, **memory, f"{PREFIX}checkpoint-dir": "/data", f"{PREFIX}total-steps": "1000000"},
        settings=ReconcileSettings(image="operator:1", wait_for_target=True),
        memory_limit="512Mi" if story.memory is not None else "",
        growing=PsMemory.of(job_of(story), LINEAR.true_speed(job_of(story))),
    )
    found: dict[float, Snapshot] = {}
    known: JobView | None = None
    for second in range(int(story.moments[-1]) + 1):
        for _, name, there in [change for change in story.nodes if change[0] == second]:
            nodes = {n: known for n, known in nodes.items() if n != name}
            if there:
                nodes[name] = node(name, cpu="1")
            for pod in [pod for pod in cluster.pods.values() if pod.node == name and not there]:
                cluster.kill(pod.name)
        known = view_of(
            replace(cluster.job(), created=_time(0)),
            _bound(cluster),
            nodes=nodes,
            now=cluster.now,
            reports=cluster.reports(),
            before=known,
        )
        snapshot = assemble([known], nodes, [], cluster.now.timestamp())
        if float(second) in story.moments:
            found[float(second)] = snapshot
        if known.job is not None:
            for target in decide(schedule(snapshot, story.profile), {known.job.key: known}).values():
                cluster.annotations[TARGET_ANNOTATION] = target.to_json()
        cluster.reconcile()
        cluster.tick()
    return found


def _time(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _bound(cluster: Cluster) -> tuple[Pod, ...]:
    return tuple(
        replace(pod, requests=ONE._replace(cpu_millicores=pod.cpu[0])) if pod.node else pod
        for pod in cluster.pods.values()
    )


def simulated_node(name: str) -> Node:
    return Node(name, EACH, EACH, labels={"zone": name[-1]})


def job_of(story: Story) -> WorkloadJob:
    """The simulated job."""
    server = ONE if story.memory is None else ONE._replace(memory_bytes=512 << 20)
    groups = (
        ReplicaGroup(CHIEF, ONE, 1, 1, 1),
        ReplicaGroup(PS, server, 1, 1, 2),
        ReplicaGroup(WORKER, ONE, 2, 1, 4),
    )
    return WorkloadJob("ns/j", 0.0, groups, duration_s=1e6, loss=CURVE, memory=story.memory)


def simulated(story: Story = CALM) -> dict[float, Snapshot]:
    """The simulator's Snapshots at each moment."""
    work = job_of(story)
    later = replace(work, key="ns/later", submit_s=1e5)  # else nothing would be to come while the only job waits
    nodes = [simulated_node(name) for name in story.begins_with]
    changes = [NodeChange(at, n, simulated_node(n) if there else None) for at, n, there in story.nodes]
    found: dict[float, Snapshot] = {}

    class Watched(Simulation):
        def _decide(self, now: float) -> None:
            if now in story.moments:
                found[now] = self.snapshot
            if now > story.moments[-1]:
                raise KeyboardInterrupt
            super()._decide(now)

    with pytest.raises(KeyboardInterrupt):
        Watched(SimulationInput([work, later], nodes, LINEAR, node_changes=changes), story.profile).run()
    return found


pytestmark = pytest.mark.xdist_group("worlds")  # with test_filled.py: what both worlds tell is played once


@cache
def calm() -> tuple[dict[float, Snapshot], dict[float, Snapshot]]:
    """What the two worlds show of CALM: live, simulated."""
    return live(), simulated()


@pytest.fixture(scope="module")
def worlds() -> tuple[dict[float, Snapshot], dict[float, Snapshot]]:
    return calm()


@pytest.fixture(scope="module")
def robbed() -> tuple[dict[float, Snapshot], dict[float, Snapshot]]:
    return live(ROBBED), simulated(ROBBED)


@pytest.mark.parametrize("moment", MOMENTS)
def test_simulation_and_operator_fill_the_same_snapshot(
    worlds: tuple[dict[float, Snapshot], dict[float, Snapshot]], moment: float
) -> None:
    assert differences(*(snapshots[moment] for snapshots in worlds)) == []


@pytest.mark.parametrize("moment", ROBBED.moments)
def test_simulation_and_operator_lose_and_get_the_same_nodes(
    robbed: tuple[dict[float, Snapshot], dict[float, Snapshot]], moment: float
) -> None:
    assert differences(*(snapshots[moment] for snapshots in robbed)) == []


def test_a_robbed_job_is_where_there_are_nodes(
    robbed: tuple[dict[float, Snapshot], dict[float, Snapshot]],
) -> None:
    there = [{n for names in robbed[1][m].jobs["ns/j"].placement.values() for n in names} for m in ROBBED.moments]
    assert there == [{"n1"}, {"n2"}, {"n2"}, {"n4"}, {"n4"}]


def test_the_history_says_something(worlds: tuple[dict[float, Snapshot], dict[float, Snapshot]]) -> None:
    """Each entry has come true before the next one."""
    for begun, (entry, moment) in enumerate(zip(HISTORY, MOMENTS, strict=True), 1):
        job = worlds[0][moment].jobs["ns/j"]
        assert job.memory == {"script.begun": begun}
        assert job.counts == {type_: count for type_, count in entry.counts.items() if count}, entry
        assert job.cpu == entry.cpu
        assert job.migrations == entry.moves


def test_memory_is_raised_alike() -> None:
    """What plans count for the parameter server; live with the memory of its launcher."""

    def asked(snapshots: dict[float, Snapshot]) -> list[int]:
        groups = [snapshots[moment].jobs["ns/j"].spec.group(PS) for moment in GROWING.moments]
        return [group.request.memory_bytes >> 20 for group in groups if group is not None]

    launcher = ONE.memory_bytes >> 20
    assert [each - launcher for each in asked(live(GROWING))] == asked(simulated(GROWING)) == [512, 640, 768]

"""What a round of the scheduling loop computes: what is known of each job, and what the profile decides. Pure.

All of it grows with jobs or replicas, so the loop runs it in a thread.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from elastic_tfjob.controller.objects.cluster import ForeignPod, Node
from elastic_tfjob.controller.objects.injection import DEFAULT_RESOURCES, ContainerResources
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.target import Target
from elastic_tfjob.controller.objects.unfit import Pair, Unfit, active, judge, verdict_due_s
from elastic_tfjob.controller.schedule.lending import NOTHING_LENT, Cluster, Lending, lending
from elastic_tfjob.controller.schedule.overdue import StopOverdue
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob, scheduled_job
from elastic_tfjob.controller.schedule.snapshot import assemble
from elastic_tfjob.controller.schedule.targets import decide
from elastic_tfjob.scheduling.core import schedule
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.snapshot import Snapshot
from elastic_tfjob.speed.history import History


@dataclass(frozen=True, slots=True)
class Seen:
    """What the caches hold of one job: all that a ScheduledJob is made from."""

    job: Job | None
    pods: tuple[Pod, ...]
    reports: Mapping[str, Report]
    before: ScheduledJob | None
    unfit: Mapping[Pair, Unfit]


@dataclass(frozen=True, slots=True)
class Described:
    """A job's ScheduledJob, what is known of nodes that it cannot have, and in how many seconds there may be more to
    know; and why it is left out, if it is."""

    found: ScheduledJob
    unfit: Mapping[Pair, Unfit]
    again_s: float | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """What was decided, from what; and for which jobs words for it failed. `lent`: how the nodes of pools stand."""

    snapshot: Snapshot
    targets: Mapping[str, Target]
    failed: Mapping[str, Exception]
    plan: Plan
    lent: Lending = NOTHING_LENT


def describe_all(
    seen: Mapping[Key, Seen],
    nodes: Mapping[str, Node],
    now: datetime,
    everything: bool,
    priorities: Mapping[str, int],
    *,
    cordoned: Collection[str],
    failed: Mapping[str, int] | None = None,
    barred: Collection[str] = (),
    configured: ContainerResources = DEFAULT_RESOURCES,
) -> dict[Key, Described]:
    """Each job's ScheduledJob. One that cannot be described is not decided for, and all that its pods take counts.
    `failed`: promises that did, by namespace; `barred`: uids of jobs whose pods cannot be made. `configured`: what a
    container that is injected asks for."""
    now_s = now.timestamp()
    described: dict[Key, Described] = {}
    for key, each in seen.items():
        try:
            unfit = judge(each.unfit, each.pods, now_s)
            found = scheduled_job(
                each.job,
                each.pods,
                nodes=nodes,
                now=now,
                all_jobs=everything,
                reports=each.reports,
                priorities=priorities,
                before=each.before,
                unfit=active(unfit, now_s),
                cordoned=cordoned,
                failed=(failed or {}).get(key[0], 0),
                barred=each.job is not None and each.job.uid in barred,
                configured=configured,
            )
            described[key] = Described(found, unfit, verdict_due_s(each.pods, now_s))
        except Exception as error:
            described[key] = Described(
                replace(scheduled_job(None, each.pods, nodes=nodes, now=now), source=each.job), {}, None, error
            )
    return described


def plan_round(
    candidates: Mapping[str, ScheduledJob],
    nodes: Mapping[str, Node],
    foreign: Iterable[ForeignPod],
    profile: Profile,
    *,
    now_s: float,
    previous: Snapshot | None,
    history: History,
    cluster: Cluster | None = None,
) -> Planned:
    """What the profile decides for these jobs, by their keys in the Snapshot, and for which that failed. `cluster`:
    what is known of loans, where there may be any."""
    lent = NOTHING_LENT if cluster is None else lending(cluster, now_s)
    snapshot = assemble(candidates.values(), nodes, foreign, now_s, previous, history=history, lending=lent)
    if lent.overdue:
        leaving = {name for name, found in candidates.items() if _leaving(found, lent.overdue)}
        profile = replace(profile, lend=StopOverdue(profile.lend, lent.overdue, frozenset(leaving)))
    plan = schedule(snapshot, profile)
    failed: dict[str, Exception] = {}
    decided = {name: found for name, found in candidates.items() if found.job is not None}
    return Planned(snapshot, decide(plan, decided, failed.__setitem__), failed, plan, lent)


def _leaving(found: ScheduledJob, nodes: Collection[str]) -> bool:
    """Whether a job has pods on these nodes that nothing has told to end yet: one that is past its preparation leaves
    at once, and a stop would come after that."""
    goes = found.state is not None and found.state.phase not in ("Stable", "Preparing")
    return not goes and any(node in nodes for node in (*found.taken, *found.others))

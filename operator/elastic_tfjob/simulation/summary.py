"""The numbers of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from elastic_tfjob.simulation.calibration import by_cause
from elastic_tfjob.simulation.outcome import JobRecord, Outcome
from elastic_tfjob.speed.finish import FinishTime


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in seconds, utilisations and `deadline_met` as fractions; None where a number has no meaning.

    JCTs are over finished jobs. Queueing is all the time a job held nothing, of finished jobs. Utilisation is what
    jobs held of the cluster from the first submission to the last finish, `cpu_used` what they used of its CPU (where
    the speed model knows). `deadline_met` is of all jobs with a deadline. `forecast_error` is the median, over jobs
    whose finish was forecast when they started, of |forecast - finish| / (finish - start); `forecast_within` how many
    of them finished between the ends of the forecast's 90 % interval. `cpu_s` is process CPU time of the run, the one
    number that differs from run to run.

    `tardiness_s` is the mean, over finished jobs with a deadline, of the seconds after it. `wasted_cpu` is the part of
    the CPU held that was not used. `losers` counts jobs that take longer than under the first profile of the run (same
    seed), by more than a hundredth, `worst_loser` is by how much the worst does; None for the first profile itself.
    `changes` counts what plans changed, by cause. `calibration` is what came of them, by cause and of `all`: of
    changes after which the job trained for a minute or more, the median of |measured / expected speed - 1| (`error`)
    and of measured / expected (`ratio`), and their `count`. `bound` is what no schedule's mean JCT is below (bound.py;
    None where that is not known, or not all jobs finished). `preempted_jobs` is how many jobs were stopped at least
    once, `lost_work_s` what it took to make the steps that were lost.

    With a pool that lends nodes: `reclaim_preemptions` counts stops because a node went back, `scaled_in` jobs that
    shrank for that instead; `loaned_node_hours` is how long nodes were lent, `loaned_used_hours` how long jobs were on
    them; `unmet_inference` is the node-hours that the pool waited for nodes that it wanted back, and
    `reclaim_latency_s` the same per node that went back.
    """

    profile: str
    seed: int
    jobs: int
    finished: int
    avg_jct_s: float | None
    median_jct_s: float | None
    p99_jct_s: float | None
    avg_queue_s: float | None
    makespan_s: float | None
    gpu_utilisation: float | None
    cpu_utilisation: float | None
    cpu_used: float | None
    deadline_met: float | None
    forecast_error: float | None
    forecast_within: float | None
    rescales: int
    preemptions: int
    migrations: int
    rounds: int
    cpu_s: float
    oracle: bool
    partial: bool
    p95_jct_s: float | None = None
    tardiness_s: float | None = None
    wasted_cpu: float | None = None
    bound: float | None = None
    losers: int | None = None
    worst_loser: float | None = None
    changes: Mapping[str, int] = field(default_factory=dict)
    calibration: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    preempted_jobs: int = 0
    lost_work_s: float = 0.0
    reclaim_preemptions: int | None = None
    scaled_in: int | None = None
    loaned_node_hours: float | None = None
    loaned_used_hours: float | None = None
    unmet_inference: float | None = None
    reclaim_latency_s: float | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def summarise(outcome: Outcome, jobs: int) -> Summary:
    """Of one run on a workload of `jobs` jobs."""
    records = outcome.records
    done = [r for r in records if r.jct_s is not None]
    jcts = np.array([r.jct_s for r in done])
    makespan = outcome.last_s - outcome.first_s
    errors, within = [], []
    for r in done:
        if r.finish_s is not None and r.start_s is not None and (f := forecast_of(r)) is not None:
            errors.append(abs(f.expected_s - r.finish_s) / max(r.finish_s - r.start_s, 1e-9))
            within.append(f.earliest_s - 1e-6 <= r.finish_s <= f.latest_s + 1e-6)
    late = [max(0.0, r.finish_s - r.deadline_s) for r in records if r.finish_s is not None and r.deadline_s is not None]
    with_deadline = [r for r in records if r.deadline_s is not None]
    return Summary(
        profile=outcome.profile,
        seed=outcome.seed,
        jobs=jobs,
        finished=len(done),
        avg_jct_s=float(jcts.mean()) if done else None,
        median_jct_s=float(np.median(jcts)) if done else None,
        p99_jct_s=float(np.percentile(jcts, 99)) if done else None,
        avg_queue_s=float(np.mean([r.queue_s for r in done])) if done else None,
        makespan_s=makespan if done else None,
        gpu_utilisation=_share(outcome.accelerator_area, outcome.accelerator_capacity * makespan),
        cpu_utilisation=_share(outcome.cpu_area, outcome.cpu_capacity * makespan),
        cpu_used=_share(outcome.cpu_used_area or 0.0, outcome.cpu_capacity * makespan),
        forecast_error=float(np.median(errors)) if errors else None,
        forecast_within=sum(within) / len(within) if within else None,
        deadline_met=sum(map(met, with_deadline)) / len(with_deadline) if with_deadline else None,
        rescales=sum(r.rescales for r in records),
        preemptions=sum(r.preemptions for r in records),
        migrations=sum(r.migrations for r in records),
        rounds=outcome.rounds,
        cpu_s=round(outcome.cpu_s, 3),
        oracle=outcome.oracle,
        partial=outcome.partial,
        p95_jct_s=float(np.percentile(jcts, 95)) if done else None,
        tardiness_s=float(np.mean(late)) if late else None,
        wasted_cpu=_wasted(outcome),
        changes=dict(sorted(outcome.changes.items())),
        calibration={cause: asdict(found) for cause, found in by_cause(outcome.compared).items()},
        preempted_jobs=sum(r.preemptions > 0 for r in records),
        lost_work_s=sum(r.lost_s for r in records),
        **_of_loans(outcome),
    )


def _of_loans(outcome: Outcome) -> dict[str, Any]:
    if not outcome.pool:
        return {}
    return {
        "reclaim_preemptions": outcome.changes["reclaim"],
        "scaled_in": outcome.scaled_in,
        "loaned_node_hours": outcome.loaned_s / 3600,
        "loaned_used_hours": outcome.loaned_used_s / 3600,
        "unmet_inference": outcome.unmet_s / 3600,
        "reclaim_latency_s": outcome.unmet_s / outcome.returned if outcome.returned else None,
    }


LOSES = 0.01
"""Who takes longer by no more than this part has not lost anything."""


def with_losers(summary: Summary, outcome: Outcome, beside: Outcome, loses: float = LOSES) -> Summary:
    """The summary of `outcome` with who takes longer than in `beside` by more than this part."""
    usual = {r.key: r.jct_s for r in beside.records if r.jct_s}
    more = [r.jct_s / usual[r.key] - 1 for r in outcome.records if r.jct_s is not None and r.key in usual]
    return replace(summary, losers=sum(each > loses for each in more), worst_loser=max(more, default=None))


def beside_the_first(summaries: Sequence[Summary], outcomes: Sequence[Outcome]) -> list[Summary]:
    """With who takes longer than under the first profile of the same seed."""
    first: dict[int, Outcome] = {}
    return [
        summary
        if first.setdefault(outcome.seed, outcome) is outcome
        else with_losers(summary, outcome, first[outcome.seed])
        for summary, outcome in zip(summaries, outcomes, strict=True)
    ]


def _wasted(outcome: Outcome) -> float | None:
    if outcome.cpu_used_area is None or outcome.cpu_area <= 0:
        return None
    return max(0.0, 1 - outcome.cpu_used_area / outcome.cpu_area)


def forecast_of(record: JobRecord) -> FinishTime | None:
    """The finish that was forecast when the job started; None where nothing told one."""
    found = record.forecast.finish if record.forecast is not None else None
    return found if found is not None and found.expected_s < inf else None


def met(record: JobRecord) -> bool:
    """Whether the job finished by its deadline."""
    return record.deadline_s is not None and record.finish_s is not None and record.finish_s <= record.deadline_s


def _share(used: float, all_: float) -> float | None:
    """None where nothing of that resource was ever asked for."""
    return used / all_ if all_ > 0 and used > 0 else None


COLUMNS = (
    *("profile", "seed", "job_id", "submit_s", "start_s", "finish_s", "jct_s", "queue_s", "executed_s"),
    *("preemptions", "rescales", "migrations", "deadline_s", "deadline_met", "forecast_s"),
)


def job_rows(outcome: Outcome) -> Sequence[tuple[object, ...]]:
    """One row per job in the order of COLUMNS."""
    return [
        (
            *(
                outcome.profile,
                outcome.seed,
                r.key,
                r.submit_s,
                r.start_s,
                r.finish_s,
                r.jct_s,
                r.queue_s,
                r.executed_s,
            ),
            *(r.preemptions, r.rescales, r.migrations, r.deadline_s, None if r.deadline_s is None else met(r)),
            None if (f := forecast_of(r)) is None else f.expected_s,
        )
        for r in outcome.records
    ]

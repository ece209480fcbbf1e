"""The numbers of a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from elastic_tfjob.simulation.engine import JobRecord, Outcome


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in seconds, utilisations and `deadline_met` as fractions; None where a number has no meaning.

    JCTs are over finished jobs. Queueing is all the time a job held nothing, of finished jobs. Utilisation is what
    jobs held of the cluster from the first submission to the last finish, `cpu_used` what they used of its CPU (where
    the world knows that). `deadline_met` is of all jobs with a deadline. `cpu_s` is process CPU time of the run, the
    one number that differs from run to run.
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
    rescales: int
    preemptions: int
    migrations: int
    rounds: int
    cpu_s: float
    oracle: bool
    partial: bool

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def summarise(outcome: Outcome, jobs: int) -> Summary:
    """Of one run on a workload of `jobs` jobs."""
    records = outcome.records
    done = [r for r in records if r.jct_s is not None]
    jcts = np.array([r.jct_s for r in done])
    makespan = outcome.last_s - outcome.first_s
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
        deadline_met=sum(map(met, with_deadline)) / len(with_deadline) if with_deadline else None,
        rescales=sum(r.rescales for r in records),
        preemptions=sum(r.preemptions for r in records),
        migrations=sum(r.migrations for r in records),
        rounds=outcome.rounds,
        cpu_s=round(outcome.cpu_s, 3),
        oracle=outcome.oracle,
        partial=outcome.partial,
    )


def met(record: JobRecord) -> bool:
    """Whether the job finished by its deadline."""
    return record.deadline_s is not None and record.finish_s is not None and record.finish_s <= record.deadline_s


def _share(used: float, all_: float) -> float | None:
    """None where nothing of that resource was ever asked for."""
    return used / all_ if all_ > 0 and used > 0 else None


COLUMNS = (
    *("profile", "seed", "job_id", "submit_s", "start_s", "finish_s", "jct_s", "queue_s", "executed_s"),
    *("preemptions", "rescales", "migrations", "deadline_s", "deadline_met"),
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
        )
        for r in outcome.records
    ]

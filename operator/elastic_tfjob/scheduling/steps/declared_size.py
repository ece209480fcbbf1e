"""Steps for jobs of a fixed size: each job gets its declared size, or waits."""

from dataclasses import dataclass
from math import inf

from elastic_tfjob.scheduling.plan import BEHIND
from elastic_tfjob.scheduling.queue import Entry
from elastic_tfjob.scheduling.reasons import Reason
from elastic_tfjob.scheduling.resources import RESOURCE_WORDS
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.steps.open_jobs import Claims, Terms, claims_of, open_jobs, reachable_total, unsized

END: Entry = (inf, (), inf, 0, "")


@dataclass(frozen=True, slots=True)
class FixedSize:
    """Start waiting jobs in order. The first that does not fit blocks all later jobs; with `backfill` later jobs start
    if they fit (without a reservation for the blocked job, so a large job can starve).
    """

    backfill: bool = False

    def __call__(self, round_: Round) -> None:
        queue = round_.waiting()
        for entry in queue:
            job = round_.job(entry[4])
            if round_.start(job, job.spec.declared, Reason("fits")):
                continue
            round_.refuse(job, lacks(job, round_))
            if round_.in_cooldown(job):
                continue
            if not self.backfill:
                round_.held_back = Reason("waits-behind", {"job": job.key})
                return
            queue.drop()


def preemptive(round_: Round) -> None:
    """The first jobs in order that fit the totals of all nodes run; other running jobs are preempted. A job that cannot
    be stopped (yet) is ignored, and so is a waiting one that may not be resumed yet.

    Running jobs stay where they are. A job within the totals that finds no nodes waits and keeps its claim, as in
    Lucid's and Tiresias' simulators.
    """
    if not len(round_.waiting_queue):
        return
    jobs = round_.snapshot.jobs
    terms = Terms(round_.rules.stop_cooldown_s, resizes=False, waiting=False)
    running = open_jobs(round_, Claims, terms, unsized)
    # Jobs share what is free, and what preemptible jobs hold.
    claims, total = claims_of(round_, running)
    cpu, memory, accelerators = reachable_total(round_).plus(total)[:3]
    preempted: list[Job] = []
    starting: list[Job] = []
    queue = round_.waiting()
    head = queue.peek()
    for k, entry in enumerate((*running.entries, END)):
        while head is not None and head < entry:
            job = jobs[head[4]]
            demand = job.spec.declared_demand
            if round_.in_cooldown(job):
                round_.refuse(job, BEHIND)
            elif demand[2] <= accelerators and demand[0] <= cpu and demand[1] <= memory:
                cpu -= demand[0]
                memory -= demand[1]
                accelerators -= demand[2]
                starting.append(job)
            else:
                round_.refuse(job, Reason("whole-cluster"))
                queue.drop()
            queue.advance()
            head = queue.peek()
        if entry is END:
            break
        demand = claims[k]
        if demand[2] <= accelerators and demand[0] <= cpu and demand[1] <= memory:
            cpu -= demand[0]
            memory -= demand[1]
            accelerators -= demand[2]
        else:
            preempted.append(running.jobs[k])
    for job in preempted:
        round_.stop(job, Reason("others-first"))
    for job in starting:
        if not round_.start(job, job.spec.declared, Reason("first")):
            round_.refuse(job, lacks(job, round_))


def lacks(job: Job, round_: Round) -> Reason:
    """What the job's declared size lacks: a total, or room on single nodes."""
    want, free = job.spec.declared_demand, reachable_total(round_)
    short: dict[str, int] = {}
    for name, needed, there in zip(RESOURCE_WORDS, want, free, strict=True):
        if needed > there:
            short |= {name: needed, f"{name}_free": there}
    return Reason("short", short) if short else Reason("no-nodes")

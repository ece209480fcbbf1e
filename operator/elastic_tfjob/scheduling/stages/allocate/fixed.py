"""Every job gets its declared size or waits."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.stages.allocate.refusal import lacks


@dataclass(frozen=True, slots=True)
class FixedSize:
    """In order, as long as they fit. Head-of-line: the first that does not fit holds back all behind it;
    with `backfill` those behind it start if they fit (without reservation: a wide job can starve).
    """

    backfill: bool = False
    drifts: bool = False

    def allocate(self, round_: Round) -> None:
        queue = round_.waiting()
        for entry in queue:
            job = round_.job(entry[4])
            if round_.start(job, job.spec.declared, "next in order and it fits"):
                continue
            round_.refuse(job, lacks(job, round_))
            if not self.backfill:
                round_.held_back = f"waits behind {job.key}, which does not fit yet"
                return
            queue.drop()


@dataclass(frozen=True, slots=True)
class Preemptive:
    """The first jobs in order that fit the cluster's totals run; a running job that is not among them is preempted.

    Jobs that run stay where they are. A job within the totals that finds no nodes waits and keeps its claim, as in
    Lucid's and Tiresias' simulators.
    """

    drifts: bool = False

    def allocate(self, round_: Round) -> None:
        room, now, order = round_.room, round_.now, round_.profile.order
        if not len(round_.waiting_queue):
            return
        cpu, memory, accelerators = room.total
        for job in round_.running.values():
            if job.phase == "rescaling":
                demand = job.spec.demand(job.counts)
                cpu, memory, accelerators = cpu - demand.cpu, memory - demand.memory, accelerators - demand.accelerators
        preempted: list[Job] = []
        starting: list[Job] = []
        queue = round_.waiting()
        jobs = round_.snapshot.jobs
        running = iter(round_.running_in_order())
        run = next(running, None)
        while True:
            head = queue.peek()
            waits = head is not None and (run is None or head < run)
            if waits:
                assert head is not None
                job = jobs[head[4]]
            elif run is not None:
                job = jobs[run[4]]
            else:
                break
            demand = job.spec.demand(job.spec.declared)
            fits = demand.accelerators <= accelerators and demand.cpu <= cpu and demand.memory <= memory
            if fits:
                cpu, memory, accelerators = cpu - demand.cpu, memory - demand.memory, accelerators - demand.accelerators
            if waits:
                if fits:
                    starting.append(job)
                else:
                    round_.refuse(job, "jobs before it in the order take the whole cluster")
                    queue.drop()
                queue.advance()
            else:
                if not fits:
                    preempted.append(job)
                run = next(running, None)
        for job in preempted:
            round_.stop(job, "preempted: jobs before it in the order take the whole cluster")
        promotes = getattr(order, "promotes", None)
        for job in starting:
            promoted = promotes is not None and promotes(job, now)
            if not round_.start(job, job.spec.declared, "among the first in order", promoted=promoted):
                round_.refuse(job, lacks(job, round_))

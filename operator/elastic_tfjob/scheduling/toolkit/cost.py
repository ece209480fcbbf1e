"""What a change costs a job, in seconds of training lost, and whether it is worth that. Every profile's to use."""

from dataclasses import dataclass

from elastic_tfjob.scheduling.snapshot import AS_REQUESTED, Cpu, Job

__all__ = ["ChangeCosts", "time_left_s"]


@dataclass(frozen=True, slots=True)
class ChangeCosts:
    """`pause_s`: what a change of size or nodes stops training for. `start_cpu_s`: CPU time of starting one process of
    the training program. `lost_s`: training since the newest checkpoint that a stop loses, 0 where it is confirmed.
    `start_kept_cpu_s`: CPU time of starting one in a replica that stays, of a job with a warm start."""

    pause_s: float = 1.0
    start_cpu_s: float = 12.0
    lost_s: float = 0.0
    start_kept_cpu_s: float = 12.0

    def starting_s(self, job: Job) -> float:
        """Seconds until the slowest replica's program has started, with the CPU that it holds or requests."""
        return _takes_s(job, self.start_cpu_s, job.cpu)

    def starting_as_requested_s(self, job: Job) -> float:
        """The same, with the CPU that they request: what they hold beside that was only lent."""
        return _takes_s(job, self.start_cpu_s, AS_REQUESTED)

    def rescale_s(self, job: Job, saved: float = 0.0) -> float:
        """The pause, and the new program's start beside the running one, which takes its CPU time at the pace of the
        slowest replica: half of what is trained meanwhile, and of the other half the part `saved` that the new size
        would have saved. One that has yet to make a step trains nothing meanwhile: its start was in vain.

        With a warm start the replicas that stay lose that for their own short start alone. Those that are added start
        on CPU of their own: until they have, the new size saves nothing yet."""
        starting_s = self.starting_s(job)
        beside_s = (
            _takes_s(job, min(self.start_cpu_s, self.start_kept_cpu_s), job.cpu) if job.warm_start else starting_s
        )
        part = (1 + saved) / 2 if job.steps_per_s > 0 else 1.0
        return self.pause_s + beside_s * part + (starting_s - beside_s) * saved

    def move_s(self, job: Job) -> float:
        """Of replicas to other nodes: as a rescale that saves nothing by itself."""
        return self.rescale_s(job)

    def stop_s(self, job: Job) -> float:
        """Of stopping the job and starting it again later, without the time that it waits: nothing is trained while its
        programs start, and what no checkpoint has is trained again."""
        return self.pause_s + self.starting_s(job) + self.lost_s

    def worth(self, job: Job, saved: float, now: float) -> bool:
        """Whether a rescale costs less than it saves of the time left; with 0 saved: than the time left itself."""
        return time_left_s(job, now) * (saved or 1.0) > self.rescale_s(job, saved)


def _takes_s(job: Job, cpu_s: float, held: Cpu) -> float:
    """Seconds that the slowest replica takes for this CPU time, with the CPU that it holds or else requests."""
    spec = job.spec
    types = job.placement or spec.minimum
    slowest = min((min(held.get(t, ()), default=0) or spec.requested_cpu(t) for t in types), default=0)
    return 1000 * cpu_s / slowest if slowest else 0.0


def time_left_s(job: Job, now: float) -> float:
    """Seconds that the job has left; one of unknown length is expected to run as long again as it has run."""
    ran = job.executed_s + max(0.0, now - job.since_s)
    left: float | None = None
    if job.spec.total_steps is not None:
        left = job.remaining_s(now)
    elif job.spec.duration_s is not None:
        left = max(0.0, job.spec.duration_s - ran)
    return ran if left is None else left

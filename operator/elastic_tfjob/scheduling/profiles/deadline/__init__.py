"""deadline: a profile with which as many jobs as possible meet their deadlines, each with the least resources. Spare
capacity goes to the jobs that gain most speed from it. Idle CPU is then lent in place.

After the QoS-oriented scheduler and autoscaler of Xing et al. (IJCNN'19), with the admission of ElasticFlow (Gu et al.,
ASPLOS'23) and the exchange of Moore (1968). See docs/designs/deadline.md.
"""

from dataclasses import dataclass, replace
from typing import Final

from elastic_tfjob.scheduling.core import Stages, needs
from elastic_tfjob.scheduling.orders import EarliestDeadlineFirst
from elastic_tfjob.scheduling.profile import Profile, Step
from elastic_tfjob.scheduling.profiles.deadline.deadline_round import DeadlineRound, DeadlineSettings
from elastic_tfjob.scheduling.profiles.deadline.plan import carry_out, guarantee_deadlines, probe
from elastic_tfjob.scheduling.profiles.deadline.spare_capacity import CpuRaises, cpu_for_late_jobs
from elastic_tfjob.scheduling.room import lacking
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.rules import Order, OrderKey
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.scheduling.steps.cpu_in_place import (
    CpuInPlace,
    CpuRule,
    boot,
    count_as_free,
    give_back_idle,
    give_back_used,
    grant,
    keep_for_leaving,
    raise_busy,
)
from elastic_tfjob.scheduling.steps.repair import sharing

__all__ = ["DeadlineParameters"]

CPU: Final = "deadline CPU"
LENDING = (keep_for_leaving, cpu_for_late_jobs, give_back_used, raise_busy, boot, give_back_idle, grant)
"""The steps that lend CPU, in this order."""


@dataclass(frozen=True, slots=True)
class EarliestDeadline(Order):
    """Jobs in the order of their deadlines. A round is due when a first start has settled, so that its measured speed
    counts."""

    settle_s: float

    def key(self, job: Job, now: float) -> OrderKey:
        return EarliestDeadlineFirst().key(job, now)

    def next_jump_s(self, job: Job, now: float) -> float | None:
        settled = job.since_s + self.settle_s
        return settled if job.placement and job.speed is None and settled > now else None


def _in_place(round_: Round) -> CpuInPlace:
    return CpuInPlace(round_, CpuRule())


class DeadlineParameters(DeadlineSettings):
    """Deadlines are met with the least resources; other capacity goes by marginal gain."""

    def stages(self) -> Stages:
        steps: tuple[Step, ...] = (self._choose_sizes,)
        # Without a known speed, the profile uses the user's estimate, the CPU use of replicas, and jobs of the same
        # name.
        inputs = needs("deadline", "speed", "duration", "service", "use", "history") | needs("stop")
        if self.lend_cpu:
            before, *after = (sharing(step, CPU, _in_place) for step in (count_as_free, *LENDING))
            steps, inputs = (before, *steps, *after), inputs | needs("cpu")
        return Stages(EarliestDeadline(self.settle_s), steps, inputs, drifts=self.lend_cpu)

    def _choose_sizes(self, round_: Round) -> None:
        """Choose sizes with CPU in place preferred over resizes. If a job with an earlier deadline, or one that must
        run to show its speed, then finds no nodes, sizes are chosen again without CPU in place. This can happen because
        capacity for these jobs is reserved in the totals only, not on nodes."""
        deadline_round = DeadlineRound(round_, self)
        raises = CpuRaises(round_.shared(CPU, lambda: _in_place(round_)), deadline_round) if self.lend_cpu else None
        probe(deadline_round)
        guarantee_deadlines(deadline_round, raises)
        promised = [
            (job_case, job_case.wanted or {})
            for job_case in deadline_round.cases
            if job_case.booking is not None or job_case.probe
        ]
        undo, refusals = round_.savepoint(), dict(round_.refusals)
        carry_out(deadline_round)
        if raises is None or not any(
            lacking(round_.placement(job_case.job), wanted) and raises.came_before(job_case)
            for job_case, wanted in promised
        ):
            return
        undo()
        round_.refusals = refusals
        raises.withdraw_all()
        deadline_round = DeadlineRound(round_, self)
        probe(deadline_round)
        guarantee_deadlines(deadline_round)
        carry_out(deadline_round)

    def profile(self, name: str) -> Profile:
        # The steps themselves check the minimum gain. The check common to all profiles uses measured speeds only, with
        # which a job that has run at one size would never grow.
        return replace(super().profile(name), min_gain=0.0)

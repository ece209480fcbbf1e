"""All that the scheduling loop tells jobs: of deadlines, of their training loss, why one is not scheduled, and why one
is neither stopped nor moved.

None of it decides anything, and nothing that fails here holds up a target.
"""

import asyncio
import time
from collections.abc import Mapping, Set
from typing import Final

import structlog

from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.events import Recorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt, trace
from elastic_tfjob.controller.objects.job import Job
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.schedule.losses import Losses
from elastic_tfjob.controller.schedule.request import JobRequest
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob
from elastic_tfjob.controller.schedule.verdicts import Verdicts
from elastic_tfjob.scheduling.forecasts import Forecast
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.reasons import Code, Reason

__all__ = ["Notices"]

log = structlog.get_logger(__name__)

# Characters of an error that are told.
_WORDS: Final = 500
# What a plan expects is told for so long, in seconds: some profiles plan every half hour only.
_BELIEVED_S: Final = 3600.0


class Notices:
    """`follow` is given each job that is new or has changed, and `look` is called in each round."""

    def __init__(self, api: ApiClient, jobs: Informer[Job], recorder: Recorder) -> None:
        self._jobs = jobs
        self._recorder = recorder
        # By job its uid and the codes of what it was told of what it keeps: a profile may want the same in each round.
        self._kept: dict[Key, tuple[str, set[Code]]] = {}
        self._verdicts = Verdicts(api, jobs, recorder)
        self._losses = Losses(api, jobs, recorder)
        # Which jobs, by uid, have their checkpoints in a place of a namespace; and where each job has them.
        self._places: dict[tuple[str, str], dict[Key, str]] = {}
        self._place_of: dict[Key, tuple[str, str]] = {}
        self._plan: Plan | None = None

    def follow(self, key: Key, job: Job | None) -> None:
        """The job as it is now; None: it is gone."""
        self._verdicts.follow(key, job)
        if job is None:
            self._losses.forget(key)
            self._kept.pop(key, None)
            self._leave_place(key)

    def described(self, scheduled: ScheduledJob) -> None:
        """Tell what is known of a job that the profile is to decide for, or has been."""
        if scheduled.source is not None:
            self._take_place(scheduled.source, scheduled.terms)
        if scheduled.source is None or not scheduled.followed:
            return
        for problem in scheduled.terms.problems if scheduled.terms is not None else ():
            self._recorder.record(scheduled.source, Event("Warning", "KueueQuota", problem))
        if scheduled.job is None and scheduled.awaited_since_s is not None:
            nodes = ", ".join(sorted({node for node in scheduled.awaited.values() if node})) or "any node"
            message = f"Its pods did not come to {nodes}: the room that was kept for them there is given to others"
            self._recorder.record(scheduled.source, Event("Warning", "NotScheduled", message))

    def _take_place(self, job: Job, terms: JobRequest | None) -> None:
        """Tell both jobs, once, where two of a namespace write their checkpoints to one place."""
        place = terms.place if terms is not None else None
        if place is None or job.deleting:
            self._leave_place(job.key)
            return
        where = job.namespace, place
        if self._place_of.get(job.key) != where:
            self._leave_place(job.key)
        there = self._places.setdefault(where, {})
        if there.get(job.key) == job.uid:
            return
        there[job.key], self._place_of[job.key] = job.uid, where
        others = [other for key in there if key != job.key and (other := self._jobs.one(key)) is not None]
        for one, other in [(job, other) for other in others[:1]] + [(other, job) for other in others[:1]]:
            message = (
                f"TFJob {other.name} has its checkpoints in the same place ({place[:_WORDS]}). Each job needs a "
                "checkpoint-dir of its own: while one of them trains, the other one's program ends with an error"
            )
            self._recorder.record(one, Event("Warning", "CheckpointDirShared", message))

    def _leave_place(self, key: Key) -> None:
        if (where := self._place_of.pop(key, None)) is not None:
            there = self._places[where]
            there.pop(key, None)
            if not there:
                del self._places[where]

    def by_needs(self, key: Key, found: ScheduledJob, now_s: float, needs: Set[str]) -> None:
        """The profile goes by the training loss of this job, or gives CPU by what it has left and nothing else."""
        if "loss" in needs or ({"use", "move", "cpu"} <= needs and "deadline" not in needs):
            self._losses.look(key, found, now_s, by_loss="loss" in needs)

    def left_out(self, job: Job, error: BaseException) -> None:
        """Nothing is decided for a job, as that failed."""
        message = f"Left out of scheduling: {str(error) or type(error).__name__}"[:_WORDS]
        self._recorder.record(job, Event("Warning", "NotScheduled", message))

    def forecast(self, key: Key) -> Forecast | None:
        """What the last plan expects of a job that holds nodes, to be told to people. None: no plan knows of it, or
        the last one is old, as rounds fail."""
        plan = self._plan
        if plan is None or time.time() - plan.snapshot.now > _BELIEVED_S:
            return None
        try:
            return plan.forecasts.of_holder(f"{key[0]}/{key[1]}")
        except Exception as error:
            log.error("bug: no forecast", job=key, error=excerpt(error), trace=trace(error))
            return None

    async def look(self, plan: Plan | None, group: asyncio.TaskGroup) -> None:
        """Tell what is new by the plan of this round (None: there is none), with writes in `group`."""
        self._plan = plan
        try:
            self._tell_kept(plan.kept if plan is not None else {})
            self._losses.tell(group)
            await self._verdicts.look(plan, group)
        except Exception as error:
            log.error("bug: not told what there is to tell", error=excerpt(error), trace=trace(error))

    def _tell_kept(self, kept: Mapping[str, Reason]) -> None:
        """Each reason once."""
        for name, why in kept.items():
            namespace, _, job_name = name.partition("/")
            key = namespace, job_name
            if (job := self._jobs.one(key)) is None:
                continue
            uid, told = self._kept.get(key, ("", set[Code]()))
            if uid != job.uid:
                told = set()
                self._kept[key] = job.uid, told
            if why.code not in told:
                told.add(why.code)
                message = f"The profile would stop or move this job, which keeps what it has: {why}"
                self._recorder.record(job, Event("Normal", "NotStopped", message))

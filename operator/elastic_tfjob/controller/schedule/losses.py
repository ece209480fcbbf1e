"""What a job is told where the profile goes by its training loss (it has none, it is no number, or it rises), or by
what it has left (nobody knows how much that is, or what it holds cannot be changed).

Each thing is told once, when it is stored that it was: so another operator does not tell it again.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import structlog

from elastic_tfjob.api.limits import MAX_ANNOTATION_BYTES
from elastic_tfjob.controller.job.decision import Event
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.events import Recorder
from elastic_tfjob.controller.kube.informer import Informer
from elastic_tfjob.controller.kube.supervise import excerpt
from elastic_tfjob.controller.objects import job as objects
from elastic_tfjob.controller.objects.annotations import bytes_of
from elastic_tfjob.controller.objects.parsing import Key
from elastic_tfjob.controller.objects.told import TOLD_ANNOTATION, Topic, told, told_json
from elastic_tfjob.controller.schedule.annotation_writer import AnnotationWriter, Failure, Write
from elastic_tfjob.controller.schedule.scheduled_job import ScheduledJob
from elastic_tfjob.controller.schedule.turns import in_turn
from elastic_tfjob.scheduling.snapshot import Job
from elastic_tfjob.speed.growth import RECENT, LossState

__all__ = ["Losses", "unadjusted", "unusable"]

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 60.0
"""A job that has trained for so long, and has said how far it is, has had the time to report its loss."""
# Writes that are under way at once, of all namespaces and of one: a profile that goes by the loss may come to thousands
# of jobs that report none, and the webhook of one tenant may be slow.
_AT_ONCE: Final = 100
_OF_ONE: Final = 20
# The annotation takes so much at most.
_BYTES: Final = 256

_NUMBERS: Final[Mapping[LossState, Topic]] = {"nan": "loss-nan", "inf": "loss-inf"}
_FALLS: Final = "the job counts as one whose loss falls fast: it is not moved to make room"
_SAYS: Final[Mapping[Topic, str]] = {
    "loss-absent": f"the job trains and has not reported one. Until it does, {_FALLS}",
    "loss-nan": f"the job's is NaN. Until it is a number again, {_FALLS}",
    "loss-inf": f"the job's is infinite. Until it is a number again, {_FALLS}",
    "loss-never-fell": f"the job's has only risen since it is read. Until it falls, {_FALLS}",
    "loss-rises": f"the job's fell and has risen in the last {RECENT} readings. Until it falls again, the job counts "
    "as one that has converged: it may be moved to make room for others",
}

_WORK: Final[Mapping[Topic, str]] = {
    "work-unknown": "nothing tells how many steps this job takes: it counts as one that will run as long again as it "
    "has run. Give it the annotation total-steps",
    "cpu-kept": "this job keeps the CPU that it requests: its bounds (min-workers, max-workers) leave no room, or "
    "Kueue has admitted it with what it requests",
}
_ALL_KEPT: Final = (
    "This job keeps the CPU that it requests and the nodes that it has: it has no checkpoint-dir, rescale is never, or "
    "enableDynamicWorker is set"
)


def unadjusted(job: Job, now_s: float) -> Iterator[Topic]:
    """What keeps a profile that goes by what is left from doing more for a job that runs; nothing that cannot be told
    yet."""
    if not job.placement or job.phase != "running":
        return
    if not job.spec.movable:
        yield "all-kept"
        return  # so it does not matter what it has left
    if not job.spec.resizable or job.spec.fixed_cpu:
        yield "cpu-kept"
    if job.spec.total_steps is None and job.steps > 0 and now_s - job.since_s >= PATIENCE_S:
        yield "work-unknown"


def unusable(job: Job, now_s: float) -> Topic | None:
    """What is wrong with the loss of a job that trains, `loss-absent` where it has never reported one; None: nothing,
    or it cannot be told yet."""
    loss = job.loss
    if not job.placement or job.phase != "running":
        return None
    if loss.state == "finite":
        if not loss.rises:
            return None
        return "loss-rises" if loss.peak > 0 else "loss-never-fell"
    if loss.state != "absent":
        return _NUMBERS[loss.state]
    silent = not loss.recent and not loss.readings
    return "loss-absent" if silent and job.steps > 0 and now_s - job.since_s >= PATIENCE_S else None


class Losses:
    """`look` is given each job that is new or has changed, and `tell` called in each round."""

    def __init__(self, api: ApiClient, jobs: Informer[objects.Job], recorder: Recorder) -> None:
        self._jobs = jobs
        self._recorder = recorder
        self._writer = AnnotationWriter(api, jobs.seen, "loss")
        self._due: dict[Key, Topic] = {}
        # By namespace the last turn that it had.
        self._served: dict[str, int] = {}
        self._turns = 0

    def look(self, key: Key, found: ScheduledJob, now_s: float, *, by_loss: bool = True) -> None:
        """See whether there is something to tell a job that it has not been told, where the profile goes by the loss or
        else by what is left."""
        job, source = found.job, found.source
        topics = [*_topics(job, now_s, by_loss=by_loss)] if job is not None else []
        known = told(source.annotations, source.uid) if source is not None and topics else frozenset()
        topic = next((topic for topic in topics if topic not in known), None)
        if topic is None or source is None:
            self._due.pop(key, None)
        else:
            self._due[key] = topic

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._due.pop(key, None)

    def tell(self, group: asyncio.TaskGroup) -> None:
        """Tell what there is to tell, beside later rounds: one job of each namespace after the other."""
        under_way = Counter(namespace for namespace, _ in self._writer)
        free = _AT_ONCE - len(self._writer)
        if free <= 0 or not self._due:
            return
        present = {namespace for namespace, _ in self._due}
        self._served = {name: turn for name, turn in self._served.items() if name in present}
        self._turns += 1
        for key in in_turn((key for key in self._due if key not in self._writer), self._served):
            namespace = key[0]
            if not free:
                return
            if under_way[namespace] >= _OF_ONE:
                continue
            self._served[namespace] = self._turns
            topic = self._due.pop(key)
            # The job as it is now: it may have been told since the round read it.
            job = self._jobs.one(key)
            known = told(job.annotations, job.uid) if job is not None else frozenset()
            if job is None or topic in known or _full(job):
                continue
            # Without its version: nobody else writes this annotation.
            write = Write(job, {TOLD_ANNOTATION: told_json({*known, topic}, job.uid)}, versioned=False)
            self._writer.begin(write, partial(self._written, job, topic), group)
            under_way[namespace] += 1
            free -= 1

    def _written(self, job: objects.Job, topic: Topic, failure: Failure | None) -> None:
        if failure is None:
            self._recorder.record(job, _event(topic))
        elif failure.kind not in ("conflict", "gone"):  # which mean another job of its name at most
            bug = "bug: " if failure.kind == "bug" else ""
            log.warning(f"{bug}not written what a job is told", job=job.key, error=excerpt(failure.error))
            if failure.kind == "failed":
                self._due.setdefault(job.key, topic)


def _topics(job: Job, now_s: float, *, by_loss: bool) -> Iterator[Topic]:
    """What there is to tell, the first one first. A profile that goes by the loss moves jobs, too."""
    if not by_loss:
        yield from unadjusted(job, now_s)
        return
    if (topic := unusable(job, now_s)) is not None:
        yield topic
    yield from (kept for kept in unadjusted(job, now_s) if kept == "all-kept")


def _event(topic: Topic) -> Event:
    if topic == "all-kept":
        return Event("Normal", "NotAdjusted", _ALL_KEPT)
    if topic in _WORK:
        return Event("Normal", "NotAdjusted", f"The profile gives CPU by what is left to do, and {_WORK[topic]}")
    says = f"The profile goes by the training loss, and {_SAYS[topic]}"
    rises = topic in ("loss-never-fell", "loss-rises")
    return Event("Warning", "LossRises", says) if rises else Event("Warning", "LossUnusable", says)


def _full(job: objects.Job) -> bool:
    """Whether the operator's state needs the room that is left in the job's annotations."""
    return bytes_of(job.annotations, but=(TOLD_ANNOTATION,)) + _BYTES > MAX_ANNOTATION_BYTES

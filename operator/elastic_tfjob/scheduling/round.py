"""One round of decisions: the working state that all steps share, and the Plan that it becomes."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from elastic_tfjob.scheduling.plan import BEHIND, Assignment, Cause, Loan, Plan, TeamShare, cause_of
from elastic_tfjob.scheduling.preferences import place_preferring
from elastic_tfjob.scheduling.queue import Entry, JobQueue, WaitingJobs, entry, in_cooldown, queue_index
from elastic_tfjob.scheduling.reasons import Reason, Why, as_reason, sized
from elastic_tfjob.scheduling.room import grown, lacking, room_index, shrunk
from elastic_tfjob.scheduling.rules import Rules
from elastic_tfjob.scheduling.snapshot import (
    AS_REQUESTED,
    UNPLACED,
    Counts,
    Cpu,
    Job,
    JobSpec,
    Memory,
    Node,
    Placement,
    Snapshot,
    counts_of,
    with_number,
)

T = TypeVar("T")


class Quota(Protocol):
    """What jobs may have in a round beyond what nodes have room for."""

    def allows(self, job: Job, counts: Counts) -> bool:
        """Whether the job may have this size. A size that takes no more than the present one is always allowed."""
        ...

    def refusal(self, job: Job) -> Reason | None:
        """Why the job waits, if that is not only for lack of room."""
        ...

    def limits(self, job: Job, counts: Counts) -> Reason | None:
        """Why the job may not have this size; None: it may."""
        ...

    def change(self, job: Job, before: Placement, after: Placement) -> None:
        """Called for each change of a placement, also when it is undone."""
        ...

    def teams(self) -> Mapping[str, TeamShare]:
        """The teams after the round."""
        ...


class Round:
    """What steps act on. All changes stay here: the FreeCapacity is rolled back at the end of the round.

    Each action (`start`, `resize`, `stop` and so on) is counted, successful or not; beyond a limit that grows with jobs
    and replicas it raises EndlessRoundError.
    """

    def __init__(self, snapshot: Snapshot, rules: Rules) -> None:
        self.snapshot = snapshot
        self.rules = rules
        self.now = snapshot.now
        self.nodes: Mapping[str, Node] = snapshot.nodes
        """The present nodes, including nodes that the round borrows, without nodes that it returns."""
        self.loans: list[Loan] = []
        self.changes: dict[str, Assignment] = {}
        self.refusals: dict[str, Reason] = {}
        self.kept: dict[str, Reason] = {}
        """Why jobs that a step wanted to stop or move keep what they have."""
        self._memory: dict[str, Memory] = {}
        self._shared: dict[Hashable, Any] = {}
        self._requeued: list[Entry] = []
        self._failed: set[Hashable] = set()
        """Starts that found no nodes since capacity was last freed: the same start would fail again."""
        self.gave_back = 0
        """How often capacity was freed. Until this changes, a start that found no nodes would fail again."""
        self.unmet: dict[str, Counts] = {}
        """Sizes that running jobs must have, but for which there was no room when the round began."""
        self.sizes_without_room: dict[str, Reason] = {}
        """Why jobs do not get the size that a person requests."""
        self.held_back = BEHIND
        self.left: set[str] = set()
        """Jobs that leave a node before it is taken away: no other step moves them or gives them more replicas."""
        self.orders: dict[str, Counts] = {}
        """The replicas for which jobs ask an autoscaler for nodes."""
        self.given_up = {node.name for node in snapshot.nodes.values() if node.given_up}
        """The nodes that replicas leave to an autoscaler."""
        self.content: set[str] = set()
        """Jobs that the profile would not give more replicas now, whatever is free: they order no nodes."""
        self.lacks_room = False
        """Whether a job found no room for its declared size, and does not only wait for an order to be tried again."""
        self.quota: Quota | None = None
        """What teams may have; None: whatever has room. A size that it does not allow is refused like one without
        room."""
        self._limit = ActionLimit(snapshot, rules.name)
        place = rules.place
        self.room = snapshot.index(("room", place.rank, place.totals_only), room_index(place.rank, place.totals_only))
        order = rules.order
        self.waiting_queue: JobQueue = snapshot.index(("waiting", order), queue_index(order, False)).at(self.now)
        self._running: JobQueue = snapshot.index(("running", order), queue_index(order, True)).at(self.now)

    def shared(self, key: Hashable, build: Callable[[], T]) -> T:
        """The value that steps of this round share under `key`, built on first use."""
        if key not in self._shared:
            self._shared[key] = build()
        value: T = self._shared[key]
        return value

    # ---- jobs

    def waiting(self) -> WaitingJobs:
        """Waiting jobs in order."""
        return WaitingJobs(self.waiting_queue, self.rules.order.drift * self.now, self._requeued)

    def distinct_waiting_specs(self) -> Iterator[JobSpec]:
        """One spec of each placement key that waiting jobs have."""
        return (self.job(entries[0][4]).spec for entries in self.waiting_queue.lists.values())

    def running_in_order(self) -> list[Job]:
        """Jobs that held resources when the round began and may change, in order."""
        return [self.job(entry[4]) for entry in self._running.lists.get(None, ())]

    def rescaling(self) -> list[Job]:
        """Jobs between two targets, which a round does not change."""
        if len(self.waiting_queue) + len(self._running) == len(self.snapshot.jobs):
            return []
        return [job for job in self.snapshot.jobs.values() if job.phase == "rescaling"]

    def job(self, key: str) -> Job:
        return self.snapshot.jobs[key]

    def placement(self, job: Job) -> Placement:
        """The nodes that the job has at this point of the round."""
        target = self.changes.get(job.spec.key)
        return job.placement if target is None else target.nodes

    def cpu(self, job: Job) -> Cpu:
        """The CPU that its replicas hold at this point of the round."""
        target = self.changes.get(job.spec.key)
        return job.cpu if target is None else target.cpu

    def _forget_failed(self) -> None:
        self.gave_back += 1
        self._failed.clear()

    # ---- the limit

    def act(self, job: Job) -> None:
        """Count an action on this job. Actions of this Round are counted already; a loop without any should call it.
        Raises EndlessRoundError."""
        self._limit.count(job)

    # ---- actions

    def memory(self, job: Job) -> Memory:
        """The job's memory at this point of the round."""
        return self._memory.get(job.spec.key, job.memory)

    def remember(self, job: Job, name: str, value: float | None) -> None:
        """Store this number with the job: the next rounds find it in `Job.memory`; None deletes it. Each change writes
        the job, so store events (a second slow reading, a promotion), not what changes in every round. `undo` does not
        restore it: call this once the decision is final. Raises ValueError for an invalid name, and for a number that
        is not finite."""
        memory = with_number(self.memory(job), name, value)
        if memory == job.memory:
            self._memory.pop(job.spec.key, None)
        else:
            self._memory[job.spec.key] = memory

    def start(self, job: Job, counts: Counts, reason: Why) -> bool:
        """Start a waiting job with these replicas if the profile's Place finds room for all of them. A job that was
        stopped in this round may start again."""
        self.act(job)
        if not self._allows(job, counts):
            return False
        attempt = (job.spec.placement_key, tuple(counts.items()))
        if attempt in self._failed or (not job.placement and self.in_cooldown(job)):
            return False
        nodes = place_preferring(self.rules.place, job.spec, counts, self.room, UNPLACED)
        if nodes is None:
            self._failed.add(attempt)
            return False
        self._set(job, nodes, reason)
        return True

    def stop(self, job: Job, reason: Why, cause: Cause = "preempt") -> bool:
        """Take all replicas from a job. False for a running job without a checkpoint, or one that was resumed a short
        while ago: it keeps what it has, and `kept` says why."""
        self.act(job)
        why = Reason("no-checkpoint") if not job.spec.stoppable else self.in_cooldown(job)
        if job.placement and why and (cause not in ("reclaim", "notice") or not job.spec.stoppable):
            self.kept[job.key] = why
            return False
        self.assign(job, UNPLACED, reason, cause)
        return True

    def in_cooldown(self, job: Job) -> Reason | None:
        """Why it is too early to resume a stopped job, or to stop a resumed one; None where it is not too early."""
        if not in_cooldown(job, self.rules.stop_cooldown_s, self.now):
            return None
        done = "resumed" if job.placement else "stopped"
        return Reason("cools", {"done": done, "cooldown_s": self.rules.stop_cooldown_s})

    def requeue(self, job: Job, reason: Why, cause: Cause = "preempt") -> bool:
        """Stop a job and queue it again: it may start again in this round. False as for `stop`."""
        if not self.stop(job, reason, cause):
            return False
        waits = replace(job, placement=UNPLACED, phase="waiting", cpu=AS_REQUESTED)
        self._requeued.append(entry(self.rules.order, waits, self.now))
        return True

    def move(self, job: Job, role: tuple[str, int], node: str, reason: Why) -> bool:
        """Move one replica, by type and index, to another node if it may run there and fits. It gets the CPU that it
        requests; the other replicas do not change. False for a running job that cannot be moved: `kept` says why."""
        self.act(job)
        type_, k = role
        if job.key in self.left:
            return False
        if job.placement and not job.spec.movable:
            self.kept[job.key] = Reason("not-movable", {"type": type_, "index": k})
            return False
        group, i, placement = job.spec.group(type_), self.room.index.get(node), self.placement(job)
        names = placement.get(type_, ())
        if group is None or i is None or k >= len(names) or names[k] == node:
            return False
        allowed = self.room.allowed(job.spec, type_)
        if (allowed is not None and i not in allowed) or not self.room.holds(i, group.request):
            return False
        cpu = dict(self.cpu(job))
        self._forget_failed()
        self.room.give(job.spec, placement, cpu)
        if type_ in cpu:
            cpu[type_] = (*cpu[type_][:k], group.request.cpu_millicores, *cpu[type_][k + 1 :])
            if all(held == group.request.cpu_millicores for held in cpu[type_]):
                del cpu[type_]
        nodes = {**placement, type_: (*names[:k], node, *names[k + 1 :])}
        self.room.take(job.spec, nodes, cpu)
        self._set(job, nodes, reason, cpu)
        return True

    def borrow(self, names: Sequence[str], reason: Why) -> None:
        """Borrow these nodes of other pools: loanable jobs may run there from now on."""
        if names:
            self.loans += [Loan(name, "borrow", as_reason(reason)) for name in names]
            self._set_nodes({name: replace(self.nodes[name], loan="loaned") for name in names})

    def give_back(self, names: Collection[str], reason: Why) -> None:
        """Return these nodes to their pools. Jobs there are stopped; a profile that moves jobs moves their replicas
        instead, and where there is no room queues the jobs again, so that they may start again in this round. A node
        with a job that cannot be stopped is kept until that job has ended."""
        if not names:
            return
        leaving: list[Job] = []
        there = [
            (job, on)
            for job in (*self.running_in_order(), *self.rescaling())
            if (on := {name for names_ in self.placement(job).values() for name in names_}.intersection(names))
        ]
        kept = {name for job, on in there if not job.spec.stoppable for name in on}
        for job, on in there:
            if not on <= kept:
                if job.spec.movable and "move" in self.rules.needs:
                    leaving.append(job)
                else:
                    self.stop(job, Reason("node-returns"), "reclaim")
        returned = [name for name in names if name not in kept]
        self.loans += [Loan(name, "return", as_reason(reason)) for name in returned]
        self._set_nodes({name: replace(self.nodes[name], loan="reclaiming") for name in returned})
        for job in leaving:
            counts = {type_: len(names_) for type_, names_ in self.placement(job).items() if names_}
            if not self.set_size(job, counts, Reason("leaves-node"), "repair", leaves=frozenset(returned)):
                self.requeue(job, Reason("node-returns"), "reclaim")

    def set_given_up(self, names: Collection[str]) -> None:
        """Let these nodes, and no others, be given up: no replica goes there from now on, and those there stay."""
        changed = {
            node.name: replace(node, given_up=node.name in names)
            for node in self.nodes.values()
            if node.given_up != (node.name in names)
        }
        self.given_up = set(names)
        if changed:
            self._set_nodes(changed)

    def _set_nodes(self, changed: Mapping[str, Node]) -> None:
        self._forget_failed()
        self.nodes = {**self.nodes, **changed}
        self.room.set_nodes(self.nodes)

    def resize(self, job: Job, counts: Counts, reason: Why, cause: Cause | None = None) -> bool:
        """Change the number of replicas: the first ones stay; with `repack` all are placed again. `cause`: why the job
        changes, if that does not follow from the sizes.

        Afterwards all replicas hold the CPU that they request: more is granted last."""
        self.act(job)
        if not self._allows(job, counts):
            return False
        room, place = self.room, self.rules.place
        mark = room.mark()
        held, cpu = self.placement(job), self.cpu(job)
        if job.key in self.left and lacking(held, counts):
            return False
        if cpu:
            room.book_cpu(job.spec, held, cpu, -1)
        gives_back = self.rules.repack or bool(cpu)
        nodes: Placement | None
        if self.rules.repack:
            room.give(job.spec, held)
            nodes = place_preferring(place, job.spec, counts, room, UNPLACED)
        else:
            kept = shrunk(held, counts)
            dropped = {
                t: names[len(kept.get(t, ())) :] for t, names in held.items() if len(kept.get(t, ())) < len(names)
            }
            room.give(job.spec, dropped)
            gives_back |= bool(dropped)
            add = lacking(kept, counts)
            added = place_preferring(place, job.spec, add, room, kept) if add else UNPLACED
            nodes = None if added is None else grown(kept, added)
        if nodes is None:
            room.rollback(mark)
            return False
        if gives_back:
            self._forget_failed()
        self._set(job, nodes, reason, cause=cause)
        return True

    def assign(self, job: Job, nodes: Placement, reason: Why, cause: Cause | None = None) -> None:
        """Put the job's replicas on these nodes (none: take all away); the caller has checked that they fit.

        They get the CPU that they request. `cause`: why the job changes, if that does not follow from the sizes.
        """
        self.act(job)
        self._forget_failed()
        held, cpu = self.placement(job), self.cpu(job)
        if nodes == held:
            self.room.book_cpu(job.spec, held, cpu, -1)
        else:
            self.room.give(job.spec, held, cpu)
            self.room.take(job.spec, nodes)
        self._set(job, nodes, reason, cause=cause)

    def grant(self, job: Job, cpu: Cpu, reason: Why) -> None:
        """Give replicas this CPU where they are; the caller has taken it from the FreeCapacity.

        If the job's size or place changes, too, the reason of that change is shown.
        """
        self.act(job)
        nodes = self.placement(job)
        moved = self.changes.get(job.spec.key)
        if moved is not None and moved.nodes != job.placement:
            self._set(job, nodes, moved.reason, cpu, moved.cause)
        else:
            self._set(job, nodes, reason, cpu)

    def set_size(
        self,
        job: Job,
        counts: Counts,
        reason: Why,
        cause: Cause | None = None,
        *,
        leaves: Collection[str] = frozenset(),
    ) -> bool:
        """Give a running job this size (also one that a person requests), with new nodes for replicas on lost nodes or
        on nodes in `leaves`. `cause`: why the job changes, if that does not follow from the sizes."""
        self.act(job)
        if not self._allows(job, counts):
            return False
        nodes, held = self.snapshot.nodes.keys() - leaves if leaves else self.snapshot.nodes, self.placement(job)
        wanted = shrunk(held, counts)
        missing = {t: [k for k, name in enumerate(names) if name not in nodes] for t, names in wanted.items()}
        kept = {t: tuple(name for name in names if name in nodes) for t, names in wanted.items()}
        leaving = {
            t: (*(names[k] for k in missing.get(t, ())), *names[len(wanted.get(t, ())) :]) for t, names in held.items()
        }
        add = lacking(kept, counts)
        room = self.room
        mark = room.mark()
        self._forget_failed()
        room.give(job.spec, leaving)
        room.book_cpu(job.spec, held, self.cpu(job), -1)
        added = place_preferring(self.rules.place, job.spec, add, room, kept) if add else UNPLACED
        if added is None:
            room.rollback(mark)
            return False
        placed: dict[str, tuple[str, ...]] = {}
        for type_, n in counts.items():
            names, new = list(wanted.get(type_, ())), iter(added.get(type_, ()))
            for k in missing.get(type_, ()):
                names[k] = next(new)
            placed[type_] = (*names, *new)[:n]
        self._set(job, placed, reason, cause=cause)
        return True

    def savepoint(self) -> Callable[[], None]:
        """A function that undoes everything since now. It copies the changes so far, so that a step which knows the few
        jobs that it changes should call `undo`."""
        mark, before, nodes, given_up = self.room.mark(), dict(self.changes), self.nodes, set(self.given_up)

        def back() -> None:
            self.undo(mark, {key: before.get(key) for key in (*self.changes, *before)})  # in an order that is certain
            self.nodes, self.given_up = nodes, given_up

        return back

    def undo(self, mark: int, before: Mapping[str, Assignment | None]) -> None:
        """Undo everything since the FreeCapacity was at `mark`; `before` has the previous targets of the jobs changed
        since then."""
        for key, target in before.items():
            if self.quota is not None:
                job = self.job(key)
                self.quota.change(job, self.placement(job), job.placement if target is None else target.nodes)
            if target is None:
                self.changes.pop(key, None)
            else:
                self.changes[key] = target
        self.room.rollback(mark)
        self._forget_failed()

    def _allows(self, job: Job, counts: Counts) -> bool:
        return self.quota is None or self.quota.allows(job, counts)

    def refuse(self, job: Job, reason: Why) -> None:
        self.refusals[job.spec.key] = self.in_cooldown(job) or as_reason(reason)

    def _set(
        self, job: Job, nodes: Placement, reason: Why, cpu: Cpu = AS_REQUESTED, cause: Cause | None = None
    ) -> None:
        if self.quota is not None:
            self.quota.change(job, self.placement(job), nodes)
        stays = nodes == job.placement
        if stays and cpu == job.cpu:
            self.changes.pop(job.spec.key, None)
            return
        was = job.counts
        now = was if stays else counts_of(nodes)
        if cause is None:
            cause = cause_of(was, now, moved=not stays, stopped=bool(job.stops))
        self.changes[job.spec.key] = Assignment(nodes, sized(reason, was, now), cpu, cause)

    def plan(self) -> Plan:
        self.room.rollback(0)
        at = {name: i for i, name in enumerate(self.nodes)} if self.loans else {}
        loans = sorted(self.loans, key=lambda loan: at[loan.node])
        return Plan(
            self.snapshot,
            self.changes,
            tuple(loans),
            self.refusals,
            self.held_back,
            _queue(self.snapshot, self.rules),
            self.kept,
            self.sizes_without_room,
            self._memory,
            self.orders,
            frozenset(self.given_up),
            self.lacks_room,
            {} if self.quota is None else self.quota.teams(),
        )


def _queue(snapshot: Snapshot, rules: Rules) -> Callable[[], Iterator[str]]:
    """The waiting jobs in order, from the Snapshot, since the round's indexes move on to the next Snapshot."""
    order = rules.order

    def queue() -> Iterator[str]:
        waiting: JobQueue = snapshot.index(("waiting", order), queue_index(order, False)).at(snapshot.now)
        return (entry_[4] for entry_ in WaitingJobs(waiting, order.drift * snapshot.now))

    return queue


# -- The limit of actions of a round -----------------------------------------------------------------------------------
# The limit does not depend on a clock, so that the operator and the simulator make the same decisions.

FEWEST_ACTIONS: Final = 10_000
ACTIONS_EACH: Final = 100
"""A round may act ACTIONS_EACH times per job and per possible replica, plus FEWEST_ACTIONS. With 10,000 jobs, rounds of
any profile of this repository act at most once for every second job or replica."""


class EndlessRoundError(RuntimeError):
    """A round acted so often that it would not end: a bug of the profile, which some job triggers."""

    def __init__(self, profile: str, job: str, limit: int) -> None:
        super().__init__(f"{profile}: the round did not end after {limit:,} actions")
        self.profile = profile
        self.job = job
        self.add_note(f"the last one was on {job}")  # not in the message, which owners of other jobs read


class ActionLimit:
    """Counts the actions of one round."""

    def __init__(self, snapshot: Snapshot, profile: str) -> None:
        self._snapshot = snapshot
        self._profile = profile
        self._actions = 0
        self._most = FEWEST_ACTIONS
        """Until this many, jobs and replicas are not counted."""

    def count(self, job: Job) -> None:
        """One action on this job. Raises EndlessRoundError beyond the limit."""
        self._actions += 1
        if self._actions > self._most:
            self._most = most_actions(self._snapshot)
            if self._actions > self._most:
                raise EndlessRoundError(self._profile, job.key, self._most)


def most_actions(snapshot: Snapshot) -> int:
    """The most actions of a round on this Snapshot."""
    jobs = snapshot.jobs.values()
    replicas = sum(
        max(group.maximum, len(job.placement.get(group.type, ()))) for job in jobs for group in job.spec.groups
    )
    return FEWEST_ACTIONS + ACTIONS_EACH * (len(jobs) + replicas)

"""A model of an autoscaler such as Karpenter: it adds nodes for replicas without room, and removes empty ones.

It is pure: all that it knows is given to it, and its random numbers come from the run's seed."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Final

from elastic_tfjob.api.reading import MAX_DURATION_S
from elastic_tfjob.api.scenario import Autoscaling, JobClass, NodeTemplate
from elastic_tfjob.scheduling.resources import NOTHING, Resources
from elastic_tfjob.scheduling.room import FreeCapacity, replicas_per_node
from elastic_tfjob.scheduling.snapshot import Job, JobSpec, Node, ReplicaGroup
from elastic_tfjob.simulation.event_queue import NodeChange
from elastic_tfjob.simulation.formats import GIB
from elastic_tfjob.simulation.result import NodeLife
from elastic_tfjob.simulation.scenario import draw

__all__ = ["Pending", "node_of"]

POLL_S: Final = 10.0
"""Seconds between two removals by consolidation, as Karpenter's pollingPeriod."""


@dataclass(frozen=True, slots=True)
class Pending:
    """`count` replicas of a job's group that need a node."""

    spec: JobSpec
    group: ReplicaGroup
    count: int


# -- The autoscaler ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Added:
    """A node that was launched. `ends_s`: when the cloud takes it away. `since_s`: since when it holds `holds`."""

    template: NodeTemplate
    node: Node
    life: NodeLife
    ends_s: float
    holds: object = None
    since_s: float = inf


@dataclass(slots=True)
class _Launch:
    """A node to launch, for replicas that request `demand`, from one of these templates."""

    templates: list[NodeTemplate]
    demand: Resources = NOTHING

    def add(self, request: Resources, most: int, allowed: Collection[str]) -> int:
        """Add up to `most` such replicas, which may run on nodes of the `allowed` templates. Returns how many."""
        added = 0
        while added < most:
            demand = self.demand.plus(request)
            fitting = [t for t in self.templates if t.name in allowed and demand.within(resources_of(t))]
            if not fitting:
                break
            self.templates, self.demand = fitting, demand
            added += 1
        return added


class Autoscaler:
    """The nodes that were added in one run, and the decisions to add and remove some."""

    def __init__(self, settings: Autoscaling, seed: int) -> None:
        self.settings = settings
        self.lives: list[NodeLife] = []
        """All nodes that were launched."""
        self.failures = 0
        """Launches that failed."""
        self._seed = seed
        self._added: dict[str, _Added] = {}
        """By name, the nodes that are coming or there."""
        self._attempts: dict[str, int] = {}
        self._unavailable: dict[str, float] = {}
        """By template, until when none is launched after a failure."""
        self._wanted: tuple[tuple[str, str, int], ...] = ()
        """The replicas for which nothing is coming, as last seen."""
        self._first_s = self._due_s = inf
        """When the first of them came since the last launch, and when nodes are launched for them."""
        self._consolidated_s = -inf

    # ---- what the engine asks

    @property
    def names(self) -> Set[str]:
        """The added nodes that are coming or there."""
        return self._added.keys()

    def look(
        self, now: float, jobs: Iterable[Job], room: FreeCapacity, pending: Sequence[Pending], in_use: set[str]
    ) -> tuple[list[NodeChange], list[str]]:
        """What becomes of nodes, decided now; and the jobs with pending replicas for which no node is there yet.
        `room`: what is free on the nodes that are there; `in_use`: those with pods, also with pods that are about to
        leave."""
        mark = room.mark()
        unfilled, without, awaited = self._first_fit(pending, room, now)
        changes = self._launch_due(without, now)
        held = self._follow(jobs, in_use, awaited, now)
        changes += self._remove_empty(now)
        if self.settings.consolidate and not unfilled and not changes:
            changes += self._consolidate(held, room, now)
        room.rollback(mark)
        return changes, unfilled

    def next_s(self, now: float) -> float:
        """When to look again if nothing happens before."""
        times = [self._due_s] if self._wanted else []
        for each in self._added.values():
            if each.life.ready_s <= now and (each.holds == () or self.settings.consolidate):
                times.append(each.since_s + each.template.remove_after_s)
        times.append(self._consolidated_s + POLL_S)
        return min((at for at in times if at > now), default=inf)

    def ends(self, name: str, now: float) -> bool:
        """Note that this node leaves the cluster now. Whether the cloud takes it away."""
        added = self._added.pop(name, None)
        if added is None:
            return False
        added.life.until_s = now
        self._due_s = min(self._due_s, now)  # there may be room for another node of the template
        return now >= added.ends_s

    # ---- adding

    def _first_fit(
        self, pending: Sequence[Pending], room: FreeCapacity, now: float
    ) -> tuple[list[str], list[Pending], set[str]]:
        """The jobs with replicas that fit on no present node; the replicas that fit on no coming node either; and the
        present nodes that the others fit on. Takes them from `room`."""
        unfilled: dict[str, None] = {}
        without: list[Pending] = []
        awaited: set[str] = set()
        coming = [each for each in self._added.values() if each.life.ready_s > now]
        free = [each.node.free for each in coming]
        for each in pending:
            left, request, allowed = each.count, each.group.request, room.allowed(each.spec, each.group.type)
            while left and (i := room.first(request, allowed)) is not None:
                n = min(left, room.fit(i, request))
                room.take_replicas(i, each.group, n)
                awaited.add(room.nodes[i].name)
                left -= n
            if left:
                unfilled[each.spec.key] = None
            for k, there in enumerate(coming):
                if left and _admits(each, there.node.labels):
                    n = min(left, _fit(free[k], request))
                    free[k] = free[k].minus(request.times(n))
                    left -= n
            if left:
                without.append(replace(each, count=left))
        return list(unfilled), without, awaited

    def _launch_due(self, without: Sequence[Pending], now: float) -> list[NodeChange]:
        """Launch nodes for these replicas once they are batched, and again when a template that failed may be tried."""
        wanted = tuple((each.spec.key, each.group.type, each.count) for each in without)
        if wanted != self._wanted:
            self._wanted = wanted
            self._first_s = min(self._first_s, now)
            self._due_s = min(now + self.settings.batch_s, max(now, self._first_s + self.settings.batch_most_s))
        if not wanted:
            self._first_s = inf
        if not wanted or now < self._due_s:
            return []
        changes = [change for launch in self._packed(without, now) for change in self._launch(launch, now)]
        self._first_s = inf
        self._due_s = min((until for until in self._unavailable.values() if until > now), default=inf)
        return changes

    def _launch(self, launch: _Launch, now: float) -> list[NodeChange]:
        """Try the templates that hold all of it, the cheapest first."""
        for template in sorted(launch.templates, key=lambda each: each.price):
            if self._left(template, now) > 0 and (changes := self._try(template, now)):
                return changes
        return []

    def _packed(self, without: Sequence[Pending], now: float) -> list[_Launch]:
        """The nodes to launch, packed as by Karpenter: the largest replicas first, each on the first new node that some
        template still holds with it."""
        launches: list[_Launch] = []
        for each in sorted(without, key=lambda each: each.group.request[:3], reverse=True):
            request, left = each.group.request, each.count
            templates = {
                t.name: t
                for t in self.settings.templates
                if self._left(t, now) > 0 and _admits(each, t.labels) and request.within(resources_of(t))
            }
            most = sum(self._left(t, now) for t in templates.values())
            for launch in launches:
                left -= launch.add(request, left, templates)
            while left and len(launches) < most:
                launches.append(_Launch(list(templates.values())))
                left -= launches[-1].add(request, left, templates)
        return launches

    def _left(self, template: NodeTemplate, now: float) -> int:
        """How many nodes of this template may be launched now."""
        if now < self._unavailable.get(template.name, -inf):
            return 0
        return template.most - sum(each.template is template for each in self._added.values())

    def _try(self, template: NodeTemplate, now: float) -> list[NodeChange]:
        """Launch a node: when it joins, and when the cloud takes it away. Nothing if the launch fails."""
        k = self._attempts[template.name] = self._attempts.get(template.name, -1) + 1
        rng = Random(f"autoscaler-{self._seed}-{template.name}-{k}")
        away = any(
            each.from_s <= now < each.until_s and (not each.templates or template.name in each.templates)
            for each in self.settings.no_capacity
        )
        if rng.random() < template.fails or away:
            self.failures += 1
            self._unavailable[template.name] = now + template.retry_s
            return []
        ready = now + min(max(draw(template.lead_s, rng), 0.0), MAX_DURATION_S)
        node = node_of(template, f"auto-{template.name}-{k}")
        ends = ready + rng.expovariate(1 / template.spot.mean_life_s) if template.spot else inf
        life = NodeLife(node.name, node.capacity, template.price, now, ready)
        self.lives.append(life)
        self._added[node.name] = _Added(template, node, life, ends)
        changes = [NodeChange(ready, node.name, node)]
        if template.spot:
            changes.append(NodeChange(ends, node.name, notice_s=template.spot.notice_s))
        return changes

    # ---- removing

    def _follow(
        self, jobs: Iterable[Job], in_use: set[str], awaited: set[str], now: float
    ) -> Mapping[str, list[tuple[JobSpec, str, int]]]:
        """Note since when each added node holds what it holds; returns that. Pods that are about to go there count."""
        held: dict[str, list[tuple[JobSpec, str, int]]] = {}
        for job in jobs:
            for type_, name, n in replicas_per_node(job.placement):
                if name in self._added:
                    held.setdefault(name, []).append((job.spec, type_, n))
        for name, each in self._added.items():
            if each.life.ready_s > now:
                continue
            there = [(spec.key, type_, n) for spec, type_, n in held.get(name, ())]
            holds = (*there, *(("",) if name in awaited or name in in_use else ()))
            if holds != each.holds:
                each.holds, each.since_s = holds, now
        return held

    def _remove_empty(self, now: float) -> list[NodeChange]:
        return [
            NodeChange(now, name)
            for name, each in self._added.items()
            if each.holds == () and now - each.since_s >= each.template.remove_after_s
        ]

    def _consolidate(
        self, held: Mapping[str, list[tuple[JobSpec, str, int]]], room: FreeCapacity, now: float
    ) -> list[NodeChange]:
        """Remove the node with the fewest replicas whose replicas all fit on other nodes, if it has held the same for
        its `remove_after_s`. As Karpenter's single-node consolidation, which here does not replace nodes."""
        if now < self._consolidated_s + POLL_S:
            return []
        quiet = [
            name
            for name in held
            if (each := self._added[name]).life.ready_s <= now and now - each.since_s >= each.template.remove_after_s
        ]
        for name in sorted(quiet, key=lambda name: sum(n for _, _, n in held[name])):
            mark = room.mark()
            fits = all(_moves(spec, type_, n, name, room) for spec, type_, n in held[name])
            room.rollback(mark)
            if fits:
                self._consolidated_s = now
                return [NodeChange(now, name)]
        return []


def _moves(spec: JobSpec, type_: str, left: int, leaves: str, room: FreeCapacity) -> bool:
    """Whether these replicas fit on other nodes; takes them there."""
    group, allowed = spec.group(type_), room.allowed(spec, type_)
    assert group is not None
    for i in list(room.holding(group.request)):
        if room.nodes[i].name != leaves and (allowed is None or i in allowed):
            n = min(left, room.fit(i, group.request))
            room.take_replicas(i, group, n)
            left -= n
        if not left:
            return True
    return False


# -- All nodes of a run ------------------------------------------------------------------------------------------------


def lives_of(nodes: Iterable[Node], changes: Iterable[NodeChange], first_s: float) -> list[NodeLife]:
    """The lives of nodes that no autoscaler added: those at the beginning, and those of scripted changes."""
    lives: list[NodeLife] = []
    there: dict[str, NodeLife] = {}

    def comes(node: Node, at_s: float) -> None:
        there[node.name] = NodeLife(node.name, node.capacity, node.price, at_s, at_s)
        lives.append(there[node.name])

    for node in nodes:
        comes(node, first_s)
    for change in changes:
        if change.node is not None:
            comes(change.node, change.at_s)
        elif (life := there.pop(change.name, None)) is not None:
            life.until_s = change.at_s
    return lives


# -- Templates ---------------------------------------------------------------------------------------------------------


def resources_of(template: NodeTemplate) -> Resources:
    return Resources(round(template.cpus * 1000), round(template.memory_gib * GIB), template.gpus)


def node_of(template: NodeTemplate, name: str) -> Node:
    each = resources_of(template)
    return Node(
        name, each, each, labels=template.labels, autoscaled=True, price=template.price, spot=template.spot is not None
    )


def _admits(pending: Pending, labels: Mapping[str, str]) -> bool:
    return pending.spec.constraints_of(pending.group.type).admit(labels, ())


def _fit(free: Resources, request: Resources) -> int:
    """How many such requests fit."""
    return max(0, min((have // want for have, want in zip(free, request, strict=True) if want), default=1 << 30))


def check_templates(settings: Autoscaling, kinds: Sequence[JobClass]) -> None:
    """Raises ValueError for a template on which no replica fits, and for a job class whose selector no template has."""
    for k, kind in enumerate(kinds):
        if not any(kind.node_selector.items() <= template.labels.items() for template in settings.templates):
            there = "; ".join(f"{template.name} has {template.labels}" for template in settings.templates[:5])
            raise ValueError(f"mix.{k}.node_selector: no node has {kind.node_selector}; {there}")
    for k, template in enumerate(settings.templates):
        if not any(_fits(template, kind) for kind in kinds):
            sizes = ", ".join(
                f"{kind.name} {each.cpus:g} CPUs, {each.memory_gib:g} GiB, {each.gpus} GPUs"
                for kind in kinds[:5]
                for each in (kind.workers, kind.ps)
                if each is not None
            )
            raise ValueError(
                f"autoscaling.templates.{k}: no replica fits on {template.name} ({template.cpus:g} CPUs, "
                f"{template.memory_gib:g} GiB, {template.gpus} GPUs, labels {template.labels}); replicas: {sizes}"
            )


def _fits(template: NodeTemplate, kind: JobClass) -> bool:
    return kind.node_selector.items() <= template.labels.items() and any(
        each.cpus <= template.cpus and each.memory_gib <= template.memory_gib and each.gpus <= template.gpus
        for each in (kind.workers, kind.ps)
        if each is not None
    )

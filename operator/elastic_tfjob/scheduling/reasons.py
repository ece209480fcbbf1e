"""Reasons: why a plan changes a job or lets it wait, as a code with facts; and the sentences that people read.

The sentence is written where a person reads it (`str`); profiles, tests and reports use code and facts, and both are
stored with a job (`stored`). An installed profile may give a sentence of its own, which has the code `own`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from elastic_tfjob.api.reading import MAX_TEXT, MAX_WORD, Fields, cut, describe
from elastic_tfjob.api.words import REASON_CODES, count_in_words, counts_in_words
from elastic_tfjob.api.words import ReasonCode as Code
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts

__all__ = [
    "Code",
    "Fact",
    "Reason",
    "Why",
    "added",
    "as_reason",
    "code_of",
    "facts_of",
    "read_reason",
    "sized",
    "stored",
]

Fact = int | float | str | tuple[str, ...] | Mapping[str, int] | Mapping[str, float]
"""A number; the name of a job, node or type; such names; or numbers by replica type."""
Facts = Mapping[str, Fact]

_GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Reason:
    """`facts` by name; WORDS shows which facts a code has. Any code may have `was` and `now`, the sizes before and
    after; `minimum` (even the minimum has no room); `no_nodes`, a size that fits no nodes; `expects`, the expected
    steps per second, with `expects_by`, where that is known from; `order_limit`, the key of autoscaling.order that a
    waiting job's order of nodes would exceed; `kube_scheduler`, its message; and `words`, the sentence in place of
    facts that were too large to be stored."""

    code: Code
    facts: Facts = field(default_factory=dict)

    def __str__(self) -> str:
        facts = _Facts(self.facts)
        if self.code != "own" and facts.has("words"):
            return facts.text("words")
        was, now = facts.counts("was"), facts.counts("now")
        words = WORDS.get(self.code)
        # An installed profile may use a code that this version does not know.
        text = words(facts) if words is not None else facts.text("words") or self.code
        if was and now:
            text = f"{_describe_change(was, now)}: {text}"
        if facts.has("minimum"):
            text += ": no room even for its minimum"
        if facts.has("no_nodes"):
            text += f": {counts_in_words(facts.counts('no_nodes'))} cannot be placed"
        if facts.has("expects"):
            text += f" (expects {facts.number('expects'):.3g} steps/s, {facts.text('expects_by')})"
        if facts.has("order_limit"):
            text += f"; orders no nodes, because they would exceed autoscaling.order.{facts.text('order_limit')}"
        if facts.has("kube_scheduler"):
            text += f" (kube-scheduler: {facts.text('kube_scheduler')})"
        if facts.has("also"):
            text += f"; {facts.text('also')}"
        return cut(text) if len(text) > MAX_TEXT else text


Why = Reason | str
"""A reason, or the sentence of an installed profile."""


def as_reason(why: Why) -> Reason:
    """The reason; a sentence becomes one with the code `own`."""
    return why if isinstance(why, Reason) else Reason("own", {"words": cut(why)})


def code_of(why: Why) -> Code | None:
    """The code, by which people filter jobs; None for a sentence without a code."""
    return why.code if isinstance(why, Reason) else None


def facts_of(why: Why) -> Facts:
    """The facts, by name; none for a sentence without a code."""
    return why.facts if isinstance(why, Reason) else {}


def added(why: Why, **facts: Fact) -> Reason:
    """The reason with these facts, too."""
    known = as_reason(why)
    return Reason(known.code, {**known.facts, **facts}) if facts else known


# -- How reasons are stored: words as they are, a code with its facts as an object -------------------------------------

_MOST_FACTS: Final = 16


def stored(why: Why) -> Why:
    """The reason in the form in which it is stored and read again; a reason of any length is shortened to the
    limits."""
    if isinstance(why, str):
        return cut(why) if len(why) > MAX_TEXT else why
    if why.code == "own" and why.facts.keys() == {"words"}:
        return cut(str(why))
    facts = _storable(why.facts)
    if len(facts) < len(why.facts) or len(json.dumps(facts)) > MAX_TEXT:
        return cut(str(why)) if why.code == "own" else Reason(why.code, {"words": cut(str(why), MAX_TEXT // 2)})
    return why if facts == why.facts else Reason(why.code, facts)


def read_reason(raw: Fields, name: str = "reason") -> Why:
    """Reads a stored reason, whoever wrote it. Invalid facts are skipped. For an unknown code, which a newer version
    may have written, returns a sentence. Raises ValueError for anything other than words or an object with a code."""
    if not isinstance(raw.any(name), dict):
        return raw.text(name)
    found = raw.within(name)
    assert found is not None
    word, facts = found.text("code", MAX_WORD), found.any("facts")
    code = next((code for code in REASON_CODES if code == word), None)
    if code is None:
        return f"a reason of a newer version: {describe(word)}"
    return stored(Reason(code, _storable(facts if isinstance(facts, dict) else {})))


def _storable(facts: Mapping[str, object]) -> dict[str, Fact]:
    named = ((name, _fact(value)) for name, value in facts.items() if len(name) <= MAX_WORD)
    return dict(islice(((name, fact) for name, fact in named if fact is not None), _MOST_FACTS))


def _fact(value: object) -> Fact | None:
    if isinstance(value, str):
        return cut(value)
    if (number := _number(value)) is not None:
        return number
    if isinstance(value, list | tuple):
        return tuple(cut(each) for each in value) if all(isinstance(each, str) for each in value) else None
    if isinstance(value, Mapping):
        numbers = {str(name): found for name, each in value.items() if (found := _number(each)) is not None}
        return numbers if len(numbers) == len(value) else None
    return None


def _number(value: object) -> int | float | None:
    if isinstance(value, int):
        return int(value) if value.bit_length() < 64 else None
    return float(value) if isinstance(value, float) and math.isfinite(value) else None


def sized(why: Why, was: Counts, now: Counts) -> Reason:
    """The reason with the sizes of a change; without sizes where nothing ran, or the size stays. A sentence of an
    installed profile does not change."""
    known = as_reason(why)
    if known.code == "own" or ((was == now or not (was and now)) and known.facts.keys().isdisjoint(("was", "now"))):
        return known
    had, has = ({name: n for name, n in size.items() if n} for size in (was, now))
    facts = {name: fact for name, fact in known.facts.items() if name not in ("was", "now")}
    if had and has and had != has:
        facts |= {"was": had, "now": has}
    return known if facts == known.facts else Reason(known.code, facts)


def _describe_change(before: Counts, after: Counts) -> str:
    """`Worker 1 -> 3, PS 1 -> 2`."""
    return ", ".join(
        f"{type_} {before.get(type_, 0)} -> {after.get(type_, 0)}"
        for type_ in dict.fromkeys((*before, *after))
        if before.get(type_, 0) != after.get(type_, 0)
    )


class _Facts:
    """Facts by name and type; a fact of another type counts as missing."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def has(self, name: str) -> bool:
        return name in self._facts

    def number(self, name: str) -> float:
        found = _number(self._facts.get(name))
        return 0.0 if found is None else found

    def text(self, name: str) -> str:
        fact = self._facts.get(name)
        return fact if isinstance(fact, str) else ""

    def names(self, name: str) -> tuple[str, ...]:
        fact = self._facts.get(name)
        return tuple(each for each in fact if isinstance(each, str)) if isinstance(fact, tuple) else ()

    def counts(self, name: str) -> Mapping[str, int]:
        return {type_: int(n) for type_, n in self.numbers(name).items()}

    def numbers(self, name: str) -> Mapping[str, float]:
        fact = self._facts.get(name)
        if not isinstance(fact, Mapping):
            return {}
        return {type_: found for type_, n in fact.items() if (found := _number(n)) is not None}


def _size_asked_for(facts: _Facts) -> str:
    """`by`: the words of JobSpec.asked; empty: only the job's bounds require the size."""
    return facts.text("by") or "its size is outside its bounds"


def _requested_size(facts: _Facts) -> str:
    """`annotations`: numbers of replicas by annotation. `spec`: those that an edit of the spec gave, by type. `memory`:
    those among which memory must be divided. Or `by`, the words of such a reason."""
    if facts.has("by"):
        return facts.text("by")
    said = [f"{name}={n}" for name, n in facts.counts("annotations").items()]
    said += [f"spec has {count_in_words(n, type_)}" for type_, n in facts.counts("spec").items()]
    said += [f"memory needs {count_in_words(n, type_)}" for type_, n in facts.counts("memory").items()]
    return f"requested size: {', '.join(said)}"


def _size_no_room(facts: _Facts) -> str:
    """`wanted` and `fits`: the replicas that are requested, and those that have room, of the types that change."""
    wanted, fits = facts.counts("wanted"), facts.counts("fits")
    return f"no room for the requested {counts_in_words(wanted)}; there is room for {counts_in_words(fits)}"


def _lost(facts: _Facts) -> str:
    """`gone`, `cordoned`, `draining`, `refused`, `no_memory`: nodes. `by`: another size is requested, too.
    `fewer`: no room for as many replicas."""
    parts = [
        f"{' and '.join(nodes)} {one if len(nodes) == 1 else more}"
        for nodes, one, more in (
            (facts.names("gone"), "is gone", "are gone"),
            (facts.names("cordoned"), "is cordoned", "are cordoned"),
            (facts.names("draining"), "is being drained", "are being drained"),
            (facts.names("refused"), "rejects its pods", "reject its pods"),
            (facts.names("no_memory"), "has no more memory for its pods", "have no more memory for its pods"),
        )
        if nodes
    ]
    if facts.has("by"):
        parts.append(_size_asked_for(facts))
    return "; ".join(parts) + ("; no room for as many replicas" if facts.has("fewer") else "")


def _taken_away(facts: _Facts) -> str:
    """`nodes`, the first of which is gone in `left_s`. `fewer`: no room for as many replicas."""
    nodes = facts.names("nodes")
    taken = f"{' and '.join(nodes)} {'is' if len(nodes) == 1 else 'are'} taken away in {facts.number('left_s'):.0f} s"
    return taken + ("; no room for as many replicas" if facts.has("fewer") else "")


def _short(facts: _Facts) -> str:
    """By resource what the job needs, and with `_free` what is free, in the units of Resources."""
    units: tuple[tuple[str, Callable[[float], str]], ...] = (
        ("accelerators", lambda n: f"{n:.0f} accelerators"),
        ("cpu", lambda n: f"{n / 1000:g} CPU"),
        ("memory", lambda n: f"{n / _GIB:.1f} GiB"),
        ("pods", lambda n: f"{n:.0f} pods"),
        ("storage", lambda n: f"{n / _GIB:.1f} GiB of ephemeral storage"),
    )
    parts = []
    for name, words in units:
        if facts.has(name):
            free = words(facts.number(f"{name}_free")).removesuffix(" accelerators").removesuffix(" CPU")
            free = free.removesuffix(" pods").removesuffix(" of ephemeral storage")
            parts.append(f"{words(facts.number(name))}, {free} free")
    return "needs " + "; ".join(parts)


def _makes_room(facts: _Facts) -> str:
    """`job`: for which room is made; `waits_s` if it waits, `has` if it has less than it declares, else `by` or its
    bounds require more. `idle`: the part of their CPU that the donor's workers use."""
    idle = f"workers use {facts.number('idle'):.0%} of their CPU, " if facts.has("idle") else ""
    room = f"{idle}makes room for {facts.text('job')}"
    if facts.has("waits_s"):
        return f"{room}, which has waited for {facts.number('waits_s'):.0f} s"
    if facts.has("has"):
        return f"{room}, which has {counts_in_words(facts.counts('has'))}, less than it declares"
    return f"{room}: {_size_asked_for(facts)}"


def _busy(facts: _Facts) -> str:
    """`use`: by type, CPU used / held. `idle_millicores` on its nodes; `gain`: expected relative gain in speed."""
    use = facts.numbers("use")
    types = [type_ for type_ in (WORKER, PS) if type_ in use]
    words = " and ".join(f"{'workers' if t == WORKER else t} use {use[t]:.0%} of their CPU" for t in types)
    idle = f"{facts.number('idle_millicores'):.0f}m CPU of its nodes are idle"
    return f"{words}; {idle}; expected to be {facts.number('gain'):.0%} faster"


def _gain_per_replica(facts: _Facts) -> str:
    """`instead_of`: why the learned policy, which this replaces, cannot be used."""
    if facts.has("instead_of"):
        return f"most speed per replica, since the learned policy cannot be used: {facts.text('instead_of')}"
    return "most speed per replica"


def _cpu(facts: _Facts) -> str:
    """By type, millicores of all replicas before (`had`) and after (`has`), and CPU used / held (`use`)."""
    had, has, use = facts.numbers("had"), facts.numbers("has"), facts.numbers("use")
    parts = [
        f"{type_} {had.get(type_, 0):.0f}m -> {after:.0f}m"
        + (f" ({100 * use[type_]:.0f} % used)" if type_ in use else "")
        for type_, after in has.items()
    ]
    return f"CPU in place: {', '.join(parts)}"


def _cpu_rank(facts: _Facts) -> str:
    """`rank` among `of` jobs on `node`. `critical`: the job would take longest alone. `elsewhere`: it has only its
    chief or PS there."""
    why = "critical: it takes longest even alone" if facts.has("critical") else "by remaining work"
    if facts.has("elsewhere"):
        why = "its workers are on other nodes"
    return f"CPU in place: rank {facts.number('rank'):.0f} of {facts.number('of'):.0f} on {facts.text('node')} ({why})"


def _missed(facts: _Facts) -> str:
    """`needs_s`: with the best size, `largest`. `left_s`: until the deadline."""
    needs = f"needs {facts.number('needs_s'):.0f} s even with {counts_in_words(facts.counts('largest'))}"
    return f"best effort, its deadline cannot be met: {needs}, has {facts.number('left_s'):.0f} s"


def _not_movable(facts: _Facts) -> str:
    """`type` and `index` of the replica."""
    replica = f"{facts.text('type')} {facts.number('index'):.0f}"
    return f"{replica} stays on its node: the job cannot be moved without a checkpoint"


def _team_share(facts: _Facts) -> str:
    """`job` of `team`, which has the `share` and deserves `deserved`, fractions of the cluster."""
    has = f"{facts.number('share'):.1%} of the cluster and deserves {facts.number('deserved'):.1%}"
    return f"makes room for {facts.text('job')} of team {facts.text('team')}, which has {has}"


def _team_served(facts: _Facts) -> str:
    """`team`, which has the `share` and deserves `deserved`, fractions of the cluster."""
    has = f"{facts.number('share'):.1%} of the cluster and deserves {facts.number('deserved'):.1%}"
    return f"no room is free, and its size is beyond what its team deserves: {facts.text('team')} has {has}"


def _no_space_for_names(facts: _Facts) -> str:
    """`reason`: the sentence of why the job has this size."""
    return f"{facts.text('reason')}; kube-scheduler chooses nodes: the job's annotations leave no room for their names"


_NO_QUOTA: Final[Mapping[str, str]] = {
    "asked": "Kueue is asked for it",
    "checks": "its queue has admission checks, with which growth is not supported",
    "delay": "Kueue took growth back or the job did not use it, so it asks later",
    "no-queue": "its queue does not exist or is stopped",
    "no-quota": "its queue has no free quota",
    "others": "other Workloads wait in its queue",
    "refused": "the operator may not create Workloads",
    "shrinks": "it returns other quota first",
    "starts": "its declared replicas do not run yet",
    "topology": "Kueue places its pods by topology, with which growth is not supported",
}


def _quota(facts: _Facts) -> str:
    """`more`: replicas that the job would use beyond the admitted ones. `queue`: its queue. `because`: a word of
    _NO_QUOTA."""
    because = _NO_QUOTA.get(facts.text("because"), "")
    return f"would use {counts_in_words(facts.counts('more'))} more (queue {facts.text('queue')}): {because}"


def _fixed(text: str) -> Callable[[_Facts], str]:
    return lambda _: text


WORDS: Final[Mapping[Code, Callable[[_Facts], str]]] = {
    "own": lambda facts: facts.text("words"),
    "as-declared": _fixed("as declared"),
    "behind": _fixed("earlier jobs leave no room for it"),
    "best-configurations": _fixed("the best configurations of all jobs together"),
    "best-effort": _fixed("best effort"),
    "bounds": _size_asked_for,
    "busy": _busy,
    "converged": lambda facts: (
        f"moves from {facts.text('source')} to {facts.text('target')}: it has converged, and other jobs there progress"
    ),
    "cools": lambda facts: f"was {facts.text('done')} less than {facts.number('cooldown_s'):.0f} s ago",
    "cpu": _cpu,
    "cpu-as-requested": _fixed("gets the CPU that it requests"),
    "cpu-rank": _cpu_rank,
    "crowded": lambda facts: f"moves from crowded node {facts.text('source')} to idle CPU of {facts.text('target')}",
    "deadline-met": lambda facts: f"meets its deadline with {counts_in_words(facts.counts('with'))}",
    "deadline-missed": _missed,
    "deadline-no-room": _fixed("best effort: other jobs leave no room to meet its deadline"),
    "dominant-share": _fixed("fair share (dominant resource)"),
    "earliest-deadline": _fixed("earliest deadline first"),
    "fair-speedup": _fixed("the fairest speedups of all jobs"),
    "first": _fixed("among the first jobs in order"),
    "fits": _fixed("next in order, and it fits"),
    "gain-per-replica": _gain_per_replica,
    "gives-way": _fixed("best effort: another job needs less to meet its deadline"),
    "given-room": _fixed("starts on capacity that other jobs released"),
    "keeps": _fixed("keeps what it has"),
    "later-deadline": _fixed("jobs with earlier deadlines come first"),
    "learned": _fixed("size chosen by the learned policy"),
    "less-room": lambda facts: f"no room for the declared {counts_in_words(facts.counts('declared'))}",
    "lost": _lost,
    "leaves-to-autoscaler": lambda facts: f"leaves {facts.text('node')}, so that an autoscaler can remove it",
    "leaves-node": _fixed("leaves a node that is returned to its pool"),
    "makes-room": _makes_room,
    "marginal-gain": _fixed("this job gains most speed (marginal gain)"),
    "no-checkpoint": _fixed("it has no checkpoint to resume from"),
    "no-deadline": _fixed("best effort: it has no deadline"),
    "no-nodes": _fixed("enough is free in total, but the nodes that may run it have no room"),
    "no-size": _fixed("even its smallest size does not fit the cluster"),
    "no-space-for-names": _no_space_for_names,
    "node-full": lambda facts: f"node {facts.text('node')} has less capacity than its pods hold",
    "node-returns": _fixed("preempted: its node is returned to its pool"),
    "node-shrinks": _fixed("shrinks: a node is returned to its pool"),
    "not-movable": _not_movable,
    "offered": _fixed("the pool offers it, and a loanable job waits"),
    "others-first": _fixed("preempted: earlier jobs take the whole cluster"),
    "packing": _fixed("best fit for the free resources (packing and short remaining work)"),
    "pool-wants": _fixed("its pool needs it"),
    "profile-begins": _fixed("already had this size when the profile was chosen"),
    "profile-fails": lambda facts: f"profile {facts.text('profile')} fails, so no job is scheduled",
    "quota": _quota,
    "released": lambda facts: f"{facts.text('profile')}: the declared size",
    "requested-size": _requested_size,
    "room-to-come": lambda facts: f"waits for room on {facts.text('node')}, which another job is about to free",
    "short": _short,
    "size-no-room": _size_no_room,
    "slower": lambda facts: (
        f"was faster with fewer replicas: {facts.number('there'):.3g} steps/s, now {facts.number('here'):.3g}"
    ),
    "suspended": _fixed("suspended"),
    "taken-away": _taken_away,
    "team-limit": lambda facts: (
        f"team {facts.text('team')} may have at most {facts.number('limit'):.1%} of the cluster"
    ),
    "team-served": _team_served,
    "team-share": _team_share,
    "time-saved": _fixed("spare capacity goes where it saves most time"),
    "tries-size": _fixed("measures the speed of this size"),
    "unknown-speed": _fixed("its speed is not yet known"),
    "unknown-steps": _fixed("best effort: its number of steps is unknown"),
    "waits-behind": lambda facts: f"waits behind job {facts.text('job')}, which does not fit yet",
    "whole-cluster": _fixed("earlier jobs take the whole cluster"),
}
"""By code, the sentence from its facts."""

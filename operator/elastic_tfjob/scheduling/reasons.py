"""Why a plan does what it does: a code with facts, and the one place that words them. Pure.

A sentence is made where a person reads it (`str`); policies, tests and reports go by code and facts, and so does what
is stored of a job (`stored`). A profile of somebody else's may give words of its own, which have the code `own`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, get_args

from elastic_tfjob.api.reading import MAX_TEXT, MAX_WORD, Fields, cut, describe
from elastic_tfjob.api.words import count_in_words, counts_in_words
from elastic_tfjob.scheduling.snapshot import PS, WORKER, Counts

__all__ = ["CODES", "Code", "Fact", "Reason", "Why", "added", "as_reason", "code_of", "read_reason", "sized", "stored"]

Code = Literal[
    "own",
    "as-declared",
    "asked",
    "behind",
    "best-effort",
    "bounds",
    "busy",
    "by-a-person",
    "converged",
    "cools",
    "cpu",
    "cpu-as-requested",
    "cpu-rank",
    "crowded",
    "deadline-met",
    "deadline-missed",
    "deadline-no-room",
    "dominant-share",
    "earliest-deadline",
    "first",
    "fits",
    "gain-per-replica",
    "gives-way",
    "given-room",
    "keeps",
    "later-deadline",
    "learned",
    "leaves-node",
    "less-room",
    "lost",
    "makes-room",
    "marginal-gain",
    "no-checkpoint",
    "no-deadline",
    "no-nodes",
    "no-size",
    "no-space-for-names",
    "node-full",
    "node-returns",
    "node-shrinks",
    "not-movable",
    "offered",
    "others-first",
    "packing",
    "pool-wants",
    "profile-begins",
    "released",
    "room-to-come",
    "short",
    "slower",
    "suspended",
    "time-saved",
    "tries-size",
    "unknown-speed",
    "unknown-steps",
    "waits-behind",
    "whole-cluster",
]
CODES: Final[tuple[Code, ...]] = get_args(Code)

Fact = int | float | str | tuple[str, ...] | Mapping[str, int] | Mapping[str, float]
"""A number, the name of a job, node or type, such names, or numbers by type of replica."""
Facts = Mapping[str, Fact]

_GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Reason:
    """`facts` by name; which of them a code has is said in WORDS, where they are used. Any code may have `was` and
    `now`, the sizes that it is the reason of going between, `minimum` (even that is too much) and `size` for which
    there were no nodes. So may it have `expects`, the steps per second that the job is expected to have then, and
    `expects_by`, what that is known from, and `also`, words that follow. `words` in place of its own facts: those were
    too large to be stored, and this is what they said."""

    code: Code
    facts: Facts = field(default_factory=dict)

    def __str__(self) -> str:
        facts = _Facts(self.facts)
        if self.code != "own" and facts.has("words"):
            return facts.text("words")
        was, now = facts.counts("was"), facts.counts("now")
        text = WORDS[self.code](facts)
        if was and now:
            text = f"{_describe_change(was, now)}: {text}"
        if facts.has("minimum"):
            text += ": nothing left for its minimum"
        if facts.has("no_nodes"):
            text += f": {counts_in_words(facts.counts('no_nodes'))} fits on no nodes"
        if facts.has("expects"):
            text += f" (expects {facts.number('expects'):.3g} steps/s, {facts.text('expects_by')})"
        if facts.has("kube_scheduler"):
            text += f" (kube-scheduler: {facts.text('kube_scheduler')})"
        if facts.has("also"):
            text += f"; {facts.text('also')}"
        return cut(text) if len(text) > MAX_TEXT else text


Why = Reason | str
"""A reason, or words of a profile's own."""


def as_reason(why: Why) -> Reason:
    """The reason; words become one that has no facts but them."""
    return why if isinstance(why, Reason) else Reason("own", {"words": cut(why)})


def code_of(why: Why) -> str:
    """The code, by which jobs can be filtered; empty for mere words."""
    return why.code if isinstance(why, Reason) else ""


def added(why: Why, **facts: Fact) -> Reason:
    """The reason with these facts, too."""
    known = as_reason(why)
    return Reason(known.code, {**known.facts, **facts}) if facts else known


# -- How reasons are stored: words as they are, a code with its facts as an object -------------------------------------

_MOST_FACTS: Final = 16


def stored(why: Why) -> Why:
    """The reason as it is stored and read again, of any length in and within bounds out."""
    if isinstance(why, str):
        return cut(why) if len(why) > MAX_TEXT else why
    if why.code == "own" and why.facts.keys() == {"words"}:
        return cut(str(why))
    facts = _storable(why.facts)
    if len(facts) < len(why.facts) or len(json.dumps(facts)) > MAX_TEXT:
        return cut(str(why)) if why.code == "own" else Reason(why.code, {"words": cut(str(why), MAX_TEXT // 2)})
    return why if facts == why.facts else Reason(why.code, facts)


def read_reason(raw: Fields, name: str = "reason") -> Why:
    """What was stored, whoever wrote it: facts that are none are passed over. A code that a newer version may have
    written is given as words. Raises ValueError for what is neither words nor an object with a code."""
    if not isinstance(raw.any(name), dict):
        return raw.text(name)
    found = raw.within(name)
    assert found is not None
    word, facts = found.text("code", MAX_WORD), found.any("facts")
    code = next((code for code in CODES if code == word), None)
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
    """The reason of a change between these sizes; without sizes where nothing ran, or the size stays. Words of a
    profile's own stay as they are."""
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
    """Facts by name with their types; a fact of another type counts as none."""

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


def _asked(facts: _Facts) -> str:
    """`by`: who asks, as JobSpec.asked; empty: the bounds are others."""
    return facts.text("by") or "its bounds ask for another size"


def _by_a_person(facts: _Facts) -> str:
    """`annotations`: numbers of replicas by annotation. `spec`: those that an edit of the spec gave, by type."""
    said = [f"{name}={n}" for name, n in facts.counts("annotations").items()]
    said += [f"spec has {count_in_words(n, type_)}" for type_, n in facts.counts("spec").items()]
    return f"asked for by a person: {', '.join(said)}"


def _lost(facts: _Facts) -> str:
    """`gone`, `cordoned`, `refused`: nodes. `by` where another size is asked for, too. `fewer`: there is no room for as
    many replicas."""
    parts = [
        f"{' and '.join(nodes)} {one if len(nodes) == 1 else more}"
        for nodes, one, more in (
            (facts.names("gone"), "is gone", "are gone"),
            (facts.names("cordoned"), "is cordoned", "are cordoned"),
            (facts.names("refused"), "cannot be had", "cannot be had"),
        )
        if nodes
    ]
    if facts.has("by"):
        parts.append(_asked(facts))
    return "; ".join(parts) + (", no room for as many" if facts.has("fewer") else "")


def _short(facts: _Facts) -> str:
    """By resource what the job needs, and with `_free` what there is: millicores, bytes, pieces."""
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
    """`job`; `waits_s` where it waits, `has` where that is less than it declares, else `by` or the bounds ask for more.
    `idle`: the part of its CPU that the workers of who gives use."""
    idle = f"workers use {facts.number('idle'):.0%} of their CPU, " if facts.has("idle") else ""
    room = f"{idle}makes room for {facts.text('job')}"
    if facts.has("waits_s"):
        return f"{room}, which waits for {facts.number('waits_s'):.0f} s"
    if facts.has("has"):
        return f"{room}, which has {counts_in_words(facts.counts('has'))}, less than it declares"
    return f"{room}: {_asked(facts)}"


def _busy(facts: _Facts) -> str:
    """`use`: by type the part of its CPU that it uses. `idle_millicores` on the nodes that it may use; `gain`: how much
    faster it is expected to be, as a part."""
    use = facts.numbers("use")
    types = [type_ for type_ in (WORKER, PS) if type_ in use]
    words = " and ".join(f"{'workers' if t == WORKER else t} use {use[t]:.0%} of their CPU" for t in types)
    idle = f"its nodes have {facts.number('idle_millicores'):.0f}m CPU idle"
    return f"{words}, {idle}, expected to be {facts.number('gain'):.0%} faster"


def _gain_per_replica(facts: _Facts) -> str:
    """`instead_of`: why a learned policy cannot be used, where one was asked for."""
    if facts.has("instead_of"):
        return f"speed gained per replica, as the learned policy cannot be used: {facts.text('instead_of')}"
    return "speed gained per replica"


def _cpu(facts: _Facts) -> str:
    """By type millicores of all its replicas, before (`had`) and after (`has`), and the part of it that they `use`."""
    had, has, use = facts.numbers("had"), facts.numbers("has"), facts.numbers("use")
    parts = [
        f"{type_} {had.get(type_, 0):.0f}m -> {after:.0f}m"
        + (f" ({100 * use[type_]:.0f} % used)" if type_ in use else "")
        for type_, after in has.items()
    ]
    return f"CPU in place: {', '.join(parts)}"


def _cpu_rank(facts: _Facts) -> str:
    """`rank` among `of` jobs on `node`; `critical`: the one that would need longest alone; `elsewhere`: that has only
    its chief or PS there."""
    why = "needs longest alone" if facts.has("critical") else "by what is left"
    if facts.has("elsewhere"):
        why = "works on other nodes and needs little here"
    return f"CPU in place: {facts.number('rank'):.0f} of {facts.number('of'):.0f} on {facts.text('node')} ({why})"


def _missed(facts: _Facts) -> str:
    """`needs_s` with the best size, `largest`, and `left_s`."""
    needs = f"needs {facts.number('needs_s'):.0f} s even with {counts_in_words(facts.counts('largest'))}"
    return f"best effort, its deadline cannot be met: {needs}, has {facts.number('left_s'):.0f} s"


def _not_movable(facts: _Facts) -> str:
    """`type` and `index` of the replica that was to move."""
    replica = f"{facts.text('type')} {facts.number('index'):.0f}"
    return f"{replica} stays on its node: without a checkpoint the job cannot be moved"


def _no_space_for_names(facts: _Facts) -> str:
    """`reason`: the words of why the job has this size."""
    return f"{facts.text('reason')}; kube-scheduler chooses nodes: the job's annotations leave no room for their names"


def _fixed(text: str) -> Callable[[_Facts], str]:
    return lambda _: text


WORDS: Final[Mapping[Code, Callable[[_Facts], str]]] = {
    "own": lambda facts: facts.text("words"),
    "as-declared": _fixed("as declared"),
    "asked": _asked,
    "behind": _fixed("does not fit beside the jobs before it"),
    "best-effort": _fixed("best effort"),
    "bounds": _asked,
    "busy": _busy,
    "by-a-person": _by_a_person,
    "converged": lambda facts: (
        f"moves from {facts.text('source')} to {facts.text('target')}: it has converged, others there progress"
    ),
    "cools": lambda facts: f"was {facts.text('done')} less than {facts.number('cooldown_s'):.0f} s ago",
    "cpu": _cpu,
    "cpu-as-requested": _fixed("CPU as requested"),
    "cpu-rank": _cpu_rank,
    "crowded": lambda facts: (
        f"moves from {facts.text('source')}, which is crowded, to idle CPU of {facts.text('target')}"
    ),
    "deadline-met": lambda facts: f"meets its deadline with {counts_in_words(facts.counts('with'))}",
    "deadline-missed": _missed,
    "deadline-no-room": _fixed("best effort: no room to meet its deadline beside the others"),
    "dominant-share": _fixed("dominant share"),
    "earliest-deadline": _fixed("earliest deadline"),
    "first": _fixed("among the first in order"),
    "fits": _fixed("next in order and it fits"),
    "gain-per-replica": _gain_per_replica,
    "gives-way": _fixed("best effort: gives way to a job that meets its deadline with less"),
    "given-room": _fixed("on room that others give back"),
    "keeps": _fixed("keeps what it has"),
    "later-deadline": _fixed("others with earlier deadlines come first"),
    "learned": _fixed("learned policy"),
    "less-room": lambda facts: f"no room for the declared {counts_in_words(facts.counts('declared'))}",
    "lost": _lost,
    "leaves-node": _fixed("a node it runs on goes back to its own pool"),
    "makes-room": _makes_room,
    "marginal-gain": _fixed("marginal gain"),
    "no-checkpoint": _fixed("it has no checkpoint to go on from"),
    "no-deadline": _fixed("best effort: it has no deadline"),
    "no-nodes": _fixed("enough is free in total, but not on the nodes that may run it"),
    "no-size": _fixed("no size of it fits the cluster"),
    "no-space-for-names": _no_space_for_names,
    "node-full": lambda facts: f"{facts.text('node')} has less than its pods hold",
    "node-returns": _fixed("preempted: a node it runs on goes back to its own pool"),
    "node-shrinks": _fixed("a node that it can do without goes back to its own pool"),
    "not-movable": _not_movable,
    "offered": _fixed("offered, and a loanable job waits"),
    "others-first": _fixed("preempted: jobs before it in the order take the whole cluster"),
    "packing": _fixed("packing and shortness: it suits best what was free"),
    "pool-wants": _fixed("its own pool needs it"),
    "profile-begins": _fixed("had this size when the profile took over"),
    "released": lambda facts: f"{facts.text('profile')}: the declared size",
    "room-to-come": lambda facts: f"waits for room on {facts.text('node')} that another job is about to give up",
    "short": _short,
    "slower": lambda facts: (
        f"was faster with fewer, {facts.number('there'):.3g} steps/s there, {facts.number('here'):.3g} here"
    ),
    "suspended": _fixed("suspended"),
    "time-saved": _fixed("what base demands leave goes where it saves most time"),
    "tries-size": _fixed("tries a size whose speed is not known"),
    "unknown-speed": _fixed("its speed is not known yet"),
    "unknown-steps": _fixed("best effort: how many steps it has is not known"),
    "waits-behind": lambda facts: f"waits behind {facts.text('job')}, which does not fit yet",
    "whole-cluster": _fixed("jobs before it in the order take the whole cluster"),
}
"""By code the words, from the facts that it has."""

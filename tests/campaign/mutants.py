"""Seeded defects: each a small replacement in the source of one module, made when it is first imported.

There is one of each kind that was found in the operator, so that few name a line that a change of the code moves: a
second leader, what a new leader does not look at, an old view that wins, what is forgotten, a copied identity, a target
that is old or lost, an end that is not the job's, a switch before its time, programs that stay or end, capacity that
is counted wrong, lost nodes, stops before the save, nodes that are lent, memory, and what hostile tenants send.

Each must be caught by an oracle of the campaign: in simulated time (`CAMPAIGN_MUTANT=name python -m campaign.run
--until-first`), or by hostile tenants of a real control plane (`python -m campaign.hostile --mutant=name`).

A process is of one mutant or of none. Nothing of the product may be imported before `install`, which is why this module
imports none of it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = ["MUTANTS", "Mutant", "install", "source_of"]

_PACKAGE: Final = "elastic_tfjob"


Part = Literal["simulation", "hostile"]
"""Of the campaign: in simulated time, or on a real control plane."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` must be in the module's source exactly once; `new` stands there instead. `what` goes wrong then. `part` of
    the campaign catches it; it tries `first` these scenarios, or families of hostile inputs, and then all others."""

    name: str
    module: str
    old: str
    new: str
    what: str
    part: Part
    first: tuple[str, ...]


MUTANTS: Final = {
    each.name: each
    for each in (
        Mutant(
            "lost-chief-is-waited-for",
            "controller.job.rescale",
            "if chief is not None and not (chief.ended or lost):",
            "if chief is not None:",
            "the other pods of a job that is stopped wait for a chief whose node is lost",
            "simulation",
            ("chief-lost",),
        ),
        Mutant(
            "refused-edit-is-forgotten",
            "controller.planning.targets",
            "for name, count in asked.items()) and _has(view, asked)",
            "for name, count in asked.items())",
            "an edit of replicas that could not be followed is not asked for again",
            "simulation",
            ("edit-refused", "edit-refused-kips"),
        ),
        Mutant(
            "cpu-before-its-holder-left",
            "controller.job.cpu",
            "if more > room.get(pod.node, 0):",
            "if False:",
            "pods that stay get the CPU of those that have not left yet",
            "simulation",
            ("leaves-slowly", "leaves-slowly-elastic"),
        ),
        Mutant(
            "lost-node-is-not-told",
            "controller.job.reconcile",
            "if pod.node and (pod.unreachable or pod.overdue(ctx.now)):",
            "if False:",
            "a job that does not train since a node of it is lost is told nothing",
            "simulation",
            ("las/user-actions", "elastic/user-actions"),
        ),
        Mutant(
            "two-leaders",
            "controller.kube.leader",
            'if holder not in ("", self._identity) and now < self._runs_out_at:',
            "if False:",
            "a candidate takes a lease that another one holds",
            "simulation",
            ("take-over",),
        ),
        Mutant(
            "new-leader-looks-at-nothing",
            "controller.operator",
            "self._leads, self._leads_since = True, time.monotonic()\n        self._look_at_all()",
            "self._leads, self._leads_since = True, time.monotonic()",
            "what happened while no operator led is never looked at",
            "simulation",
            ("start", "grow"),
        ),
        Mutant(
            "deleted-comes-back",
            "controller.kube.informer",
            "if entry.version <= self._tombstones.get(entry.uid, -1):",
            "if False:",
            "the late answer to a write, or a replayed event, brings a deleted object back",
            "simulation",
            ("resume", "recreate"),
        ),
        Mutant(
            "nobody-looks-again",
            "controller.kube.reconciler",
            "if decision.again_at is not None:",
            "if False:",
            "a job is only looked at when something happens to it",
            "simulation",
            ("start", "never-ready"),
        ),
        Mutant(
            "copied-state-counts",
            "controller.model.annotations",
            'return raw.text("uid", MAX_UID, default=uid) == uid',
            "return True",
            "a copy of a job inherits the state of the one that it was copied from",
            "simulation",
            ("copy",),
        ),
        Mutant(
            "state-over-a-newer-one",
            "controller.kube.executor",
            'body = {"metadata": {"uid": job.uid, "resourceVersion": str(version), "annotations": annotations}}',
            'body = {"metadata": {"uid": job.uid, "annotations": annotations}}',
            "a state that was decided from an old view of the job replaces a newer one",
            "simulation",
            ("late-state", "cut-off"),
        ),
        Mutant(
            "refused-workers-count-as-changed",
            "runtime.live_switch",
            """return self._why or ("" if answer.get("ok") else str(answer.get("why") or "refused"))""",
            """return self._why""",
            "a program that keeps its workers counts as one that has the new ones, whose pods then train nothing",
            "simulation",
            ("live-does-not-join",),
        ),
        Mutant(
            "live-takes-the-other-port",
            "controller.job.follow_target",
            'slot=state.slot if mode in ("live", "recreate") else 1 - state.slot,',
            'slot=state.slot if mode == "recreate" else 1 - state.slot,',
            "programs that stay are asked for on a port on which they do not listen",
            "simulation",
            ("live-grow",),
        ),
        Mutant(
            "servers-end-before-values-are-saved",
            "controller.job.prepare",
            "return ctx.launcher and (not heard or (report is not None and report.handing_over))",
            "return False",
            "parameter servers end while the previous program saves what they have",
            "simulation",
            ("handed-grow", "handed-slow"),
        ),
        Mutant(
            "giver-ends-at-once",
            "runtime.launcher",
            "if old is not None and given is not None:",
            "if old is not None and given == {}:",
            "the program that gave its values ends before it has saved them",
            "simulation",
            ("handed-slow",),
        ),
        Mutant(
            "old-target-holds",
            "controller.job.follow_target",
            "if not may or target.generation <= max(state.generation, tried):",
            "if not may:",
            "a target of an earlier generation, or one that was refused, is followed",
            "simulation",
            ("old-target", "roll-back"),
        ),
        Mutant(
            "stopped-pods-have-failed",
            "controller.model.pod",
            "return self.command == STOP_COMMAND",
            "return False",
            "a pod that the operator stops counts as one that failed",
            "simulation",
            ("blink",),
        ),
        Mutant(
            "committed-before-saved",
            "controller.job.rescale",
            'report.switch.state) == (coming, "committed"))',
            'report.switch.state) in ((coming, "committed"), (coming, "saving")))',
            "the operator takes a switch for done while the chief still saves",
            "simulation",
            ("no-room-to-save", "grow"),
        ),
        Mutant(
            "old-one-goes-on",
            "runtime.launcher",
            "        elif old is not None:\n            programs.stop(old, now_s)\n        self._log",
            "        self._log",
            "the program of the old size is not stopped after a switch",
            "simulation",
            ("grow",),
        ),
        Mutant(
            "left-is-forgotten",
            "runtime.moved_chief",
            "committed.get(_LEFT) is True",
            "committed.get(_LEFT) is None",
            "a chief's container that has left for another pod trains again after a restart",
            "simulation",
            ("chief-moves-container-ends",),
        ),
        Mutant(
            "next-chief-is-forgotten",
            "controller.job.rescale",
            "if gone and ctx.chief_moves and (pod :=",
            "if False and ctx.chief_moves and (pod :=",
            "a rollback does not wait for the end of the next chief, which may train",
            "simulation",
            ("chief-moves-evicted",),
        ),
        Mutant(
            "prepared-ends-the-pod",
            "runtime.programs",
            "if self.running is not None and pid == self.running.pid:",
            "if self.prepared is not None or (self.running is not None and pid == self.running.pid):",
            "a prepared program that dies ends the one that trains",
            "simulation",
            ("roll-back",),
        ),
        Mutant(
            "deep-answers",
            "controller.model.reports",
            "except RecursionError:",
            "except ZeroDivisionError:",
            "an answer that is nested too deeply is an error that nobody expects",
            "hostile",
            ("C1",),
        ),
        Mutant(
            "redirects-are-followed",
            "controller.kube.reports",
            "headers=headers, allow_redirects=False) as response",
            "headers=headers, allow_redirects=True) as response",
            "a pod sends the operator to any address",
            "hostile",
            ("H1",),
        ),
        Mutant(
            "counts-without-bound",
            "api.reading",
            "MAX_REPLICAS: Final = 2_000",
            "MAX_REPLICAS: Final = 2_000_000_000",
            "a job may have any number of replicas",
            "hostile",
            ("C5",),
        ),
        Mutant(
            "exporter-fails-the-job",
            "controller.model.pod",
            'return 0 if container["name"] in (EXPORTER, INSTALL) else',
            "return 0 if False else",
            "restarts of the operator's own container count against the user's limit",
            "hostile",
            ("H4",),
        ),
        Mutant(
            "ends-before-it-is-saved",
            "controller.job.stopping",
            'if answer is not None and answer.state == "saved":',
            "if said is not None:",
            "the pods of a job that is stopped end when its checkpoint was asked for, and not when it is there",
            "simulation",
            ("preempted-late",),
        ),
        Mutant(
            "promised-before-it-is-lent",
            "controller.planning.targets",
            'if node.loan in ("own", "loaned")}',
            'if node.loan in ("own", "loaned", "offered")}',
            "a job is sent to a node of another pool before the node says that it is lent",
            "simulation",
            ("loan",),
        ),
        Mutant(
            "everybody-is-a-guest",
            "controller.planning.core_job",
            "loanable=elasticity.loanable and request.stoppable,",
            "loanable=True,",
            "a job that is not loanable is sent to a node that is lent",
            "simulation",
            ("loan",),
        ),
        Mutant(
            "returned-with-guests-on-it",
            "controller.planning.lending",
            "elif cluster.holds_jobs(loan.node):",
            "elif False:",
            "a node loses its taint while a guest trains on it",
            "simulation",
            ("recall",),
        ),
        Mutant(
            "quantities-without-end",
            "api.tfjob",
            "exponent = _EXPONENT.search(amount)",
            'exponent = _EXPONENT.search(str(10 ** int(amount.partition("e")[2] or 0)))',
            "a quantity of a billion digits is counted to its last one",
            "hostile",
            ("C4",),
        ),
        Mutant(
            "room-is-taken-by-nobody",
            "scheduling.room",
            "self.take(after.spec, after.placement, after.cpu)",
            "pass",
            "what a job holds counts as free",
            "simulation",
            ("room",),
        ),
        Mutant(
            "room-never-comes-back",
            "scheduling.room",
            "self.give(before.spec, before.placement, before.cpu)",
            "pass",
            "what a job held never counts as free again",
            "simulation",
            ("room",),
        ),
        Mutant(
            "exporter-tells-no-switch",
            "exporter.status",
            '"state": switch.text("state"),',
            '"state": "",',
            "the operator never learns how far a switch is",
            "simulation",
            ("grow",),
        ),
        Mutant(
            "no-way-back",
            "controller.job.rescale",
            "failed = never_begins(ctx, limit_s)",
            'failed = ""',
            "a size that makes no first step is never left",
            "simulation",
            ("dies-at-start", "dies-recreated"),
        ),
        Mutant(
            "ends-before-it-is-admitted",
            "controller.job.follow_target",
            'if mode == "recreate" and target.replicas:',
            "if False:",
            "pods end for others that a quota refuses",
            "simulation",
            ("quota-is-full",),
        ),
        Mutant(
            "taints-of-others-go",
            "controller.schedule.loans",
            'others = [taint for taint in taints if taint["key"] != LOANED_TAINT]',
            "others = []",
            "lending a node removes the taints that others have put on it",
            "simulation",
            ("loan",),
        ),
        Mutant(
            "memory-without-end",
            "scheduling.memory_limit",
            "return max(limit, min(_rounded(wanted), most))",
            "return max(limit, _rounded(wanted))",
            "memory is raised beyond what the user allows",
            "simulation",
            ("memory-grows",),
        ),
        Mutant(
            "memory-at-each-pass",
            "controller.job.memory",
            "elif fits(rule, limit, use):",
            "elif False:",
            "memory is raised for replicas that need no more",
            "simulation",
            ("memory-grows",),
        ),
        Mutant(
            "kill-is-forgotten",
            "controller.job.memory",
            "wanted = after_kill(rule, limit, most)",
            "wanted = limit",
            "a replica that was killed for memory gets no more, and is killed again",
            "simulation",
            ("memory-jumps",),
        ),
        Mutant(
            "one-kill-hides-others",
            "controller.job.memory",
            "last = moment_of(known.killed.get(index))",
            "last = moment_of(max(known.killed.values(), default=None))",
            "of replicas that are killed together one is told of",
            "simulation",
            ("memory-jumps",),
        ),
        Mutant(
            "memory-before-it-is-stored",
            "controller.job.memory",
            "    return replace(state, memory=found) if found != state.memory else state",
            """    for name, each in found.items():
        for pod in ctx.of_type(name):
            if pod.memory.bound < (each.raised or 0):
                wanted = raised_to(pod.memory, each.raised or 0)
                ctx.actions.append(ResizeMemory(pod.name, pod.uid, wanted, container=pod.trains))
                return state
    return replace(state, memory=found) if found != state.memory else state""",
            "pods get memory that is stored only when they have it",
            "simulation",
            ("memory-grows",),
        ),
        Mutant(
            "request-stays-behind",
            "controller.model.memory",
            "return MemoryAsked(max(asked.request, raised - below), raised if asked.limit else 0)",
            "return MemoryAsked(asked.request, raised if asked.limit else 0)",
            "a replica may use memory that its node does not keep for it",
            "simulation",
            ("memory-grows",),
        ),
        Mutant(
            "room-of-the-old-memory",
            "scheduling.snapshot",
            "return self.spec.groups, self.placement, self.cpu",
            "return (), self.placement, self.cpu",
            "what a job is raised to is given back without having been taken",
            "simulation",
            ("memory-node-full",),
        ),
        Mutant(
            "room-for-what-was-deferred",
            "controller.planning.job_view",
            "if reservations.placement[role[0]][role[1]] == pod.node",
            "if True",
            "a replica stays on a node that has no memory for it",
            "simulation",
            ("memory-node-full",),
        ),
    )
}


def source_of(mutant: Mutant) -> Path:
    """The file that it changes."""
    return Path(__file__).parents[2] / "operator" / _PACKAGE / f"{mutant.module.replace('.', '/')}.py"


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        mutant = self._mutant
        if source.count(mutant.old) != 1:
            raise ImportError(f"mutant {mutant.name}: {mutant.old!r} is {source.count(mutant.old)} times in {path}")
        return compile(source.replace(mutant.old, mutant.new), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != f"{_PACKAGE}.{self._mutant.module}":
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        loader = _Loader(fullname, found.origin, self._mutant)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def install(name: str) -> None:
    """Have one module imported with its defect. Raises KeyError for a mutant that does not exist, RuntimeError when it
    comes too late."""
    mutant = MUTANTS[name]
    if f"{_PACKAGE}.{mutant.module}" in sys.modules:
        raise RuntimeError(f"{mutant.module} is imported already")
    sys.meta_path.insert(0, _Finder(mutant))

"""Seeded defects: each a small replacement in the source of one module, made when it is first imported.

They are of the kinds that were found in the operator, and each must be caught by an oracle of the campaign: in
simulated time (`CAMPAIGN_MUTANT=name python -m campaign.run --until-first`), or by hostile tenants of a real control
plane (`python -m campaign.hostile --mutant=name`).

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
            "for name, count in asked.items()) and _has(scheduled, asked)",
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
            "room-of-those-that-leave-is-waited-for",
            "controller.job.prepare",
            "return bool(moving) or min(changes) < 0 < max(changes)",
            "return False",
            "on full nodes a change that adds and removes pods is prepared beside the running ones, for ever",
            "simulation",
            ("kips/user-actions", "las/user-actions"),
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
            "leads-without-a-lease",
            "controller.kube.leader",
            "return LEASE_S - MARGIN_S - age_s if age_s < RENEW_S else 0.0",
            "return LEASE_S",
            "a leader that cannot renew its lease goes on to act",
            "simulation",
            ("cut-off",),
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
            "nobody-is-asked-again",
            "controller.kube.reports",
            "if source.due is not None:\n                    self._queue(key, source, 0.0)\n\n    def _let_through",
            "pass\n\n    def _let_through",
            "pods that a replica knew before it led are never asked for their status",
            "simulation",
            ("take-over", "grow"),
        ),
        Mutant(
            "scheduler-begins-with-nothing",
            "controller.schedule.loop",
            "self._runs = True\n        self._reset()",
            "self._runs = True",
            "a new leader decides nothing for jobs that it knew before it led",
            "simulation",
            ("kips",),
        ),
        Mutant(
            "stale-event-wins",
            "controller.kube.informer",
            "if any(known is not None and known.version >= entry.version for known in (before, namesake)):",
            "if False:",
            "an old event brings an old object back",
            "simulation",
            ("stop-at-once",),
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
            "list-forgets-nothing",
            "controller.kube.informer",
            "for entry in [each for each in among() if each.uid not in found and each.version <= int(version)]:",
            "for entry in ():",
            "what was deleted while the watch was away stays in the cache",
            "simulation",
            ("resume", "recreate", "delete"),
        ),
        Mutant(
            "gone-is-no-news",
            "controller.kube.informer",
            "self._touched(known.key)\n            self._changed(known.key)",
            "self._touched(known.key)",
            "a pod that is gone is not made anew",
            "simulation",
            ("refused-node",),
        ),
        Mutant(
            "relabelled-is-no-news",
            "controller.kube.informer",
            "self._touched(before.key)\n            self._changed(before.key)",
            "pass",
            "a job does not learn that a label gave its pod away",
            "simulation",
            ("relabelled",),
        ),
        Mutant(
            "lost-answer-is-an-error",
            "controller.kube.executor",
            'if not _is_the_same(answer["metadata"], body["metadata"], job.uid):',
            "if True:",
            "a pod whose creation was not answered is never taken in",
            "simulation",
            ("start",),
        ),
        Mutant(
            "added-while-handled",
            "controller.kube.queue",
            "if at_once or (at_once is False and key not in self._retry_at):",
            "if False:",
            "a key that was added while it was handled is forgotten",
            "simulation",
            ("start", "grow"),
        ),
        Mutant(
            "no-retry",
            "controller.kube.queue",
            "self._add_at(key, self._retry_at[key])",
            "pass",
            "a job whose pass failed is not looked at again",
            "simulation",
            ("pods-refused",),
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
            "refused-for-ever",
            "controller.kube.executor",
            "self._delays[key], self.until[key] = delay_s, now + timedelta(seconds=delay_s)",
            "self._delays[key], self.until[key] = delay_s, now + timedelta(days=365)",
            "a change of CPU that was refused once is never tried again",
            "simulation",
            ("cpu-refused",),
        ),
        Mutant(
            "copied-state-counts",
            "controller.objects.annotations",
            'return raw.text("uid", MAX_UID, default=uid) == uid',
            "return True",
            "a copy of a job inherits the state of the one that it was copied from",
            "simulation",
            ("copy",),
        ),
        Mutant(
            "others-pods-count",
            "controller.job.context",
            "own = (pod for pod in observed.pods if pod.owner == self.job.uid)",
            "own = (pod for pod in observed.pods)",
            "pods that an earlier job of the same name left count as this job's",
            "simulation",
            ("anew",),
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
            "old-target-holds",
            "controller.job.rescale",
            "if not may or target.generation <= max(state.generation, tried):",
            "if not may:",
            "a target of an earlier generation, or one that was refused, is followed",
            "simulation",
            ("old-target", "roll-back"),
        ),
        Mutant(
            "moves-are-not-carried-out",
            "controller.job.rescale",
            "moving = moves(state, target, ctx.by_role) if newer and (ctx.elastic or ctx.stoppable) else ()",
            "moving: tuple[Move, ...] = ()",
            "other nodes for replicas that run are written into the state, and nothing moves",
            "simulation",
            ("move-worker", "move-ps"),
        ),
        Mutant(
            "stopped-pods-have-failed",
            "controller.objects.pod",
            "return self.command == STOP_COMMAND",
            "return False",
            "a pod that the operator stops counts as one that failed",
            "simulation",
            ("blink",),
        ),
        Mutant(
            "marked-pods-are-kept",
            "controller.job.replicas",
            "unfinished = pod.stopped_by_us and not hold",
            "unfinished = False",
            "a pod that was marked, and not deleted, is never deleted and never counts",
            "simulation",
            ("blink",),
        ),
        Mutant(
            "ended-at-another-size",
            "controller.job.conditions",
            "counts.succeeded = replica.count if all_have else min(counts.succeeded, replica.count)",
            "pass",
            "a job that succeeds with another size than its spec's is not counted as declared",
            "simulation",
            ("grow-and-end",),
        ),
        Mutant(
            "committed-before-saved",
            "controller.job.rescale",
            'if report.switch.state == "committed":',
            'if report.switch.state in ("committed", "saving"):',
            "the operator takes a switch for done while the chief still saves",
            "simulation",
            ("no-room-to-save", "grow"),
        ),
        Mutant(
            "rolled-back-unheard",
            "controller.job.rescale",
            "if gone or cancelled or (lost and chief is not None and chief.terminating):",
            "if True:",
            "a rollback does not wait for the chief to give up",
            "simulation",
            ("told-late",),
        ),
        Mutant(
            "refused-is-tried-again",
            "controller.job.rescale",
            "tried = state.refused.generation if state.refused is not None else -1",
            "tried = -1",
            "a size that could not be had is tried again at once, for ever",
            "simulation",
            ("roll-back",),
        ),
        Mutant(
            "waits-for-ever",
            "controller.job.rescale",
            "if missing and ctx.unheard_s > ctx.timeouts.prepare_s:",
            "if False:",
            "a program of the next size that hangs is waited for without end",
            "simulation",
            ("never-ready",),
        ),
        Mutant(
            "same-port-again",
            "controller.job.rescale",
            'slot=state.slot if mode == "recreate" else 1 - state.slot,',
            "slot=state.slot,",
            "the next size's programs get the ports of those that run",
            "simulation",
            ("grow",),
        ),
        Mutant(
            "all-at-once",
            "controller.job.rescale",
            "if chief is not None and not (chief.ended or lost):",
            "if False:",
            "parameter servers are ended before the chief has saved what is on them",
            "simulation",
            ("recreate",),
        ),
        Mutant(
            "ended-by-us-unmarked",
            "controller.job.rescale",
            "if unmarked and ctx.elapsed_s < ctx.timeouts.recreate_s:",
            "if False:",
            "pods that end because the chief was ended first count as failed, and the job fails",
            "simulation",
            ("recreate-never",),
        ),
        Mutant(
            "hook-is-waited-for",
            "controller.job.prepare",
            "if report is None or report.hook is not False or ctx.current.step is not None:",
            "if True:",
            "a program that will never report a step is waited for as if it would",
            "simulation",
            ("no-hook",),
        ),
        Mutant(
            "switch-before-ready",
            "runtime.switching",
            'elif self.asked is None and prepared.state == "ready":',
            "elif self.asked is None:",
            "the running program saves before the next one waits",
            "simulation",
            ("chief-dies",),
        ),
        Mutant(
            "old-one-goes-on",
            "runtime.switching",
            "        if old is not None:\n            self._stop(old, now)\n        self._log",
            "        self._log",
            "the program of the old size is not stopped after a switch",
            "simulation",
            ("grow",),
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
            "prepared-stays",
            "runtime.launcher",
            "running.generation == command.generation:\n                self._drop_prepared()",
            "running.generation == command.generation:\n                pass",
            "a program that was prepared for a size that is not wanted any more stays",
            "simulation",
            ("roll-back", "never-ready"),
        ),
        Mutant(
            "save-is-not-withdrawn",
            "runtime.switching",
            "(self._folder(self.running) / protocol.SAVE).unlink()",
            "pass",
            "a program that saved for a switch that was given up stands still for ever",
            "simulation",
            ("prepared-dies-late",),
        ),
        Mutant(
            "finished-jobs-keep-their-room",
            "controller.planning.job_view",
            "ours = spec.managed_here() and not job.status().finished",
            "ours = spec.managed_here()",
            "what a finished job had is never given to those that wait",
            "simulation",
            ("room",),
        ),
        Mutant(
            "node-is-refused-in-vain",
            "controller.planning.core_job",
            "elif _waited_s(pod, now_s) >= PATIENCE_S:",
            "elif False:",
            "a pod that kube-scheduler refuses its node waits for it for ever",
            "simulation",
            ("refused-node",),
        ),
        Mutant(
            "deep-answers",
            "controller.objects.reports",
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
            "answers-without-end",
            "controller.kube.client",
            'limit: int) -> bytes:\n    """The body of an answer',
            'limit: int) -> bytes:\n    limit = 2**40\n    """The body of an answer',
            "a pod's answer is read to its end, however long it is",
            "hostile",
            ("an endless body",),
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
            "years-without-end",
            "api.reading",
            "if seconds >= (LATEST - moment).total_seconds():",
            "if False:",
            "a time beyond the calendar's end is an error in every pass",
            "hostile",
            ("H2",),
        ),
        Mutant(
            "numbers-of-any-type",
            "api.reading",
            "if type(value) is not int or not least <= value <= most:",
            "if False:",
            "what stands where a number belongs is taken for one",
            "hostile",
            ("C5: state.generation", "C3"),
        ),
        Mutant(
            "texts-of-any-type",
            "api.reading",
            'if not isinstance(value, str):\n            raise self.wrong(name, "a text")',
            'if False:\n            raise self.wrong(name, "a text")',
            "what stands where a text belongs is taken for one",
            "hostile",
            ("C2",),
        ),
        Mutant(
            "exporter-fails-the-job",
            "controller.objects.pod",
            'return 0 if container["name"] in (EXPORTER, INSTALL) else',
            "return 0 if False else",
            "restarts of the operator's own container count against the user's limit",
            "hostile",
            ("H4",),
        ),
        Mutant(
            "nothing-has-succeeded",
            "controller.job.conditions",
            "return ctx.state is None or bool(ctx.state.replicas.get(name))",
            "return True",
            "a replica type without a pod counts as one that has succeeded",
            "hostile",
            ("H5",),
        ),
        Mutant(
            "ends-before-it-is-saved",
            "controller.job.stopping",
            'if said is not None and said.state == "saved":',
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
            "recall-is-forgotten",
            "controller.schedule.loans",
            "self._writes = (*lent.writes, *asked_by_plan(loans, lent, cluster)) if cluster is not None else ()",
            "asked = asked_by_plan(loans, lent, cluster) if cluster is not None else ()\n"
            '        mine = self.__dict__.setdefault("mine", set())\n'
            "        mine.update(write.seen.name for write in asked)\n"
            "        self._writes = (*(write for write in lent.writes if write.seen.name in mine), *asked)",
            "a node that another operator has recalled never goes back",
            "simulation",
            ("recall",),
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
            "everybody-tolerates-the-taint",
            "controller.job.replicas",
            "if ctx.elasticity.loanable:",
            "if True:",
            "pods of jobs that are not loanable get the toleration",
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
            "only-pods-are-guests",
            "controller.planning.lending",
            "return name in self.trained or name in self.promised",
            "return name in self.trained",
            "a node goes back though a job is on its way to it",
            "simulation",
            ("recall-early", "recall"),
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
            "exporter.files",
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
            "trial-fails-the-job",
            "controller.job.replicas",
            'if state is None or not state.on_trial or pod.phase != "Failed":',
            "if True:",
            "a pod that fails in a size which made no step fails the job",
            "simulation",
            ("dies-at-start-for-good",),
        ),
        Mutant(
            "ends-before-it-is-admitted",
            "controller.job.rescale",
            'if mode == "recreate" and target.replicas:',
            "if False:",
            "pods end for others that a quota refuses",
            "simulation",
            ("quota-is-full",),
        ),
        Mutant(
            "refused-pods-are-waited-for",
            "controller.job.prepare",
            "if refused := ctx.refusal(roles_of(ctx.current)):",
            'if refused := "":',
            "pods that are refused after the others ended are waited for until the limit of a first step",
            "simulation",
            ("quota-closes",),
        ),
        Mutant(
            "dies-beside-itself-for-ever",
            "controller.job.prepare",
            "[mode for mode in _BESIDE if deaths.too_many(mode)]",
            "[]",
            "a program that dies whenever it is prepared beside itself is prepared again",
            "simulation",
            ("own-port",),
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

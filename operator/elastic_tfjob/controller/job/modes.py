"""Which mode of rescaling a job gets: `overlap`, `spare` or `recreate`. Pure."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import orjson

from elastic_tfjob.api.replica_words import count_in_words
from elastic_tfjob.api.tfjob import TFJobSpec
from elastic_tfjob.controller.job.describe import describe_role
from elastic_tfjob.controller.job.inject import needs_accelerator
from elastic_tfjob.controller.job.moves import Move
from elastic_tfjob.controller.job.rescale_input import RescaleInput, roles_of
from elastic_tfjob.controller.objects.pod import Pod
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.size import Mode
from elastic_tfjob.controller.objects.state import MOST_DEATHS, Deaths
from elastic_tfjob.controller.objects.status import moment_of

# A second program beside the first needs about what that one uses: its heap, less the libraries that they share.
_SECOND_PROGRAM: Final = 0.8
# A program that makes steps has told its launcher that it can be rescaled; so long after, the launcher has looked.
_MODES_S: Final = 5.0
# Of a program that was started later than this, nobody knows yet that it will not construct ElasticCheckpoint, whatever
# its launcher says.
_HOOK_S: Final = 30.0
# Modes in which a program starts beside the one that runs, the best first.
_BESIDE: Final[tuple[Mode, ...]] = ("overlap", "spare")


def choose_mode(s: RescaleInput, moving: Sequence[Move] = (), *, numbered: bool = True) -> tuple[Mode | None, str]:
    """The best way of rescaling that is allowed and possible, and why it is no better one where that is no choice of
    the user's; None: not known yet, and what is waited for. `moving` replicas get pods beside theirs if those can be
    `numbered`."""
    chief, report = s.by_role.get(s.chief), s.report(s.chief)
    if any(each.role == s.chief for each in moving):
        # It decides the switch, alone: nobody could hand that over to another pod.
        return "recreate", f"{describe_role(s.chief)} leads the training, and moves"
    if not numbered:
        return "recreate", "there are no numbers or names left for pods beside those that it has"
    if s.job.queue and (name := _beyond_admitted(s, moving)):
        admitted = count_in_words(s.declared[name], name)
        return "recreate", f"Kueue admitted {admitted} (queue {s.job.queue}), and no others beside them"
    if s.mode == "recreate" or not s.launcher or chief is None or chief.phase != "Running":
        return "recreate", ""
    if report is None or report.generation != s.state.generation or report.first_step_at is None:
        if _without_hook(s, chief, report):
            return "recreate", "the program does not use ElasticCheckpoint"
        heard = report is not None and report.generation == s.state.generation
        if heard and s.target is not None and s.target.cause == "repair":
            # Its nodes are going away, and a recall has a limit: its start is all that there is to lose.
            return "recreate", f"{describe_role(s.chief)} has made no step yet"
        limit_s = s.timeouts.hook_s
        if min(s.unheard_s, _running_s(s, chief)) > limit_s:
            return "recreate", f"{describe_role(s.chief)} has not reported a step for {limit_s:.0f} s"
        step = f"waits until {describe_role(s.chief)} reports a step, at most {limit_s:.0f} s"
        return None, f"{step}; then its pods are recreated"
    if _needs_room_of_its_own(s, moving):
        return "recreate", "there is no room for its new pods before others have left"
    if not report.modes and report.at - report.first_step_at < _MODES_S:
        return None, f"waits until the launcher of {describe_role(s.chief)} says what it can do"
    reports = [found for role in roles_of(s.state) if (found := s.report(role)) is not None]
    offered = set.intersection(*(set(each.modes) for each in reports))
    overlap = s.mode == "overlap" and "overlap" in offered and all(map(_room_for_two, reports))
    overlap = overlap and not needs_accelerator(s.spec)
    deaths = known_deaths(s)
    if deaths is None:
        return "overlap" if overlap else "spare" if "spare" in offered else "recreate", ""
    dies: list[Mode] = [mode for mode in _BESIDE if deaths.too_many(mode)]
    if overlap and "overlap" not in dies:
        return "overlap", ""
    left: Mode = "spare" if "spare" in offered and "spare" not in dies else "recreate"
    said = f"in mode {' and '.join(dies)} a program has not come up {MOST_DEATHS} times beside the running one"
    return left, f"{said}: {deaths.reason}" if dies else ""


def known_deaths(s: RescaleInput) -> Deaths | None:
    """Deaths of prepared programs of the job's present templates: an edit of these may have mended the program."""
    deaths = s.state.deaths
    return deaths if deaths is not None and deaths.template == templates_digest(s.spec) else None


def templates_digest(spec: TFJobSpec) -> str:
    """A digest of the pod templates, in 16 characters."""
    templates = {name: replica.template for name, replica in spec.tf_replica_specs.items()}
    return blake2b(orjson.dumps(templates, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def _beyond_admitted(s: RescaleInput, moving: Sequence[Move]) -> str:
    """A type that would have more pods than the spec says while some are prepared beside those that move, or none."""
    coming = s.target.replicas if s.target is not None else s.state.replicas
    beside = Counter(each.name for each in moving)
    most = {name: max(s.state.replicas.get(name, 0), coming.get(name, 0)) for name in beside}
    return next((name for name, more in beside.items() if most[name] + more > s.declared[name]), "")


def _needs_room_of_its_own(s: RescaleInput, moving: Sequence[Move]) -> bool:
    """Whether the last change was refused because its new pods had no room, and this one adds and removes some."""
    refused, target = s.state.refused, s.target
    if refused is None or not refused.no_room or refused.generation < s.state.generation or target is None:
        return False
    names = {*target.replicas, *s.state.replicas}
    changes = [target.replicas.get(name, 0) - s.state.replicas.get(name, 0) for name in names]
    return bool(moving) or min(changes) < 0 < max(changes)


def _without_hook(s: RescaleInput, chief: Pod, report: Report | None) -> bool:
    """Whether the chief's program has had time to construct ElasticCheckpoint, and has not. One that reported steps
    before does so again when it is made anew, however long its imports take."""
    if report is None or report.hook is not False or s.state.step is not None:
        return False
    return _running_s(s, chief) >= _HOOK_S


def _running_s(s: RescaleInput, chief: Pod) -> float:
    """For how long the chief's program runs: since its container was started, the last time."""
    began = moment_of(chief.running_since)
    return s.elapsed_s if began is None else (s.now - began).total_seconds()


def _room_for_two(report: Report) -> bool:
    used, limit = report.memory.used_bytes, report.memory.limit_bytes
    return used is None or limit is None or limit - used >= _SECOND_PROGRAM * used

"""What the API server admits of a pod that it refused with what the operator adds: asked by dry runs."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Final

import structlog

from elastic_tfjob.controller.job.decision import AdmissionTrial
from elastic_tfjob.controller.job.namespace_rules import Freed, fitted, room_if_left
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid
from elastic_tfjob.controller.model.injection import UNCOUNTED, Injection
from elastic_tfjob.controller.model.quantities import quantity

__all__ = ["Trials"]

log = structlog.get_logger(__name__)

# Dry runs for one refusal; and how often a job may come back with another one before it gets pods without injection.
_DRY_RUNS: Final = 6
_CHANGES: Final = 5
# Where a pod is refused without injection, too, each of its job's may be, again and again.
_AGAIN_S: Final = 30.0
_KNOWN_S: Final = 600.0
# The API server's words where a webhook of others does not say that it may be asked for nothing.
_NO_DRY_RUN: Final = "does not support dry run"


class Trials:
    """What was found, by the job's uid, until its state has it."""

    def __init__(self, api: ApiClient, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._at: dict[str, float] = {}
        self.found: Final[dict[str, Injection]] = {}

    def stored(self, uid: str) -> None:
        """The job's state has been stored."""
        if self.found.pop(uid, None) is not None:
            self._at.pop(uid, None)

    async def look(self, uid: str, collection: str, trial: AdmissionTrial, refusal: Invalid) -> None:
        """Find out what is admitted instead of a pod that was refused. Many of a job's pods are refused at once, for
        the same reason: one is tried."""
        now = self._now()
        if uid in self.found or now - self._at.get(uid, -_AGAIN_S) < _AGAIN_S:
            return
        for old in [each for each, at in self._at.items() if now - at > _KNOWN_S]:
            del self._at[old]
            self.found.pop(old, None)
        self._at[uid] = now
        try:
            found = await self._admitted(collection, trial, refusal.message)
        except ApiError as error:  # it is away, or the namespace is
            log.info("not tried without injection", error=str(error))
            return
        if found is not None:
            self.found[uid] = found

    async def _admitted(self, collection: str, trial: AdmissionTrial, refusal: str) -> Injection | None:
        """The injection nearest to what was refused; None where the pod is refused without any."""
        sentence, resources, tries = refusal, trial.resources, trial.tries + 1
        tried = [(Injection(resources, tries=tries), refusal)]
        for _ in range(_DRY_RUNS if tries <= _CHANGES else 0):
            if (coming := fitted(resources, sentence)) is None:
                break
            resources, injection = coming, Injection(coming, tries=tries)
            if not (sentence := await self._refusal(collection, trial, injection)):
                return injection
            tried.append((injection, sentence))
        last = Injection(refused=refusal)
        for injection in (Injection(UNCOUNTED, tries=tries), last) if tries <= _CHANGES else (last,):
            if not (sentence := await self._refusal(collection, trial, injection)):
                return injection
            tried.append((injection, sentence))
        # Nothing is admitted beside the job's other pods. Perhaps since those have what the operator added.
        fits = (each for each, why in tried if room_if_left(why, _freed(trial, each)))
        return next((replace(each, anew=True) for each in fits), None)

    async def _refusal(self, collection: str, trial: AdmissionTrial, injection: Injection) -> str:
        """Why a pod is refused; empty where it is not, or nobody can tell without making it."""
        try:
            await self._api.post(collection, trial.render(injection), dryRun="All")
        except Conflict:
            return ""
        except Invalid as error:
            return "" if _NO_DRY_RUN in error.message else error.message or error.reason or "no reason is given"
        return ""


def _freed(trial: AdmissionTrial, injection: Injection) -> Freed:
    """What the job's other pods ask for beyond what they would with another injection; empty where that is the same."""
    amounts: dict[tuple[str, str], Decimal] = {}
    for added, pods in Counter(pod.added for pod in trial.pods if pod.injected and not pod.ended).items():
        for kind, name, text in added:
            less = quantity(text) - quantity((injection.resources.get(kind) or {}).get(name))
            amounts[kind, name] = amounts.get((kind, name), Decimal(0)) + pods * less
    return amounts if any(amounts.values()) else {}

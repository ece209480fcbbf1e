"""Finds, by dry runs, what the operator may inject into a pod that the API server rejected with its injection."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Final

import structlog

from elastic_tfjob.api.quantity import quantity
from elastic_tfjob.controller.job.decision import AdmissionTrial
from elastic_tfjob.controller.job.namespace_rules import Freed, fitted, room_if_left
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, Invalid
from elastic_tfjob.controller.model.injection import UNCOUNTED, Injection

__all__ = ["Trials"]

log = structlog.get_logger(__name__)

# Dry runs per rejection; and how many changed injections of a job may be rejected before it gets pods without one.
_DRY_RUNS: Final = 6
_CHANGES: Final = 5
# If pods are rejected even without an injection, all pods of the job may be rejected repeatedly. A job's dry runs start
# at most once per _AGAIN_S; results are dropped after _KNOWN_S.
_AGAIN_S: Final = 30.0
_KNOWN_S: Final = 600.0
# The API server's message if a webhook of another project does not declare that it supports dry runs.
_NO_DRY_RUN: Final = "does not support dry run"


class Trials:
    """Searches for admitted injections. `found` has them by job uid, until they are stored in the job's state."""

    def __init__(self, api: ApiClient, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._at: dict[str, float] = {}
        self.found: Final[dict[str, Injection]] = {}

    def stored(self, uid: str) -> None:
        """Report that the job's state was stored."""
        if self.found.pop(uid, None) is not None:
            self._at.pop(uid, None)

    async def look(self, uid: str, collection: str, trial: AdmissionTrial, refusal: Invalid) -> None:
        """Find an injection that is admitted in place of the rejected one. Many pods of a job are rejected at once for
        the same reason, so only one of them is tried."""
        now = self._now()
        if uid in self.found or now - self._at.get(uid, -_AGAIN_S) < _AGAIN_S:
            return
        for old in [each for each, at in self._at.items() if now - at > _KNOWN_S]:
            del self._at[old]
            self.found.pop(old, None)
        self._at[uid] = now
        try:
            found = await self._admitted(collection, trial, refusal.message)
        except ApiError as error:  # the API server is unreachable, or the namespace is gone
            log.info("dry run without the injected containers failed", error=str(error))
            return
        if found is not None:
            self.found[uid] = found

    async def _admitted(self, collection: str, trial: AdmissionTrial, refusal: str) -> Injection | None:
        """The admitted injection nearest to the rejected one; None if the pod is rejected even without injection."""
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
        # No injection is admitted next to the job's other pods, perhaps because their injected containers use up the
        # quota. An injection then fits if those pods are recreated with it, too.
        fits = (each for each, why in tried if room_if_left(why, _freed(trial, each)))
        return next((replace(each, recreated=True) for each in fits), None)

    async def _refusal(self, collection: str, trial: AdmissionTrial, injection: Injection) -> str:
        """The reason why a pod is rejected; empty if it is admitted or if a dry run cannot tell."""
        try:
            await self._api.post(collection, trial.render(injection), dryRun="All")
        except Conflict:
            return ""
        except Invalid as error:
            return "" if _NO_DRY_RUN in error.message else error.message or error.reason or "no reason is given"
        return ""


def _freed(trial: AdmissionTrial, injection: Injection) -> Freed:
    """The resources that the job's other pods would free with `injection` in place of their current one, by `requests`
    or `limits` and resource name. Empty if nothing changes."""
    amounts: dict[tuple[str, str], Decimal] = {}
    for added, pods in Counter(pod.added for pod in trial.pods if pod.injected and not pod.ended).items():
        for kind, name, text in added:
            less = quantity(text) - quantity((injection.resources.get(kind) or {}).get(name))
            amounts[kind, name] = amounts.get((kind, name), Decimal(0)) + pods * less
    return amounts if any(amounts.values()) else {}

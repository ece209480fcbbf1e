"""Leader election with a Lease: one replica acts, all other replicas keep their caches up to date.

The implementation of the `kubernetes` package is not used: it ends on the first broken connection, trusts the wall
clock, and does not release the lease on a graceful stop.
"""

import asyncio
import math
import time
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from elastic_tfjob.controller.kube import metrics
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, NotFound
from elastic_tfjob.controller.kube.supervise import excerpt, trace

__all__ = ["LeaderElection"]

log = structlog.get_logger(__name__)

# The values of controller-runtime: after a leader's death another replica acts within LEASE_S + RETRY_S.
LEASE_S: Final = 15.0
RENEW_S: Final = 10.0
RETRY_S: Final = 2.0
MARGIN_S: Final = 2.0
"""Seconds between the end of a write and the time when another candidate may lead: clocks differ in speed, and a
connection reset takes time to arrive."""
# Linux has a clock that also counts the time while the machine is suspended.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeaderElection:
    """One candidate for one Lease. All durations are measured on this process's monotonic clock: a candidate takes over
    a lease that it has seen unchanged for the whole lease duration. Clocks of other machines do not matter."""

    def __init__(self, api: ApiClient, *, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seen: str | None = None
        self._runs_out_at = 0.0
        # On two clocks: after a machine was paused from outside, perhaps only its wall clock is corrected.
        self._renewed_at = -math.inf, -math.inf

    async def acquire(self) -> int:
        """Wait until this candidate is the leader. Returns the resource version of its lease. All earlier leaders'
        writes have lower versions, because kube-apiserver numbers all writes in one sequence."""
        while not await self._try():
            left_s = self._runs_out_at - time.monotonic()
            await asyncio.sleep(left_s if 0 < left_s < RETRY_S else RETRY_S)
        metrics.LEADER.set(1)
        log.info("leading", identity=self._identity)
        return int(self._seen or 0)

    async def keep(self) -> None:
        """Renew the lease until it is lost. After the return the caller must stop acting at once."""
        while self.holds():
            await asyncio.sleep(RETRY_S)
            await self._try()
        metrics.LEADER.set(0)
        log.error("leadership lost", identity=self._identity)

    def holds(self) -> bool:
        """Whether the last renewal is recent enough to act. False in a process that has just resumed after a pause."""
        return self.left_s() > 0

    def left_s(self) -> float:
        """Seconds that a write started now may take: until MARGIN_S before another candidate may lead. 0 if the last
        renewal is not recent enough to start a write."""
        age_s = max(now - then for now, then in zip(_clocks(), self._renewed_at, strict=True))
        return LEASE_S - MARGIN_S - age_s if age_s < RENEW_S else 0.0

    async def release(self) -> None:
        """Release the lease, so that another candidate need not wait until it expires."""
        try:
            lease = await self._api.once("GET", f"{self._path}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.once("PUT", f"{self._path}/{self._name}", lease)
                log.info("lease released", identity=self._identity)
        except ApiError as error:
            log.warning("lease not released", error=str(error))

    async def _try(self) -> bool:
        """Try once to acquire or renew the lease. Returns whether this candidate holds it now."""
        # Read before the request, because a renewal counts from its request and not from its answer.
        asked_at, clocks = time.monotonic(), _clocks()
        try:
            leads = await self._acquire_or_renew(asked_at)
        except Conflict:
            leads = False
        except ApiError as error:
            log.warning("lease not renewed", error=str(error))
            leads = False
        except Exception as error:
            # A lease with invalid content cannot be acquired.
            log.error("bug: lease not renewed", error=excerpt(error), trace=trace(error))
            leads = False
        if leads:
            self._renewed_at = clocks
        return leads

    async def _acquire_or_renew(self, now: float) -> bool:
        moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        wanted: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_S),
            "renewTime": moment,
        }
        try:
            lease = await self._api.once("GET", f"{self._path}/{self._name}")
        except NotFound:
            lease = await self._api.once(
                "POST",
                self._path,
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": {**wanted, "acquireTime": moment, "leaseTransitions": 0},
                },
            )
            self._seen, self._runs_out_at = lease["metadata"]["resourceVersion"], now + LEASE_S
            return True
        spec = lease.get("spec") or {}
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen:
            self._seen, self._runs_out_at = version, now + spec.get("leaseDurationSeconds", LEASE_S)
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and now < self._runs_out_at:
            return False
        if holder != self._identity:
            wanted["acquireTime"] = moment
            wanted["leaseTransitions"] = spec.get("leaseTransitions", 0) + 1
        # Raises Conflict if another candidate was faster.
        answer = await self._api.once("PUT", f"{self._path}/{self._name}", {**lease, "spec": {**spec, **wanted}})
        self._seen, self._runs_out_at = answer["metadata"]["resourceVersion"], now + LEASE_S
        return True


def _clocks() -> tuple[float, float]:
    return time.clock_gettime(_CLOCK), time.time()

"""Finds out whether the cluster has an autoscaler that adds nodes for pods."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog

from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.kube.supervise import excerpt

__all__ = ["AutoscalerDiscovery", "serves_autoscaler"]

log = structlog.get_logger(__name__)

_GROUPS: Final = frozenset({"karpenter.sh", "autoscaling.x-k8s.io"})
"""API groups of Karpenter and of the cluster autoscaler. Every user may read the list of groups."""
_EVERY_S: Final = 300.0
_MOST_BYTES: Final = 1024 * 1024


def serves_autoscaler(groups: Mapping[str, Any]) -> bool:
    """Whether the API server's list of groups has one of an autoscaler."""
    return any(group["name"] in _GROUPS for group in groups["groups"])


class AutoscalerDiscovery:
    """`present`: whether the cluster serves an API of an autoscaler; False until that is known."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.present = False

    async def run(self) -> None:
        """Looks without end, since an autoscaler may be installed later."""
        while True:
            try:
                await self.look()
            except (ApiError, TimeoutError, LookupError, TypeError) as error:
                log.info("cannot look for an autoscaler", error=excerpt(error))
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Looks once."""
        answer = await self._api.get("/apis", most_bytes=_MOST_BYTES)
        self.present = serves_autoscaler(answer)

"""The operator's command-line options."""

from dataclasses import dataclass
from typing import Literal

from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.controller.query.gate import Auth

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The operator's options. Addresses are `host:port` (`[host]:port` for IPv6), `:port` for all interfaces of IPv4
    and IPv6, or `0` for no server. `threads` limits the jobs and API requests in flight of one namespace. The limit for
    all namespaces is twice as high, so a slow namespace does not delay the rest."""

    kubeconfig: str | None = None
    namespace: str = ""
    metrics_address: str = ":8080"
    health_address: str = ":8081"
    leader_elect: bool = False
    leader_election_id: str = LEASE_NAME
    leader_election_namespace: str = ""
    gang_scheduler: str = ""
    cluster_domain: str = ""
    threads: int = 32
    qps: float = 0
    burst: int = 0
    take_over: bool = False
    config_map: str = ""
    status_via: Literal["auto", "direct", "proxy"] = "auto"
    image: str = ""
    query_address: str = "0"
    query_auth: Auth = "none"
    query_user_header: str = "kubeflow-userid"
    experience: str = ""
    jobsets: bool = False

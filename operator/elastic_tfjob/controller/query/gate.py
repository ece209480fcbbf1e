"""Who asks, and what they may see. A Gate of another kind is chosen by `--query-auth`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Protocol

__all__ = ["ANYBODY", "Asker", "Gate", "NoGate", "Refused", "host_of", "is_loopback", "refuse_open_address"]


@dataclass(frozen=True, slots=True)
class Asker:
    """A user as the API server knows them."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


ANYBODY: Final = Asker("")


class Refused(Exception):
    """A request that is not answered: the HTTP status, why, the header or parameter it is about, and after how many
    seconds another try makes sense (0: none does)."""

    def __init__(self, status: int, message: str, *, where: str = "", allowed: str = "", again_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.where = where
        self.allowed = allowed
        self.again_s = again_s


class Gate(Protocol):
    """Both raise Refused."""

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        """Who sends a request, by its headers and the address that it comes from."""
        ...

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        """The namespaces among these whose TFJobs the asker may list; None: all that there are."""
        ...

    async def nodes(self, asker: Asker) -> None:
        """Return if the asker may list nodes."""
        ...


class NoGate:
    """Whoever reaches the loopback address may see all. A browser reaches it, too, for a page whose name leads there
    (DNS rebinding), so the header Host has to name a loopback address."""

    async def asker(self, headers: Mapping[str, str], peer: str) -> Asker:
        if not is_loopback(host_of(headers.get("Host", ""))):
            raise Refused(403, "this name is not the operator's own", where="Host", allowed="localhost or 127.0.0.1")
        return ANYBODY

    async def namespaces(self, asker: Asker, among: Collection[str]) -> Collection[str] | None:
        return None

    async def nodes(self, asker: Asker) -> None:
        return None


def host_of(address: str) -> str:
    """The host of `host:port`, `[host]:port` or a host alone."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_address(address: str, auth: str) -> None:
    """Raises ValueError where everybody would see everything."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no address: allowed is HOST:PORT, [HOST]:PORT, :PORT, or 0 for no server")
    if int(port) and auth == "none" and not is_loopback(host.strip("[]")):
        raise ValueError(
            f"{address} can be reached from other machines, and --query-auth=none asks nobody who they are: "
            f"listen at 127.0.0.1:{port} (kubectl port-forward reaches it), or choose --query-auth=token"
        )

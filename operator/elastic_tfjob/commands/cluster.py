"""Connection to the API server with the user's kubeconfig and rights; errors become messages."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from elastic_tfjob.commands.show import plain
from elastic_tfjob.controller.kube.client import ApiClient, in_cluster
from elastic_tfjob.controller.kube.errors import ApiError, Conflict, NotFound, Unavailable
from elastic_tfjob.controller.kube.informer import jobs_path
from elastic_tfjob.controller.model.job import TFJob

__all__ = [
    "EXIT_FAILED",
    "EXIT_NOT_FOUND",
    "EXIT_NOT_IN_TIME",
    "Cluster",
    "Failed",
    "connected",
    "path_of",
    "read_all",
    "run",
]

T = TypeVar("T")

EXIT_FAILED: Final = 1
EXIT_NOT_FOUND: Final = 3
EXIT_NOT_IN_TIME: Final = 4

_PAGE: Final = 500
_TIMEOUT_S: Final = 30.0
_DEFAULT_FILE: Final = "~/.kube/config"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Failed(click.ClickException):
    """An error for the user: what failed, and what to do about it."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connection. `namespace` comes from the command line, or else from the kubeconfig."""

    api: ApiClient
    namespace: str

    async def items(self, path: str, **params: str) -> list[dict[str, Any]]:
        """All objects of a collection, page by page. Raises ApiError."""
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            query = urlencode({**params, "limit": str(_PAGE), **more})
            page = await self.api.once("GET", f"{path}?{query}", timeout_s=_TIMEOUT_S)
            found += page.get("items") or ()
            if not (following := (page.get("metadata") or {}).get("continue")):
                return found
            more = {"continue": str(following)}

    async def raw_job(self, name: str) -> dict[str, Any]:
        """A TFJob as the API server has it. Raises Failed if it does not exist."""
        try:
            return await self.api.once("GET", self.job_path(name), timeout_s=_TIMEOUT_S)
        except NotFound:
            hint = f"`elastic-tfjob jobs -n {self.namespace}` lists its TFJobs"
            raise Failed(f"namespace {self.namespace} has no TFJob {name}: {hint}", EXIT_NOT_FOUND) from None

    async def job(self, name: str) -> TFJob:
        """A TFJob as the operator reads it. Raises Failed if it does not exist or cannot be read."""
        raw = await self.raw_job(name)
        try:
            return TFJob.parse(raw)
        except ValueError as error:
            raise Failed(f"{name}: {plain(str(error))}") from None

    async def change(self, job: TFJob, patch: dict[str, Any]) -> None:
        """Patch fields of a job, unless it was replaced by another job of the same name."""
        metadata = {**patch.get("metadata", {}), "uid": job.uid}
        try:
            await self.api.patch(self.job_path(job.name), {**patch, "metadata": metadata})
        except Conflict:
            raise Failed(f"{job.name} was deleted and recreated meanwhile; check the new job, then try again") from None

    def job_path(self, name: str) -> str:
        """The path of a TFJob."""
        return f"{jobs_path(self.namespace)}/{quote(name, safe='')}"


def read_all(parse: Callable[[dict[str, Any]], T], raws: Iterable[dict[str, Any]]) -> list[T]:
    """Objects as the operator reads them. An unreadable object, which may be another user's, is skipped with a
    warning."""
    found = []
    for raw in raws:
        try:
            found.append(parse(raw))
        except ValueError as error:
            metadata = raw.get("metadata") or {}
            click.echo(plain(f"{metadata.get('namespace')}/{metadata.get('name')} is skipped: {error}"), err=True)
    return found


def path_of(namespace: str, resource: str) -> str:
    """The path of a core collection in one namespace, or (empty) in all."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/{resource}" if namespace else f"/api/v1/{resource}"


@asynccontextmanager
async def connected(kubeconfig: str | None, context: str | None, namespace: str | None) -> AsyncIterator[Cluster]:
    """A connection with the user's kubeconfig, or in a pod with its ServiceAccount. Raises Failed."""
    configuration = Configuration()
    try:
        if context is None and in_cluster(kubeconfig):
            load_incluster_config(client_configuration=configuration)
            own = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else ""
        else:
            _refuse_missing(kubeconfig)
            loader = await load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
            )
            own = str((loader.current_context.get("context") or {}).get("namespace") or "")
        _refuse_no_url(configuration.host)
        client = ApiClient(configuration)
    except Failed:
        raise
    except Exception as error:  # the library raises many types of errors for an invalid kubeconfig
        named = kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT_FILE
        why = plain(_why_unusable(error))
        raise Failed(f"cannot connect to a cluster: {named}: {why}; use --kubeconfig for another file") from error
    async with client as api:
        yield Cluster(api, namespace or own or "default")


def _why_unusable(error: Exception) -> str:
    """Why a kubeconfig cannot be loaded."""
    match error:
        case ConfigException():
            why = str(error).removeprefix("Invalid kube-config file. ")
            if "current-context" in why or "object with name  in" in why:
                return "it has no current-context; choose one with --context or kubectl config use-context"
            return why
        case ssl.SSLError():
            return f"a certificate or key in it cannot be read: {error}"
        case OSError():
            return f"{error.filename}: {error.strerror}" if error.filename else str(error)
        case yaml.YAMLError():
            return f"it is not YAML: {error}"
        case UnicodeDecodeError() | TypeError() | AttributeError() | LookupError():
            return "it is not a kubeconfig"
    return f"it cannot be used: {error}"


def _refuse_no_url(server: str) -> None:
    """Raises ConfigException if the cluster's server is not a URL."""
    try:
        parts = urlsplit(server)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        right = False
    if not right:
        raise ConfigException(f"the cluster's server is {server!r}; a URL is needed, such as https://10.0.0.1:6443")


def _refuse_missing(kubeconfig: str | None) -> None:
    """Raises Failed if there is no kubeconfig."""
    named = kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT_FILE
    if not any(Path(each).expanduser().is_file() for each in named.split(os.pathsep) if each):
        raise Failed(
            f"cannot connect to a cluster: kubeconfig {named} does not exist; set KUBECONFIG or use --kubeconfig"
        )


def run(
    do: Callable[[Cluster], Awaitable[T]], *, kubeconfig: str | None, context: str | None, namespace: str | None
) -> T:
    """Run `do` with a connection. Errors of the API server become a message and EXIT_FAILED."""

    async def begin() -> T:
        async with connected(kubeconfig, context, namespace) as cluster:
            return await do(cluster)

    try:
        return asyncio.run(begin())
    except Unavailable as error:
        raise Failed(f"the API server does not answer: {plain(error.message)}") from error
    except ApiError as error:
        if error.status in (401, 403):
            raise Failed(f"not allowed: {plain(error.message)}") from error
        raise Failed(f"the API server refused the request: {plain(error.message or error.reason)}") from error

"""Options that several commands have, and completion of job names."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from elastic_tfjob.commands.cluster import Cluster, connected
from elastic_tfjob.controller.kube.caches import jobs_path

__all__ = ["job_argument", "output", "where"]

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_S: Final = 2.0


def where(command: F) -> F:
    """Which cluster and namespace."""
    for option in (
        click.option("-n", "--namespace", help="Default: that of the kubeconfig's context."),
        click.option("--context", help="Context of the kubeconfig. Default: the current one."),
        click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Default: as kubectl."),
    ):
        command = option(command)
    return command


def output(*forms: str) -> Callable[[F], F]:
    """-o."""
    return click.option("-o", "--output", type=click.Choice(forms), help="Default: a table.")


def _job_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The jobs that there are; none where that takes long or fails: a shell waits for it."""

    async def names() -> list[str]:
        async with (
            asyncio.timeout(_PATIENCE_S),
            connected(*(context.params.get(key) for key in ("kubeconfig", "context", "namespace"))) as cluster,
        ):
            return await _list(cluster)

    with suppress(Exception):
        return [CompletionItem(name) for name in asyncio.run(names()) if name.startswith(incomplete)]
    return []


async def _list(cluster: Cluster) -> list[str]:
    page = await cluster.api.once("GET", f"{jobs_path(cluster.namespace)}?limit=500", timeout_s=_PATIENCE_S)
    return [str(item["metadata"]["name"]) for item in page.get("items") or ()]


def job_argument(command: F) -> F:
    """The name of a job."""
    return click.argument("job", shell_complete=_job_names)(command)

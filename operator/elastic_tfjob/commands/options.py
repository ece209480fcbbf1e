"""Options shared by several commands, and completion of job names."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from elastic_tfjob.param_types import OneOf

__all__ = ["job_argument", "output", "where"]

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_S: Final = 2.0


def where(command: F) -> F:
    """Options for the cluster and the namespace."""
    for option in (
        click.option("-n", "--namespace", help="Namespace. Default: that of the kubeconfig context."),
        click.option("--context", help="Kubeconfig context. Default: the current one."),
        click.option(
            "--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Kubeconfig file. Default: as kubectl."
        ),
    ):
        command = option(command)
    return command


def output(*forms: str) -> Callable[[F], F]:
    """The option -o."""
    return click.option("-o", "--output", type=OneOf(forms), help="Output format. Default: a table.")


def _job_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of existing jobs. Empty if listing them is slow or fails, because the shell waits for the answer."""
    given = {key: context.params.get(key) for key in ("kubeconfig", "context", "namespace")}
    names = _by_kubectl(given)
    if names is None:
        with suppress(Exception):
            names = _by_client(given)
    return [CompletionItem(name) for name in names or () if name.startswith(incomplete)]


def _by_kubectl(given: Mapping[str, str | None]) -> list[str] | None:
    """Names from kubectl, which answers ten times faster than importing our client takes; None: no kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    options = [f"--{key}={value}" for key, value in given.items() if value]
    asked = ["get", "tfjobs.kubeflow.org", "--output=name", f"--request-timeout={_PATIENCE_S:g}s", *options]
    try:
        done = subprocess.run(
            [kubectl, *asked],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.partition("/")[2] for line in done.stdout.splitlines()]


def _by_client(given: Mapping[str, str | None]) -> list[str]:
    import asyncio

    from elastic_tfjob.commands.cluster import connected
    from elastic_tfjob.controller.kube.informer import jobs_path

    async def names() -> list[str]:
        async with (
            asyncio.timeout(_PATIENCE_S),
            connected(given["kubeconfig"], given["context"], given["namespace"]) as cluster,
        ):
            path = f"{jobs_path(cluster.namespace)}?limit=500"
            page = await cluster.api.once("GET", path, timeout_s=_PATIENCE_S)
            return [str(item["metadata"]["name"]) for item in page.get("items") or ()]

    return asyncio.run(names())


def job_argument(command: F) -> F:
    """The argument JOB."""
    return click.argument("job", shell_complete=_job_names)(command)

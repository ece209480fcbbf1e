"""`what-if`: forecasts after adding a job or nodes, or changing the profile. The query API computes them."""

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

import click
import tenacity
from kubernetes.aio.client.configuration import Configuration

from elastic_tfjob.commands import show
from elastic_tfjob.commands.cluster import Cluster, Failed, run
from elastic_tfjob.commands.files import read_job
from elastic_tfjob.controller.kube.client import ApiClient
from elastic_tfjob.controller.kube.errors import ApiError, NotFound, Unavailable
from elastic_tfjob.controller.model.status import moment_of
from elastic_tfjob.controller.query.gate import TOKEN_HEADER, is_loopback
from elastic_tfjob.controller.query.rows.openapi import WHAT_IF

__all__ = ["answer_lines", "what_if"]

_TIMEOUT_S: Final = 60.0
# How long to retry while the query API is busy.
_PATIENCE_S: Final = 120.0


def what_if(
    *,
    filename: str | None,
    add_nodes: int | None,
    node_cpu: str | None,
    node_memory: str | None,
    profile: str | None,
    all_namespaces: bool,
    query_url: str | None,
    operator_namespace: str,
    output: str | None,
    **cluster: Any,
) -> None:
    """Forecast when jobs start and end, now and after a change. Nothing is changed in the cluster."""
    if not (filename or add_nodes or profile):
        raise click.UsageError("no change is given; use -f, --add-nodes or --profile, or several of them")
    if bool(node_cpu) != bool(node_memory) or (node_cpu and not add_nodes):
        raise click.UsageError("--node-cpu and --node-memory need each other and --add-nodes")

    async def do(at: Cluster) -> None:
        asked: dict[str, Any] = {} if all_namespaces else {"namespace": at.namespace}
        if filename:
            job = read_job(filename, at.namespace)
            if cluster["namespace"] and job["metadata"]["namespace"] != at.namespace:
                raise Failed(f"{filename}: the job's namespace differs from --namespace {at.namespace}")
            asked["job"] = job
            asked |= {} if all_namespaces else {"namespace": job["metadata"]["namespace"]}
        given = {"add_nodes": add_nodes, "node_cpu": node_cpu, "node_memory": node_memory, "profile": profile}
        asked |= {name: value for name, value in given.items() if value}
        with show.waiting("the operator computes the forecast, which takes up to a minute"):
            answer = await _ask(at, asked, query_url, operator_namespace)
        click.echo(show.as_json(answer) if output == "json" else "\n".join(answer_lines(answer)))

    run(do, **cluster)


async def _ask(at: Cluster, asked: Mapping[str, Any], url: str | None, namespace: str) -> dict[str, Any]:
    """The answer of the query API. Raises Failed, which says how to reach the API if it does not answer."""
    token = await at.api.token()
    async with AsyncExitStack() as stack:
        if url is None:
            api, path = at.api, _service(namespace)
        else:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise Failed(f"--query-url is {show.plain(url)!r}; allowed: http(s)://HOST:PORT")
            if token and parts.scheme == "http" and not is_loopback(parts.hostname):
                raise Failed(f"your token is not sent to {parts.hostname} unencrypted; use https or a port-forward")
            configuration = Configuration()
            configuration.host = url.rstrip("/")
            api, path = await stack.enter_async_context(ApiClient(configuration)), ""
        # The API server's proxy does not forward the usual header.
        headers = {TOKEN_HEADER: token} if token else {}
        try:
            async for attempt in _while_busy():
                with attempt:
                    return await api.once("POST", path + WHAT_IF, asked, timeout_s=_TIMEOUT_S, headers=headers)
            raise AssertionError("tenacity re-raises")  # pragma: no cover
        except NotFound as error:
            raise Failed(
                f"there is no query API at this address: {show.plain(error.message)} (docs/query-api.md)"
            ) from error
        except Unavailable as error:
            raise Failed(f"the query API does not answer: {show.plain(error.message)}") from error
        except ApiError as error:
            hint = "" if token else "; your kubeconfig has no token (see --query-url in --help)"
            raise Failed(f"{show.plain(error.message)}{hint if error.status in (401, 403) else ''}") from error


def _while_busy() -> tenacity.AsyncRetrying:
    """Attempts, as long as the query API says when to retry."""

    def busy(state: tenacity.RetryCallState) -> Unavailable | None:
        error = state.outcome.exception() if state.outcome else None
        return error if isinstance(error, Unavailable) and error.retry_after_s > 0 else None

    def when(state: tenacity.RetryCallState) -> float:
        error = busy(state)
        return error.retry_after_s if error else 0.0

    def say(state: tenacity.RetryCallState) -> None:
        if error := busy(state):
            click.echo(f"{show.plain(error.message)}; retrying in {error.retry_after_s:.0f} s", err=True)

    return tenacity.AsyncRetrying(
        retry=lambda state: busy(state) is not None,
        stop=tenacity.stop_before_delay(_PATIENCE_S),
        wait=when,
        before_sleep=say,
        reraise=True,
    )


def _service(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/services/elastic-tfjob-query:http/proxy"


def answer_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The answer, line by line."""
    now = moment_of(answer["at"]) or datetime.now(UTC)
    yield f"At {answer['at']}, {show.plain(', '.join(_change(answer)))}"
    for problem in answer["problems"]:
        yield f"problem: {show.plain(problem)}"
    yield ""
    head = ["NAMESPACE", "JOB", "STATE", "START NOW", "AFTER", "END NOW", "AFTER", "DIFFERENCE", "DEADLINE", "NOTE"]
    yield show.table(head, [_cells(row, now) for row in answer["items"]])
    if (more := answer["total"] - len(answer["items"])) > 0:
        yield f"and {more} more jobs"
    yield f"\nThe change moves the end of {answer['changed']} of {answer['total']} jobs."
    if (others := answer["others"])["jobs"]:
        yield (
            f"{others['jobs']} jobs of other namespaces: {others['earlier']} end earlier, {others['later']} later, "
            f"by {show.duration(others['later_s'])} in total."
        )
    for name, words in (("until_now", "without the change"), ("until_then", "with the change")):
        if answer[name]:
            yield f"The forecast {words} ends at {answer[name]}: computing more would take too long."
    yield from (show.plain(note) for note in answer["notes"])


def _change(answer: Mapping[str, Any]) -> Iterator[str]:
    now, then = answer["profile_now"], answer["profile_then"]
    yield f"profile {now}" if now == then else f"profile {then} instead of {now}"
    if answer["nodes_added"]:
        yield f"{answer['nodes_added']} more nodes" + (f" of {answer['node']}" if answer["node"] else "")


def _cells(row: Mapping[str, Any], now: datetime) -> list[str]:
    def away(name: str) -> str:
        at = moment_of(row[name])
        return show.duration((at - now).total_seconds()) if at is not None else ""

    later_s, meets = row["later_s"], {None: "", True: "met", False: "missed"}
    deadline = meets[row["meets_then"]]
    if row["meets_now"] is not None and row["meets_now"] != row["meets_then"]:
        deadline = f"{deadline or 'unknown'} (now {meets[row['meets_now']]})"
    return [
        row["namespace"],
        row["name"],
        row["state"],
        away("starts_now"),
        away("starts_then"),
        away("ends_now") or ("" if row["state"] == "New" else "?"),
        away("ends_then") or "?",
        "" if not later_s else f"{'+' if later_s > 0 else ''}{show.duration(later_s)}",
        deadline,
        row["note"],
    ]

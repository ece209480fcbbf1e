"""Arguments, options and help of the commands that talk to a cluster. Help and completion need only this file and
click; the module that does the work is imported when a command runs."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.api.words import JOB_SORTS, JOB_STATES, MAX_ADDED_NODES, REASON_CODES
from elastic_tfjob.param_types import OneOf, OutputFile

__all__ = [
    "auto",
    "check",
    "convert",
    "explain",
    "export_trace",
    "job_argument",
    "jobs",
    "logs",
    "output",
    "resume",
    "scale",
    "suspend",
    "top",
    "what_if",
    "where",
]

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


# -- Commands ----------------------------------------------------------------------------------------------------------


@click.command()
@where
@click.option("-A", "--all-namespaces", is_flag=True, help="List jobs of all namespaces.")
@output("json", "wide")
@click.option("-w", "--watch", is_flag=True, help="Keep running and show each change.")
@click.option(
    "--state", "states", multiple=True, type=OneOf(JOB_STATES), help="Show only jobs in this state; may be repeated."
)
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    type=OneOf(REASON_CODES),
    metavar="CODE",
    help="Show only jobs whose reason has this code, such as short or no-nodes; may be repeated.",
)
@click.option("--sort", type=OneOf(JOB_SORTS), default="name", show_default=True, help="Sort by this field.")
@click.option("--reverse", is_flag=True, help="Sort in descending order.")
def jobs(
    all_namespaces: bool,
    output: str | None,
    watch: bool,
    states: tuple[str, ...],
    reasons: tuple[str, ...],
    sort: str,
    reverse: bool,
    **cluster: Any,
) -> None:
    """List TFJobs with their state, size, steps, speed, expected end, and the reason for state and size.

    \b
    Examples:
      elastic-tfjob jobs                         jobs of your namespace
      elastic-tfjob jobs -A --state Waiting      waiting jobs, and why they wait
      elastic-tfjob jobs -A --reason short       jobs that wait for free resources
      elastic-tfjob jobs -o wide --sort slack_s  least slack to the deadline first
      elastic-tfjob jobs -w                      follow changes
      elastic-tfjob jobs -o json | jq '.[] | select(.step > 1000) | .name'

    `explain` shows the code of a job's reason. SIZE is the current number of replicas. STEP, STEPS/S and ENDS IN are
    the values that the operator stored last."""
    from elastic_tfjob.commands import tables

    tables.jobs(
        all_namespaces=all_namespaces,
        output=output,
        watch=watch,
        states=states,
        reasons=reasons,
        sort=sort,
        reverse=reverse,
        **cluster,
    )


@click.command()
@job_argument
@where
@click.option("--operator-namespace", default="kubeflow", show_default=True, help="Namespace of the operator.")
@output("json")
def explain(job: str, operator_namespace: str, output: str | None, **cluster: Any) -> None:
    """Explain a TFJob: its state and the reason for it, its bounds, expected end, timeline, and what you can do.

    \b
    Examples:
      elastic-tfjob explain digits
      elastic-tfjob explain digits -o json | jq '.timeline[] | select(.kind == "rescaled")'

    The timeline has the last ten rescales with their reasons and pauses, and the job's events, if the API server still
    has them and you may read them. If you may also read nodes and the operator's ConfigMap, it says why no node will
    be added for a job that does not fit on the present ones."""
    from elastic_tfjob.commands import explain

    explain.explain(job=job, operator_namespace=operator_namespace, output=output, **cluster)


@click.command()
@click.argument("what", type=OneOf(["nodes", "jobs"]), default="nodes")
@where
@click.option("-A", "--all-namespaces", is_flag=True, help="With `jobs`: show jobs of all namespaces.")
@output("json")
@click.option("-w", "--watch", is_flag=True, help="Keep running: refresh every 5 s, and print changes.")
def top(what: str, all_namespaces: bool, output: str | None, watch: bool, **cluster: Any) -> None:
    """Show the CPU that TFJobs hold, per node or per job, and how much of it they borrowed beyond their requests.

    \b
    Examples:
      elastic-tfjob top           nodes (you need to be allowed to list nodes, and pods in all namespaces)
      elastic-tfjob top jobs      jobs of your namespace
      elastic-tfjob top jobs -A -o json
      elastic-tfjob top -w        follow nodes

    CPU is in cores. HELD is what replicas request now; BORROWED is the part of it beyond the requests in their
    templates."""
    from elastic_tfjob.commands import tables

    tables.top(what=what, all_namespaces=all_namespaces, output=output, watch=watch, **cluster)


@click.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job ends, across rescales and restarts.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Print the logs of all replicas; each line starts with the replica's name.",
)
@click.option(
    "--replica", help="Print the log of this replica, such as worker-1. Default: the chief; without a chief, worker-0."
)
@click.option("--tail", type=click.IntRange(0, 2**31 - 1), help="Start with the last N lines.", metavar="N")
@where
def logs(job: str, follow: bool, everything: bool, replica: str | None, tail: int | None, **cluster: Any) -> None:
    """Print the log of a TFJob: by default the chief's.

    \b
    Examples:
      elastic-tfjob logs digits -f               follow the chief across rescales
      elastic-tfjob logs digits --replica ps-0   a parameter server
      elastic-tfjob logs digits --all --tail 10  the last lines of each replica

    When a pod is recreated, a line `--- NAME was recreated` appears on standard error.
    """
    from elastic_tfjob.commands import logs

    logs.logs(job=job, follow=follow, everything=everything, replica=replica, tail=tail, **cluster)


@click.command()
@job_argument
@click.option("--workers", type=click.IntRange(0, MAX_REPLICAS), help="Number of workers.")
@click.option("--ps", type=click.IntRange(0, MAX_REPLICAS), help="Number of parameter servers.")
@click.option("--wait", is_flag=True, help="Wait until the job has this size.")
@click.option(
    "--timeout", type=click.IntRange(1, 86_400), default=600, show_default=True, help="Seconds that --wait may take."
)
@where
def scale(job: str, workers: int | None, ps: int | None, wait: bool, timeout: int, **cluster: Any) -> None:
    """Request a size for an elastic TFJob, within its bounds. The job keeps it until you run `elastic-tfjob auto`.

    \b
    Examples:
      elastic-tfjob scale digits --workers 4
      elastic-tfjob scale digits --workers 4 --ps 2 --wait --timeout 120

    Exit code 4: the job did not reach the size in time. The request stays.
    """
    from elastic_tfjob.commands import change

    change.scale(job=job, workers=workers, ps=ps, wait=wait, timeout=timeout, **cluster)


@click.command()
@job_argument
@where
def auto(job: str, **cluster: Any) -> None:
    """Let the operator's profile decide the size of a TFJob again. This undoes `scale`.

    \b
    Example:
      elastic-tfjob auto digits
    """
    from elastic_tfjob.commands import change

    change.auto(job=job, **cluster)


@click.command()
@job_argument
@where
def suspend(job: str, **cluster: Any) -> None:
    """Suspend a TFJob: delete its pods and keep the job. A program that uses ElasticCheckpoint later continues from its
    newest checkpoint.

    \b
    Example:
      elastic-tfjob suspend digits
    """
    from elastic_tfjob.commands import change

    change.suspend(job=job, **cluster)


@click.command()
@job_argument
@where
def resume(job: str, **cluster: Any) -> None:
    """Resume a suspended TFJob.

    \b
    Example:
      elastic-tfjob resume digits
    """
    from elastic_tfjob.commands import change

    change.resume(job=job, **cluster)


@click.command("what-if")
@click.option("-f", "--filename", help="File with a new TFJob: what if it were submitted? - reads standard input.")
@click.option(
    "--add-nodes",
    type=click.IntRange(1, MAX_ADDED_NODES),
    metavar="N",
    help="Nodes to add, of the most common kind; see --node-cpu.",
)
@click.option("--node-cpu", help="Allocatable CPU of each added node (16); needs --node-memory.")
@click.option("--node-memory", help="Allocatable memory of each added node (64Gi); needs --node-cpu.")
@click.option("--profile", help="A different profile, with its parameters in the operator's ConfigMap.")
@where
@click.option("-A", "--all-namespaces", is_flag=True, help="Show jobs of all namespaces that you may list.")
@click.option(
    "--query-url",
    envvar="ELASTIC_TFJOB_QUERY_URL",
    help="URL of the query API. Default: the Service elastic-tfjob-query, through the API server.",
)
@click.option("--operator-namespace", default="kubeflow", show_default=True, help="Namespace of that Service.")
@output("json")
def what_if(
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
    """Forecast when jobs start and end, now and after a change. Nothing is changed in the cluster.

    \b
    Examples:
      elastic-tfjob what-if -f job.yaml                  when would it start and end, which jobs end later?
      elastic-tfjob what-if --add-nodes 2                which jobs end earlier?
      elastic-tfjob what-if --add-nodes 2 --node-cpu 16 --node-memory 64Gi
      elastic-tfjob what-if --profile deadline -A
      elastic-tfjob what-if -f job.yaml --add-nodes 1 -o json | jq '.items[0].meets_then'

    The operator's decisions are simulated from now on, with the speeds that it has measured. The forecast assumes that
    no other job arrives, nothing fails, and speeds are as predicted. A job whose length or speed is unknown has no end;
    the table says what is missing. Jobs in namespaces that you may not list appear only as a total.

    This command needs the operator's query API (docs/query-api.md), which identifies you by the token in your
    kubeconfig. If you have no token, or may not proxy to the Service, run kubectl -n kubeflow port-forward and use
    --query-url http://127.0.0.1:PORT."""
    from elastic_tfjob.commands import what_if

    what_if.what_if(
        filename=filename,
        add_nodes=add_nodes,
        node_cpu=node_cpu,
        node_memory=node_memory,
        profile=profile,
        all_namespaces=all_namespaces,
        query_url=query_url,
        operator_namespace=operator_namespace,
        output=output,
        **cluster,
    )


@click.command()
@click.argument("output", type=OutputFile())
@where
@click.option("-A", "--all-namespaces", is_flag=True, help="Export jobs of all namespaces.")
def export_trace(output: Path, all_namespaces: bool, **cluster: Any) -> None:
    """Export the TFJobs of a cluster to OUTPUT (CSV), a workload file for `simulate`.

    \b
    Examples:
      elastic-tfjob export-trace jobs.csv -A
      elastic-tfjob simulate jobs.csv --nodes 20 --profile elastic --tune --speed-model linear

    The file has all jobs that the cluster still has, including ended ones. A job's duration is the time that it takes
    at its declared size, computed from its steps and its speed at that size. If those are unknown, it is the time that
    the job ran, or its annotation estimated-duration. Jobs of unknown duration are skipped and named."""
    from elastic_tfjob.commands import files

    files.export_trace(output=output, all_namespaces=all_namespaces, **cluster)


@click.command()
@click.option(
    "-f", "--filename", help="File with TFJobs, or the operator's ConfigMap, to check as well; - reads standard input."
)
@click.option("--offline", is_flag=True, help="Check only the file, without a cluster or kubeconfig.")
@where
@click.option("--operator-namespace", default="kubeflow", show_default=True, help="Namespace of the operator.")
@output("json")
def check(filename: str | None, offline: bool, operator_namespace: str, output: str | None, **cluster: Any) -> None:
    """Check the operator, its CRD, policies and configuration, your rights, the jobs' reports, and files (-f) with
    TFJobs or the operator's ConfigMap. Nothing is changed.

    \b
    Examples:
      elastic-tfjob check
      elastic-tfjob check -f job.yaml -n team-a
      elastic-tfjob check -f job.yaml --offline
      elastic-tfjob check -f manifests/base/configmap.yaml --offline
      elastic-tfjob check -o json | jq '.[] | select(.level != "ok")'

    Each line is ok, a warning (something is missing that you may not need, or you may not read it) or an error (the API
    server refuses it, or it cannot work), and says what to do. Each TFJob is also sent to the API server as a dry run,
    which stores nothing. So are one pod and one Service per replica type, as the operator would create them, so that
    the namespace's quotas, limits, Pod Security and webhooks are checked. For this you need the right to create pods
    and services.

    The ConfigMap elastic-tfjob-operator is checked in the cluster and in files. An error is content that the operator
    rejects; a warning is a setting without effect: one that the chosen profile does not read, or a label that no node
    has, if you may list nodes.

    Some checks need a running pod and are not made: whether images can be pulled and have TensorFlow and Python, and
    whether checkpoint-dir can be written. The job's events report such problems once it starts.

    Exit codes: 0 no error (there may be warnings), 1 an error was found or the API server does not answer, 2 wrong
    usage."""
    from elastic_tfjob.commands import check

    check.check(filename=filename, offline=offline, operator_namespace=operator_namespace, output=output, **cluster)


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    help="File or directory to convert; - reads standard input; may be repeated.",
)
@click.option("-o", "--output", type=OutputFile(), help="File to write. Default: standard output.")
def convert(files: tuple[str, ...], output: Path | None) -> None:
    """Convert TFJobs of v1alpha1, v1alpha2, v1beta1, v1beta2 and early v1 to v1. No cluster is needed.

    \b
    Examples:
      elastic-tfjob convert -f old.yaml > new.yaml
      elastic-tfjob convert -f manifests/ | kubectl create -f -
      elastic-tfjob convert -f old.yaml -o new.yaml && elastic-tfjob check -f new.yaml

    Standard error lists the changes to each job. Unchanged documents and other kinds of objects are copied as they are;
    a changed document loses its comments. If a job cannot be converted, standard error says why, and nothing is
    written. The result passes `check --offline`.

    Exit codes: 0 done, 1 a job cannot be converted or a file cannot be read, 2 wrong usage.
    """
    from elastic_tfjob.commands import files as commands

    commands.convert(files=files, output=output)

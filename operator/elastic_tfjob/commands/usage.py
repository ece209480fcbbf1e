"""What the commands for people take. Help and completion need this file and click alone: what a command does is
imported when it runs."""

from pathlib import Path
from typing import Any

import click

from elastic_tfjob.api.reading import MAX_REPLICAS
from elastic_tfjob.api.words import JOB_SORTS, JOB_STATES, MAX_ADDED_NODES
from elastic_tfjob.commands.options import job_argument, output, where
from elastic_tfjob.simulation.command import OneOf, OutputFile

__all__ = [
    "auto",
    "check",
    "convert",
    "explain",
    "export_trace",
    "jobs",
    "logs",
    "resume",
    "scale",
    "suspend",
    "top",
    "what_if",
]


@click.command()
@where
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces.")
@output("json", "wide")
@click.option("-w", "--watch", is_flag=True, help="Go on, and show each change.")
@click.option("--state", "states", multiple=True, type=OneOf(JOB_STATES), help="Only these; may be repeated.")
@click.option("--reason", "reasons", multiple=True, help="Only those with this code of a reason; may be repeated.")
@click.option("--sort", type=OneOf(JOB_SORTS), default="name", show_default=True, help="What to sort by.")
@click.option("--reverse", is_flag=True, help="The largest first.")
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
    """List TFJobs: state, size, steps, speed, when they end, and why they are as they are.

    \b
    Examples:
      elastic-tfjob jobs                       those of your namespace
      elastic-tfjob jobs -A --state Waiting    who waits, and for what
      elastic-tfjob jobs -A --reason short     who waits for room that there is not
      elastic-tfjob jobs -o wide --sort slack_s  the tightest deadline first
      elastic-tfjob jobs -w                    follow them
      elastic-tfjob jobs -o json | jq '.[] | select(.step > 1000) | .name'

    SIZE is what a job holds now. STEP, STEPS/S and ENDS IN are as the operator stored them last.
    """
    from elastic_tfjob.commands import jobs

    jobs.jobs(
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
@output("json")
def explain(job: str, output: str | None, **cluster: Any) -> None:
    """Explain a TFJob: its state and why, its bounds, its expected end, its timeline, what would have to change.

    \b
    Examples:
      elastic-tfjob explain digits
      elastic-tfjob explain digits -o json | jq '.timeline[] | select(.kind == "rescaled")'

    The timeline has the last ten changes of size with their reasons and pauses, and the job's events, as far as the
    API server still has them and you may read them.
    """
    from elastic_tfjob.commands import explain

    explain.explain(job=job, output=output, **cluster)


@click.command()
@click.argument("what", type=OneOf(["nodes", "jobs"]), default="nodes")
@where
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@output("json")
@click.option("-w", "--watch", is_flag=True, help="Go on: look every 5 s, and show what has changed.")
def top(what: str, all_namespaces: bool, output: str | None, watch: bool, **cluster: Any) -> None:
    """Show the CPU that TFJobs hold, and what of it is lent to them beyond their requests.

    \b
    Examples:
      elastic-tfjob top           nodes: needs the right to list nodes, and pods of all namespaces
      elastic-tfjob top jobs      jobs of your namespace
      elastic-tfjob top jobs -A -o json
      elastic-tfjob top -w        follow the nodes

    CPU is in cores. HELD is what replicas request now, LENT the part of it beyond their templates' requests.
    """
    from elastic_tfjob.commands import top

    top.top(what=what, all_namespaces=all_namespaces, output=output, watch=watch, **cluster)


@click.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended, across rescales and restarts.")
@click.option("--all", "everything", is_flag=True, help="All replicas, each line with its replica before it.")
@click.option("--replica", help="One replica, such as worker-1. Default: the chief, or worker-0 without one.")
@click.option("--tail", type=click.IntRange(0, 2**31 - 1), help="Begin with so many lines.")
@where
def logs(job: str, follow: bool, everything: bool, replica: str | None, tail: int | None, **cluster: Any) -> None:
    """Print what the program of a TFJob writes: the chief's, unless you say otherwise.

    \b
    Examples:
      elastic-tfjob logs digits -f               follow the chief across rescales
      elastic-tfjob logs digits --replica ps-0   a parameter server
      elastic-tfjob logs digits --all --tail 10  the last lines of each replica

    Where a pod is made anew, `--- NAME` on standard error says so.
    """
    from elastic_tfjob.commands import logs

    logs.logs(job=job, follow=follow, everything=everything, replica=replica, tail=tail, **cluster)


@click.command()
@job_argument
@click.option("--workers", type=click.IntRange(0, MAX_REPLICAS), help="Workers to have.")
@click.option("--ps", type=click.IntRange(0, MAX_REPLICAS), help="Parameter servers to have.")
@click.option("--wait", is_flag=True, help="Until the job has this size.")
@click.option("--timeout", type=click.IntRange(1, 86_400), default=600, show_default=True, help="Seconds for --wait.")
@where
def scale(job: str, workers: int | None, ps: int | None, wait: bool, timeout: int, **cluster: Any) -> None:
    """Ask for a size of an elastic TFJob, within its bounds. The job keeps it until `auto`.

    \b
    Examples:
      elastic-tfjob scale digits --workers 4
      elastic-tfjob scale digits --workers 4 --ps 2 --wait --timeout 120

    Exit code 4: the job did not have the size in time; it is still asked for.
    """
    from elastic_tfjob.commands import change

    change.scale(job=job, workers=workers, ps=ps, wait=wait, timeout=timeout, **cluster)


@click.command()
@job_argument
@where
def auto(job: str, **cluster: Any) -> None:
    """Let the operator's profile decide the size of a TFJob again, after `scale`.

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
    """Suspend a TFJob: its pods are deleted, and the job stays. With ElasticCheckpoint it goes on from its newest
    checkpoint later.

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
    """Resume a TFJob that was suspended.

    \b
    Example:
      elastic-tfjob resume digits
    """
    from elastic_tfjob.commands import change

    change.resume(job=job, **cluster)


@click.command("what-if")
@click.option(
    "-f", "--filename", help="A file with a TFJob that is not there yet: what if it were submitted? - for stdin."
)
@click.option(
    "--add-nodes", type=click.IntRange(1, MAX_ADDED_NODES), help="So many nodes more, like most that there are."
)
@click.option("--node-cpu", help="CPU of each added node that pods can have (16); with --node-memory.")
@click.option("--node-memory", help="Memory of each added node that pods can have (64Gi); with --node-cpu.")
@click.option("--profile", help="Another profile, with what the operator's ConfigMap says for it.")
@where
@click.option("-A", "--all-namespaces", is_flag=True, help="Tell the jobs of all namespaces that you may list.")
@click.option(
    "--query-url",
    envvar="ELASTIC_TFJOB_QUERY_URL",
    help="Where the query API is. Default: the Service elastic-tfjob-query, through the API server.",
)
@click.option("--operator-namespace", default="kubeflow", show_default=True, help="Where that Service is.")
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
    """Foresee when jobs start and end, as things are and with a change. Nothing is changed.

    \b
    Examples:
      elastic-tfjob what-if -f job.yaml                  when would it start and end, who is slowed down?
      elastic-tfjob what-if --add-nodes 2                who gains?
      elastic-tfjob what-if --add-nodes 2 --node-cpu 16 --node-memory 64Gi
      elastic-tfjob what-if --profile deadline -A
      elastic-tfjob what-if -f job.yaml --add-nodes 1 -o json | jq '.items[0].meets_then'

    The operator's own decisions are simulated forward from now, with the speeds that it knows. It is taken that nothing
    else comes, nothing fails, and predictions come true. A job whose length or speed nobody knows has no end: the table
    says what it needs. Jobs of namespaces that you may not list are told in sum.

    It needs the operator's query API (docs/query-api.md), which knows you by your kubeconfig's token. Without a token,
    or without the right to proxy to its Service: kubectl -n kubeflow port-forward, and --query-url
    http://127.0.0.1:PORT.
    """
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
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces.")
def export_trace(output: Path, all_namespaces: bool, **cluster: Any) -> None:
    """Write the TFJobs of a cluster to OUTPUT (CSV), as a workload that `simulate` reads.

    \b
    Examples:
      elastic-tfjob export-trace jobs.csv -A
      elastic-tfjob simulate jobs.csv --nodes 20 --profile elastic --tune --speed-model linear

    Jobs that are still in the cluster are in it, also those that have ended. A job's duration is what it takes at its
    declared size: from its steps and the speed that it had there; else how long it ran, or as its annotation says. Jobs
    of which nothing is known are left out, and named.
    """
    from elastic_tfjob.commands import export_trace

    export_trace.export_trace(output=output, all_namespaces=all_namespaces, **cluster)


@click.command()
@click.option("-f", "--filename", help="A file with TFJobs to look at, too; - for stdin.")
@click.option("--offline", is_flag=True, help="Look at the file alone: no cluster, no kubeconfig.")
@where
@click.option("--operator-namespace", default="kubeflow", show_default=True, help="Where the operator is.")
@output("json")
def check(filename: str | None, offline: bool, operator_namespace: str, output: str | None, **cluster: Any) -> None:
    """Check the operator, its CRD and policies, your rights, what jobs report, and with -f TFJobs. Nothing is changed.

    \b
    Examples:
      elastic-tfjob check
      elastic-tfjob check -f job.yaml -n team-a
      elastic-tfjob check -f job.yaml --offline
      elastic-tfjob check -o json | jq '.[] | select(.level != "ok")'

    A line is ok, a warning (something is missing that you may not need, or may not be read by you) or an error (the API
    server refuses it, or it cannot work), with what to do. Each TFJob is also sent to the API server as a dry run,
    which stores nothing, and so are a pod and a Service of each of its replica types, as the operator would create
    them: quotas, limits, Pod Security and webhooks of the namespace are asked. That takes your own right to create pods
    and services.

    Not looked at, as it takes a pod in the cluster: whether images can be pulled, have TensorFlow and Python, and
    whether checkpoint-dir can be written. The job's own events tell that once it starts.

    Exit codes: 0 no error (warnings do not count), 1 an error was found or nothing answers, 2 wrong usage.
    """
    from elastic_tfjob.commands import check

    check.check(filename=filename, offline=offline, operator_namespace=operator_namespace, output=output, **cluster)


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, help="A file or a directory; - for stdin.")
@click.option("-o", "--output", type=OutputFile(), help="Where to write. Default: standard output.")
def convert(files: tuple[str, ...], output: Path | None) -> None:
    """Write TFJobs of v1alpha1, v1alpha2, v1beta1, v1beta2 and early files of v1 as TFJobs of v1. No cluster is asked.

    \b
    Examples:
      elastic-tfjob convert -f old.yaml > new.yaml
      elastic-tfjob convert -f manifests/ | kubectl create -f -
      elastic-tfjob convert -f old.yaml -o new.yaml && elastic-tfjob check -f new.yaml

    Standard error says what was changed in each job. Documents in which nothing changes, and those of other kinds, come
    out as they are; one that changes loses its comments. Where a job cannot be converted, standard error says why, and
    nothing is written. What comes out passes `check --offline`.

    Exit codes: 0 done, 1 a job cannot be converted or a file cannot be read, 2 wrong usage.
    """
    from elastic_tfjob.commands import convert

    convert.convert(files=files, output=output)

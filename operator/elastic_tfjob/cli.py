"""The command line of elastic-tfjob. Each command imports what it needs when it runs, so that none pays for another."""

import asyncio
import importlib
import os
from typing import Any

import click

from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.simulation.options import Amount

LAZY = {
    "auto": "elastic_tfjob.commands.change",
    "check": "elastic_tfjob.commands.check",
    "completion": "elastic_tfjob.commands.kubectl",
    "convert": "elastic_tfjob.commands.convert",
    "explain": "elastic_tfjob.commands.explain",
    "export-trace": "elastic_tfjob.commands.export_trace",
    "jobs": "elastic_tfjob.commands.jobs",
    "logs": "elastic_tfjob.commands.logs",
    "pipeline": "elastic_tfjob.commands.pipeline.steps",
    "resume": "elastic_tfjob.commands.change",
    "scale": "elastic_tfjob.commands.change",
    "simulate": "elastic_tfjob.simulation.command",
    "suspend": "elastic_tfjob.commands.change",
    "top": "elastic_tfjob.commands.top",
    "train-policy": "elastic_tfjob.learning.command",
    "what-if": "elastic_tfjob.commands.what_if",
}
"""Commands that live with what they run, and the modules that hold them under the same name, with `_` for `-`."""


EXTRAS = {
    "operator": (
        "aiohttp",
        "aiolimiter",
        "kubernetes",
        "orjson",
        "prometheus_client",
        "structlog",
        "tenacity",
    ),
    "simulation": ("scipy",),
}
"""What `pip install elastic-tfjob` leaves out: the modules that each extra of pyproject.toml brings."""


class LazyGroup(click.Group):
    """Knows the names of all commands, but imports one only when it is asked for. Where a package that an extra brings
    is missing, the command's help and its error name the extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in LAZY:
            try:
                command: click.Command = getattr(importlib.import_module(LAZY[cmd_name]), cmd_name.replace("-", "_"))
            except ModuleNotFoundError as error:
                return _not_installed(cmd_name, error)
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise click.ClickException(_what_to_install(error)) from error


def _not_installed(name: str, error: ModuleNotFoundError) -> click.Command:
    """In the place of command `name`, whose module could not be imported: says what to install, whatever is asked."""
    words = _what_to_install(error)

    def refuse(arguments: tuple[str, ...]) -> None:
        raise click.ClickException(words)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        short_help=words,
    )


def _what_to_install(error: ModuleNotFoundError) -> str:
    """Which extra has the module that is missing. Raises `error` again where it is none of an extra's."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra is None:
        raise error
    return f"Needs pip install 'elastic-tfjob[{extra}]' ({module} is missing)."


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-tfjob")
def main() -> None:
    """Run TFJobs elastically: look at them and change their size, the operator, its CRD, and the simulator of the same
    decisions.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 there is no such job or pod, 4 not in time (scale --wait).
    Those of the operator are in its own help.
    """


@main.command()
def crd() -> None:
    """Print the CustomResourceDefinition of TFJob as YAML.

    It is larger than the annotation of client-side apply may be, so apply it on the server's side:

    elastic-tfjob crd | kubectl apply --server-side -f -
    """
    import yaml  # noqa: PLC0415

    from elastic_tfjob.api.crd import custom_resource_definition  # noqa: PLC0415

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    click.echo(yaml.dump(custom_resource_definition(), Dumper=Dumper, sort_keys=False, width=120), nl=False)


@main.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Default: as kubectl, or in-cluster.")
@click.option("--namespace", envvar="KUBEFLOW_NAMESPACE", default="", help="Only this namespace. Default: all.")
@click.option("--metrics-bind-address", default=":8080", show_default=True, help="Prometheus metrics; 0 for none.")
@click.option("--health-probe-bind-address", default=":8081", show_default=True, help="/healthz, /readyz; 0 for none.")
@click.option("--leader-elect/--no-leader-elect", help="Of several replicas only the leader acts.")
@click.option(
    "--leader-election-id",
    default=LEASE_NAME,
    show_default=True,
    help="Name of the Lease. The manifests' Role admits the default alone: for another one it needs a patch "
    "(docs/compatibility.md).",
)
@click.option("--leader-election-namespace", default="", help="Namespace of the Lease. Default: the operator's own.")
@click.option("--gang-scheduler-name", default="", help="volcano, or the name of a scheduler with scheduler-plugins.")
@click.option(
    "--controller-threads",
    type=click.IntRange(1, 1000),
    default=32,
    show_default=True,
    help="Jobs and API requests in flight of a namespace; of all, twice that.",
)
@click.option(
    "--kube-api-qps",
    type=Amount(100_000, least=-1),
    default=0.0,
    help="API requests a second. Default (0, or -1 as in client-go): as many as the server admits.",
)
@click.option(
    "--kube-api-burst",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Requests at once, where there is a QPS limit.",
)
@click.option("--config-map", default="", help="NAMESPACE/NAME of the ConfigMap with the key config.yaml.")
@click.option(
    "--status-via",
    type=click.Choice(["auto", "direct", "proxy"]),
    default="auto",
    show_default=True,
    help="How pods are asked for their status: by their address, or through the API server (auto: from outside).",
)
@click.option("--query-bind-address", default="0", show_default=True, help="Query API (docs/query-api.md); 0 for none.")
@click.option(
    "--query-auth",
    type=click.Choice(["none", "token", "header"]),
    default="none",
    show_default=True,
    help="Who may ask: all who reach a loopback address, holders of tokens, or users whom a proxy names by a header.",
)
@click.option("--query-user-header", default="kubeflow-userid", show_default=True, help="For --query-auth=header.")
@click.option(
    "--experience",
    default="",
    help="Directory for what the scheduling loop saw and decided, from which train-policy --follow learns.",
)
@click.option(
    "--jobsets",
    is_flag=True,
    help="Run the JobSets of Kubeflow Trainer v2 that are left to this operator (docs/trainjob.md).",
)
@click.option("--image", default="", help="Holds launcher and exporter. Default: that of the operator's own pod.")
@click.option("--take-over", is_flag=True, help="Start although another controller of TFJobs was found.")
@click.option("--log-format", type=click.Choice(["json", "console"]), default="json", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def operator(log_format: str, log_level: str, **arguments: Any) -> None:
    """Run the operator: own the kubeflow.org/v1 TFJobs of a cluster.

    Flags have the names of the training-operator's. Host names in TF_CONFIG end in
    $CUSTOM_CLUSTER_DOMAIN if that is set.

    Exit codes: 0 after a signal, 1 when leadership was lost, 2 for a wrong flag, 3 when another controller of TFJobs is
    at work here (it is named, with what to do about it).
    """
    import logging  # noqa: PLC0415

    import structlog  # noqa: PLC0415

    from elastic_tfjob.controller.operator import Options, run  # noqa: PLC0415
    from elastic_tfjob.controller.query.gate import refuse_open_address  # noqa: PLC0415

    try:
        refuse_open_address(arguments["query_bind_address"], arguments["query_auth"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--query-bind-address") from None

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if log_format == "json" else structlog.dev.ConsoleRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log_level.upper())),
        cache_logger_on_first_use=True,
    )
    options = Options(
        kubeconfig=arguments["kubeconfig"],
        namespace=arguments["namespace"],
        metrics_address=arguments["metrics_bind_address"],
        health_address=arguments["health_probe_bind_address"],
        leader_elect=arguments["leader_elect"],
        leader_election_id=arguments["leader_election_id"],
        leader_election_namespace=arguments["leader_election_namespace"],
        gang_scheduler=arguments["gang_scheduler_name"],
        cluster_domain=os.environ.get("CUSTOM_CLUSTER_DOMAIN", ""),
        threads=arguments["controller_threads"],
        qps=arguments["kube_api_qps"],
        burst=arguments["kube_api_burst"],
        take_over=arguments["take_over"],
        config_map=arguments["config_map"],
        status_via=arguments["status_via"],
        image=arguments["image"],
        query_address=arguments["query_bind_address"],
        query_auth=arguments["query_auth"],
        query_user_header=arguments["query_user_header"],
        experience=arguments["experience"],
        jobsets=arguments["jobsets"],
    )
    # Not uvloop: with aiohttp it loses sockets whose connecting failed, as when the API server restarts (uvloop#653).
    raise SystemExit(asyncio.run(run(options)))

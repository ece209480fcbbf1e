"""The command line of elastic-tfjob. Each command imports what it needs when it runs, so that none pays for another."""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from elastic_tfjob.api.words import did_you_mean
from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.extras import EXTRAS, advice, extra_of, missing_module
from elastic_tfjob.simulation.options import Amount, OneOf

LINE: Final = 200
"""Characters of a short help, which the terminal's width wraps."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is imported when it is called: its module has it under the same name, with `_` for `-`. `help`
    is the begin of its own help, so that listing all commands imports none."""

    module: str
    help: str


_USAGE: Final = "elastic_tfjob.commands.usage"
LAZY = {
    "auto": Lazy(_USAGE, "Let the operator's profile decide the size of a TFJob again"),
    "check": Lazy(
        _USAGE, "Check the operator, its CRD and policies, your rights, what jobs report, and with -f TFJobs"
    ),
    "completion": Lazy(
        "elastic_tfjob.commands.kubectl", "Print a script that completes commands, options and job names"
    ),
    "convert": Lazy(
        _USAGE, "Write TFJobs of v1alpha1, v1alpha2, v1beta1, v1beta2 and early files of v1 as TFJobs of v1"
    ),
    "explain": Lazy(_USAGE, "Explain a TFJob"),
    "export-trace": Lazy(_USAGE, "Write the TFJobs of a cluster to OUTPUT (CSV), as a workload that `simulate` reads"),
    "jobs": Lazy(_USAGE, "List TFJobs"),
    "logs": Lazy(_USAGE, "Print what the program of a TFJob writes"),
    "pipeline": Lazy("elastic_tfjob.commands.pipeline", "Steps of Kubeflow Pipelines"),
    "resume": Lazy(_USAGE, "Resume a TFJob that was suspended"),
    "scale": Lazy(_USAGE, "Ask for a size of an elastic TFJob, within its bounds"),
    "simulate": Lazy("elastic_tfjob.simulation.command", "Simulate scheduling policies on WORKLOAD"),
    "suspend": Lazy(_USAGE, "Suspend a TFJob"),
    "top": Lazy(_USAGE, "Show the CPU that TFJobs hold, and what of it is lent to them"),
    "train-policy": Lazy("elastic_tfjob.learning.command", "Train the policy of profile dl2 in simulation"),
    "what-if": Lazy(_USAGE, "Foresee when jobs start and end, as things are and with a change"),
}

INTERRUPTED = 130
"""The shell's exit status for a program that Ctrl-C ended."""


class LazyGroup(click.Group):
    """Knows the names of all commands and their first line of help, but imports one only when it is asked for. Where a
    package that an extra brings is missing, the command's help and its error name the extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is None and cmd_name not in LAZY:
            return None
        if (module := missing_module(cmd_name)) is not None:
            return _not_installed(cmd_name, module)
        if own is not None:
            return own
        try:
            command: click.Command = getattr(import_module(LAZY[cmd_name].module), cmd_name.replace("-", "_"))
        except ModuleNotFoundError as error:
            return _not_installed(cmd_name, _package_missing(cmd_name, error))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (
            args
            and not args[0].startswith("-")
            and args[0] not in self.list_commands(ctx)
            and not ctx.resilient_parsing
        ):
            meant = did_you_mean(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            name = ctx.invoked_subcommand or ""
            raise click.ClickException(advice(name, _package_missing(name, error))) from error
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None

    def line_about(self, ctx: click.Context, name: str) -> str:
        """One line about a command."""
        if (module := missing_module(name)) is not None:
            return advice(name, module)
        if name in LAZY:
            return LAZY[name].help
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit=LINE) if command is not None else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.line_about(ctx, name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.line_about(ctx, name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _not_installed(name: str, module: str) -> click.Command:
    """In the place of command `name`, whose module could not be imported: says what to install, whatever is asked."""
    words = advice(name, module)

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


def _package_missing(name: str, error: ModuleNotFoundError) -> str:
    """The module that is missing. Raises `error` again where no extra brings it."""
    module = error.name or ""
    if module.partition(".")[0] not in EXTRAS[extra_of(name)]:
        raise error
    return module


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
    type=OneOf(["auto", "direct", "proxy"]),
    default="auto",
    show_default=True,
    help="How pods are asked for their status: by their address, or through the API server (auto: from outside).",
)
@click.option("--query-bind-address", default="0", show_default=True, help="Query API (docs/query-api.md); 0 for none.")
@click.option(
    "--query-auth",
    type=OneOf(["none", "token", "header"]),
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
@click.option("--log-format", type=OneOf(["json", "console"]), default="json", show_default=True)
@click.option("--log-level", type=OneOf(["debug", "info", "warning", "error"]), default="info", show_default=True)
def operator(log_format: str, log_level: str, **arguments: Any) -> None:
    """Run the operator: own the kubeflow.org/v1 TFJobs of a cluster.

    Flags have the names of the training-operator's. Host names in TF_CONFIG end in
    $CUSTOM_CLUSTER_DOMAIN if that is set.

    Exit codes: 0 after a signal, 1 when leadership was lost, 2 for a wrong flag, 3 when another controller of TFJobs is
    at work here (it is named, with what to do about it).
    """
    import asyncio  # noqa: PLC0415
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

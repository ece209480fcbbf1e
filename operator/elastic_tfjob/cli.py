"""The command line of elastic-tfjob. A command's modules are imported when it runs, so that other commands start
fast."""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from elastic_tfjob.api.words import did_you_mean
from elastic_tfjob.controller import LEASE_NAME
from elastic_tfjob.extras import EXTRAS, advice, extra_of, missing_module
from elastic_tfjob.param_types import Amount, OneOf

LINE: Final = 200
"""Maximum characters of a short help; click wraps it at the terminal's width."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is imported when it is called. Its module defines it under the same name, with `_` for `-`. `help`
    repeats the start of the command's own help, so that listing all commands imports none of them."""

    module: str
    help: str


_USAGE: Final = "elastic_tfjob.commands.usage"
LAZY = {
    "auto": Lazy(_USAGE, "Let the operator's profile decide the size of a TFJob again"),
    "check": Lazy(
        _USAGE,
        "Check the operator, its CRD, policies and configuration, your rights, the jobs' reports, and files (-f)",
    ),
    "completion": Lazy("elastic_tfjob.cli", "Print a shell script that completes commands, options and job names"),
    "convert": Lazy(_USAGE, "Convert TFJobs of v1alpha1, v1alpha2, v1beta1, v1beta2 and early v1 to v1"),
    "explain": Lazy(_USAGE, "Explain a TFJob"),
    "export-trace": Lazy(_USAGE, "Export the TFJobs of a cluster to OUTPUT (CSV), a workload file for `simulate`"),
    "jobs": Lazy(_USAGE, "List TFJobs"),
    "logs": Lazy(_USAGE, "Print the log of a TFJob"),
    "pipeline": Lazy("elastic_tfjob.commands.pipeline", "Steps for Kubeflow Pipelines"),
    "resume": Lazy(_USAGE, "Resume a suspended TFJob"),
    "scale": Lazy(_USAGE, "Request a size for an elastic TFJob, within its bounds"),
    "simulate": Lazy("elastic_tfjob.simulation.command", "Simulate scheduling policies on WORKLOAD"),
    "suspend": Lazy(_USAGE, "Suspend a TFJob"),
    "top": Lazy(_USAGE, "Show the CPU that TFJobs hold"),
    "train-policy": Lazy("elastic_tfjob.learning.command", "Train the policy of profile dl2 in simulation"),
    "what-if": Lazy(_USAGE, "Forecast when jobs start and end, now and after a change"),
}

INTERRUPTED = 130
"""The shell's exit status of a program that was interrupted by Ctrl-C."""


class LazyGroup(click.Group):
    """Knows the name and first help line of each command, and imports a command only when it is called. If a package is
    missing, the command's help and error name the extra that installs it."""

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
        """The command's line in the list of commands."""
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
    """Stands in for command `name` when its packages are missing: any call prints what to install."""
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
    """The missing module. Raises `error` again if no extra installs it."""
    module = error.name or ""
    if module.partition(".")[0] not in EXTRAS[extra_of(name)]:
        raise error
    return module


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-tfjob")
def main() -> None:
    """Elastic TensorFlow jobs (TFJob) on Kubernetes: list, explain and scale jobs, run the operator, print its CRD, and
    simulate scheduling policies.

    \b
    Examples:
      elastic-tfjob jobs                       list the jobs of your namespace
      elastic-tfjob explain digits             why the job has this size, and when it ends
      elastic-tfjob scale digits --workers 4   request a size

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no such job or pod, 4 timed out (scale --wait).
    `elastic-tfjob operator --help` lists those of the operator."""


@main.command()
def crd() -> None:
    """Print the CustomResourceDefinition of TFJob as YAML.

    The CRD is too large for client-side apply, so use server-side apply:

    elastic-tfjob crd | kubectl apply --server-side -f -
    """
    import yaml  # noqa: PLC0415

    from elastic_tfjob.api.crd import custom_resource_definition  # noqa: PLC0415

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    click.echo(yaml.dump(custom_resource_definition(), Dumper=Dumper, sort_keys=False, width=120), nl=False)


@main.command()
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False),
    help="Kubeconfig file. Default: as kubectl, or the pod's own account.",
)
@click.option("--namespace", envvar="KUBEFLOW_NAMESPACE", default="", help="Handle only this namespace. Default: all.")
@click.option(
    "--metrics-bind-address", default=":8080", show_default=True, help="Address of Prometheus metrics; 0 disables."
)
@click.option(
    "--health-probe-bind-address",
    default=":8081",
    show_default=True,
    help="Address of /healthz and /readyz; 0 disables.",
)
@click.option("--leader-elect/--no-leader-elect", help="Elect a leader. Only the leader acts.")
@click.option(
    "--leader-election-id",
    default=LEASE_NAME,
    show_default=True,
    help="Name of the Lease. The Role in the manifests allows only the default name; another one needs a patch "
    "(docs/compatibility.md).",
)
@click.option("--leader-election-namespace", default="", help="Namespace of the Lease. Default: the operator's.")
@click.option(
    "--gang-scheduler-name", default="", help="Gang scheduler: volcano, or a scheduler with scheduler-plugins."
)
@click.option(
    "--controller-threads",
    type=click.IntRange(1, 1000),
    default=32,
    show_default=True,
    help="Jobs and API requests in flight per namespace; the total limit is twice that.",
)
@click.option(
    "--kube-api-qps",
    type=Amount(100_000, least=-1),
    default=0.0,
    help="API requests per second. 0 (the default) or -1: no limit.",
)
@click.option(
    "--kube-api-burst",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Burst of API requests, if --kube-api-qps is set.",
)
@click.option("--config-map", default="", help="NAMESPACE/NAME of the ConfigMap that has the key config.yaml.")
@click.option(
    "--status-via",
    type=OneOf(["auto", "direct", "proxy"]),
    default="auto",
    show_default=True,
    help="How to read pod status: from the pod's address (direct) or through the API server (proxy). auto: proxy "
    "when the operator runs outside the cluster.",
)
@click.option(
    "--query-bind-address",
    default="0",
    show_default=True,
    help="Address of the query API (docs/query-api.md); 0 disables.",
)
@click.option(
    "--query-auth",
    type=OneOf(["none", "token", "header"]),
    default="none",
    show_default=True,
    help="Authentication: none (loopback addresses only), token (Kubernetes bearer tokens), or header (a proxy sends "
    "the user's name).",
)
@click.option(
    "--query-user-header",
    default="kubeflow-userid",
    show_default=True,
    help="Header with the user's name, for --query-auth=header.",
)
@click.option(
    "--experience",
    default="",
    help="Directory for a log of scheduling decisions, which train-policy --follow learns from.",
)
@click.option(
    "--jobsets",
    is_flag=True,
    help="Run the JobSets of Kubeflow Trainer v2 that name this operator in managedBy (docs/trainjob.md).",
)
@click.option("--image", default="", help="Image with launcher and exporter. Default: the operator's own image.")
@click.option("--take-over", is_flag=True, help="Start even if another TFJob controller is found.")
@click.option(
    "--log-format", type=OneOf(["json", "console"]), default="json", show_default=True, help="Format of the log."
)
@click.option(
    "--log-level",
    type=OneOf(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least severe messages to log.",
)
def operator(log_format: str, log_level: str, **arguments: Any) -> None:
    """Run the operator, which reconciles the kubeflow.org/v1 TFJobs of a cluster.

    \b
    Example:
      elastic-tfjob operator --leader-elect --config-map kubeflow/elastic-tfjob-operator

    The flags are named as in the training-operator. Host names in TF_CONFIG end in $CUSTOM_CLUSTER_DOMAIN, if set.

    Exit codes: 0 stopped by a signal, 1 lost the leader election, 2 wrong flag, 3 another TFJob controller runs in the
    cluster (the message names it and says what to do)."""
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
    # Not uvloop: with aiohttp it leaks sockets that failed to connect, as when the API server restarts (uvloop#653).
    raise SystemExit(asyncio.run(run(options)))


# -- kubectl tfjob, and completion -------------------------------------------------------------------------------------
# kubectl runs `kubectl-tfjob` and `kubectl_complete-tfjob` from PATH.

_OTHERS: Final = ("pipeline", "simulate")
# Tells kubectl not to complete file names.
_NO_FILES: Final = ":4"


class _PeopleGroup(LazyGroup):
    """The commands that talk to a cluster for a user."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name for name in LAZY if name not in _OTHERS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return None if cmd_name in _OTHERS else super().get_command(ctx, cmd_name)


@click.group(cls=_PeopleGroup, name="kubectl tfjob", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-tfjob")
def tfjob() -> None:
    """List, explain and scale TFJobs, with the commands of `elastic-tfjob`.

    \b
    Examples:
      kubectl tfjob jobs -A
      kubectl tfjob explain digits
    """


@click.command()
@click.argument("shell", type=OneOf(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell script that completes commands, options and job names.

    \b
    Examples:
      source <(elastic-tfjob completion bash)                      in ~/.bashrc
      elastic-tfjob completion zsh > "${fpath[1]}/_elastic-tfjob"
      elastic-tfjob completion fish > ~/.config/fish/completions/elastic-tfjob.fish

    kubectl's own completion also completes `kubectl tfjob`, through kubectl_complete-tfjob on your PATH.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "elastic-tfjob", "_ELASTIC_TFJOB_COMPLETE").source())


def complete() -> None:
    """Answer kubectl: complete the last of the words after `kubectl tfjob`."""
    *before, last = sys.argv[1:] or [""]
    for item in ShellComplete(tfjob, {}, "kubectl tfjob", "").get_completions(before, last):
        click.echo(item.value)
    click.echo(_NO_FILES)

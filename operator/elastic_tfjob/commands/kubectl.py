"""`kubectl tfjob ...` and its completion: kubectl runs `kubectl-tfjob` and `kubectl_complete-tfjob` from PATH."""

import sys
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from elastic_tfjob.cli import LAZY, LazyGroup, main
from elastic_tfjob.param_types import OneOf

__all__ = ["complete", "completion", "tfjob"]

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

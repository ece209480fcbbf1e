"""The installed commands. Where packages are missing, or Python is too old, they say so in one sentence."""

from __future__ import annotations

import sys

from elastic_tfjob.extras import advice, missing_module

COMMANDS_NEED = (3, 11)


def elastic_tfjob() -> None:
    _check()
    from elastic_tfjob.cli import main  # noqa: PLC0415

    main()


def kubectl_tfjob() -> None:
    _check()
    from elastic_tfjob.commands.kubectl import tfjob  # noqa: PLC0415

    tfjob()


def kubectl_complete_tfjob() -> None:
    _check()
    from elastic_tfjob.commands.kubectl import complete  # noqa: PLC0415

    complete()


def _check() -> None:
    """Exit with a message where no command can run."""
    if sys.version_info < COMMANDS_NEED:
        needed, found = (".".join(map(str, each)) for each in (COMMANDS_NEED, sys.version_info[:2]))
        sys.exit(
            f"The commands of elastic-tfjob need Python {needed} or newer; this is {found}, where training programs "
            "can import elastic_tfjob.runtime, and nothing else works"
        )
    if missing_module("completion") is None:  # click: the commands themselves say what else is missing
        return
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command:
        sys.exit(f"Error: {advice(command, 'click')}")
    sys.exit(
        "The hook elastic_tfjob.runtime is installed. Commands need an extra: elastic-tfjob[cli] talks to a cluster, "
        "elastic-tfjob[simulation] has simulate and train-policy, elastic-tfjob[operator] is the operator"
    )

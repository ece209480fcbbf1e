"""Entry points of the installed commands. If packages are missing or Python is too old, they exit with one sentence."""

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
    from elastic_tfjob.cli import tfjob  # noqa: PLC0415

    tfjob()


def kubectl_complete_tfjob() -> None:
    _check()
    from elastic_tfjob.cli import complete  # noqa: PLC0415

    complete()


def _check() -> None:
    """Exit with a message if no command can run."""
    if sys.version_info < COMMANDS_NEED:
        needed, found = (".".join(map(str, each)) for each in (COMMANDS_NEED, sys.version_info[:2]))
        sys.exit(
            f"The elastic-tfjob commands need Python {needed} or newer; this is {found}, which supports only the "
            "training hook, elastic_tfjob.runtime"
        )
    if missing_module("completion") is None:  # click is there: each command reports what else is missing
        return
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command:
        sys.exit(f"Error: {advice(command, 'click')}")
    sys.exit(
        "Only the training hook, elastic_tfjob.runtime, is installed. Commands need an extra: elastic-tfjob[cli] for "
        "clusters, "
        "elastic-tfjob[simulation] for simulate and train-policy, elastic-tfjob[operator] for the operator"
    )

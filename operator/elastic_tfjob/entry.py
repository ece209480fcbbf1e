"""The installed commands. On a Python that only training programs may have, they say so."""

from __future__ import annotations

import sys

COMMANDS_NEED = (3, 11)


def elastic_tfjob() -> None:
    _refuse_old_python()
    from elastic_tfjob.cli import main  # noqa: PLC0415

    main()


def kubectl_tfjob() -> None:
    _refuse_old_python()
    from elastic_tfjob.commands.kubectl import tfjob  # noqa: PLC0415

    tfjob()


def kubectl_complete_tfjob() -> None:
    _refuse_old_python()
    from elastic_tfjob.commands.kubectl import complete  # noqa: PLC0415

    complete()


def _refuse_old_python() -> None:
    if sys.version_info < COMMANDS_NEED:
        needed, found = (".".join(map(str, each)) for each in (COMMANDS_NEED, sys.version_info[:2]))
        sys.exit(
            f"The commands of elastic-tfjob need Python {needed} or newer; this is {found}, where training programs "
            "can import elastic_tfjob.runtime, and nothing else works"
        )

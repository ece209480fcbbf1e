"""Commands against a cluster that a test pretends."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from elastic_tfjob.cli import main
from elastic_tfjob.commands import cluster

Ask = Callable[..., Result]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """`ask(server, "jobs", "-A")`: the command's result where `server` answers for the cluster."""

    def invoke(server: Any, *words: str, group: Any = main) -> Result:
        @asynccontextmanager
        async def connected(*_: object, **__: object) -> AsyncIterator[cluster.Cluster]:
            yield cluster.Cluster(server, "ns")

        monkeypatch.setattr(cluster, "connected", connected)
        monkeypatch.setattr("shutil.which", lambda _: None)  # so that our client answers, not a kubectl
        return CliRunner().invoke(group, list(words))

    return invoke

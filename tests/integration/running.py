"""Operators that run beside what the test itself serves (a proxy, a kubelet), so nothing here blocks the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from harness import audit, operators

OPERATOR = f"system:serviceaccount:kubeflow:{audit.ACCOUNT}"
"""The user that an operator with the rights of its manifests is. The API server heeds these a moment after they were
applied (`Api.allowed`), and what it refuses until then looks like a right that is missing."""


@contextlib.asynccontextmanager
async def running(
    name: operators.Name, kubeconfig: Path, folder: Path, **options: Any
) -> AsyncIterator[operators.Operator]:
    """`operators.start(...)`, ready when the block begins and asked to stop when it ends."""
    operator = await asyncio.to_thread(operators.start, name, kubeconfig, folder, **options)
    try:
        yield operator
    finally:
        await asyncio.to_thread(operator.stop)

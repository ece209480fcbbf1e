"""Operators that run beside what the test itself serves (a proxy, a kubelet), so nothing here blocks the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from harness import operators


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

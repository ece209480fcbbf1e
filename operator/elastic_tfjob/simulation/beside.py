"""An inference pool beside any workload, and which of its jobs may run on the nodes that it lends."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from elastic_tfjob.api.scenario import PoolFile, parse_pool
from elastic_tfjob.api.yaml import document
from elastic_tfjob.simulation.formats import WorkloadError
from elastic_tfjob.simulation.inference import InferencePool
from elastic_tfjob.simulation.scenario import pool_of
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["POOLS", "Beside", "read_pool"]


POOLS: Final = {"aryl": PoolFile(nodes=520, gpus_per_node=8, accelerator_speed=0.5, loanable=0.21)}
"""Pools with a name. aryl: the inference cluster of arXiv 2202.07896 and its share of fungible jobs."""


@dataclass(frozen=True, slots=True)
class Beside:
    """`loanable` is the share of jobs that may run on lent nodes; None: those of which the workload says so."""

    pool: InferencePool
    loanable: float | None

    def mark(self, jobs: Sequence[WorkloadJob], seed: int) -> tuple[WorkloadJob, ...]:
        """The jobs, with those loanable that are drawn for this seed. Raises WorkloadError where none is: nobody could
        use the pool."""
        if self.loanable is not None:
            draw = random.Random(f"loanable-{seed}")
            jobs = [replace(job, loanable=draw.random() < self.loanable) for job in jobs]
        if not any(job.loanable for job in jobs):
            raise WorkloadError("no job is loanable: give the share of jobs that are as 'loanable' in the pool's file")
        return tuple(jobs)


def read_pool(named: str) -> Beside:
    """The pool of this name, or else of this YAML file. Raises WorkloadError that names the file, the place in it, the
    value and what is allowed."""
    pool = POOLS.get(named)
    if pool is None:
        try:
            content = document(Path(named).read_text())
        except (OSError, UnicodeDecodeError) as e:
            raise WorkloadError(f"{named}: no pool of this name ({', '.join(POOLS)}), and cannot be read: {e}") from e
        except ValueError as e:
            raise WorkloadError(f"{named}: {e}") from e
        try:
            pool = parse_pool(content)
        except ValueError as e:
            raise WorkloadError(f"{named}: wrong in the pool:\n{e}") from e
    return Beside(pool_of(pool), pool.loanable)

"""`export-trace`: writes the TFJobs of a cluster to a workload file for `simulate`."""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from elastic_tfjob.commands.cluster import Cluster, Failed, path_of, read_all, run
from elastic_tfjob.commands.show import plain
from elastic_tfjob.controller.kube.errors import ApiError
from elastic_tfjob.controller.kube.informer import jobs_path
from elastic_tfjob.controller.model.cluster import KubeNode
from elastic_tfjob.controller.model.job import TFJob
from elastic_tfjob.controller.query.rows.jobs import see
from elastic_tfjob.controller.query.rows.trace import COLUMNS, TraceRow, trace_rows
from elastic_tfjob.simulation.formats import GIB

__all__ = ["export_trace"]

_NAMED: Final = 5


def export_trace(*, output: Path, all_namespaces: bool, **cluster: Any) -> None:
    """Export the TFJobs of a cluster to OUTPUT (CSV), a workload file for `simulate`."""

    async def do(at: Cluster) -> tuple[list[TraceRow], dict[str, str], str]:
        found = read_all(TFJob.parse, await at.items(jobs_path("" if all_namespaces else at.namespace)))
        return *trace_rows(map(see, found)), await _nodes(at)

    rows, left_out, nodes = run(do, **cluster)
    for name, why in list(left_out.items())[:_NAMED]:
        click.echo(plain(f"{name} is skipped: {why}"), err=True)
    if len(left_out) > _NAMED:
        click.echo(f"{len(left_out) - _NAMED} more are skipped", err=True)
    if not rows:
        raise Failed(f"no TFJob can be exported; {output} is unchanged")
    output.write_text(as_csv(rows))
    click.echo(f"{len(rows)} jobs written to {output}")
    click.echo(f"elastic-tfjob simulate {output} {nodes} --profile elastic --tune --speed-model linear")


def as_csv(rows: list[TraceRow]) -> str:
    """The text of the CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row.cells() for row in rows)
    return file.getvalue()


async def _nodes(at: Cluster) -> str:
    """Options of `simulate` for a cluster of as many nodes, each of the most common size; placeholders if the user may
    not list nodes."""
    try:
        found = read_all(KubeNode.parse, await at.items(path_of("", "nodes")))
    except ApiError:
        found = []
    sizes = Counter(node.allocatable for node in found if node.usable)
    if not sizes:
        return "--nodes NUMBER --cpus-per-node CPUS --memory-per-node GIB --gpus-per-node GPUS"
    size, _ = sizes.most_common(1)[0]
    return (
        f"--nodes {sizes.total()} --cpus-per-node {size.cpu / 1000:g} --memory-per-node {size.memory // GIB} "
        f"--gpus-per-node {size.accelerators}"
    )

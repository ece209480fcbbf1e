"""An inference pool beside any workload."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic_tfjob.cli import main
from elastic_tfjob.simulation.formats import WorkloadError
from elastic_tfjob.simulation.scenario import POOLS, InferenceSide, read_pool

from .build import work

POOL = "nodes: 10\naccelerator_speed: 0.5\nloanable: 0.5\n"


def test_a_file_says_what_the_pool_is(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(POOL)
    beside = read_pool(str(file))
    assert (beside.pool.nodes, beside.pool.accelerator_speed, beside.pool.each.accelerators) == (10, 0.5, 8)
    assert beside.loanable == 0.5


def test_a_name_is_a_pool() -> None:
    for name, pool in POOLS.items():
        assert read_pool(name).pool.nodes == pool.nodes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nodes: 0\n", "nodes"),
        ("nodes: 3\nloanable: 1.5\n", "loanable"),
        ("nodes: 3\nspeed: 2\n", "speed"),
        ("- 1\n", "invalid pool"),
        ("nodes: [\n", "not YAML"),
        ("nodes: 3\nnodes: 4\n", "the key 'nodes' is given twice"),
        ("nodes: 3\n---\nnodes: 3\n", "2 documents, where one is expected"),
        ("nodes: 3\ncpus_per_node: .inf\n", "cpus_per_node should be a finite number"),
        ("nodes: 3\nmemory_gib_per_node: 1e300\n", "memory_gib_per_node.*65536"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(content)
    with pytest.raises(WorkloadError, match=words) as refused:
        read_pool(str(file))
    assert str(file) in str(refused.value)


def test_neither_a_name_nor_a_file() -> None:
    with pytest.raises(WorkloadError, match="neither a predefined pool"):
        read_pool("nothing")


def test_the_share_is_drawn_by_the_seed() -> None:
    jobs = [work(f"j{k}", k, 10.0) for k in range(400)]
    half = replace(read_pool("aryl"), loanable=0.5)
    marked = half.mark(jobs, 1)
    assert 160 < sum(job.loanable for job in marked) < 240
    assert marked == half.mark(jobs, 1) != half.mark(jobs, 2)
    own = InferenceSide(half.pool, None)
    assert own.mark(marked, 2) == marked, "what the workload says stays"
    with pytest.raises(WorkloadError, match="no job is loanable"):
        own.mark(jobs, 1)


def test_the_pool_helps_a_trace(tmp_path: Path) -> None:
    trace, pool = tmp_path / "trace.csv", tmp_path / "pool.yaml"
    rows = [f"j{k},0,3600,8" for k in range(6)]
    trace.write_text("\n".join(["job_id,submit_s,duration_s,num_gpus", *rows]) + "\n")
    pool.write_text("nodes: 10\nloanable: 1\n")

    def makespan(*more: str) -> float:
        out = tmp_path / "out.json"
        fixed = ("--nodes", "1", "--profile", "fifo", "--jobs", "1", "--json", str(out))
        done = CliRunner().invoke(main, ["simulate", str(trace), *fixed, *more])
        assert done.exit_code == 0, done.output
        (run,) = json.loads(out.read_text())["runs"]
        return float(run["makespan_s"])

    alone = makespan()
    assert makespan("--inference-pool", str(pool)) == alone, "nobody borrows"
    assert makespan("--inference-pool", str(pool), "--set", "fifo.lend=offered") < alone == 6 * 3600


def test_a_wrong_pool_is_a_message(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submit_s,duration_s,num_gpus\na,0,10,1\n")
    done = CliRunner().invoke(
        main, ["simulate", str(trace), "--nodes", "1", "--profile", "fifo", "--inference-pool", "nothing"]
    )
    assert done.exit_code == 1
    assert "neither a predefined pool (aryl)" in done.output

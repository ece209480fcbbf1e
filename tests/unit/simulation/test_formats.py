"""Every workload format, and rows that are wrong."""

import gzip
from pathlib import Path

import pytest

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, ReplicaGroup
from elastic_tfjob.simulation.formats import GIB, WorkloadError, gavel_throughputs, parse_csv, read_csv
from elastic_tfjob.simulation.speed_models.ps import MODELS
from elastic_tfjob.simulation.workload import LossCurve

JOBS = "job_id,submit_s,duration_s,num_gpus\n"


def test_jobs_with_only_what_is_required() -> None:
    workload, bad = parse_csv(JOBS + "a,0,60,2\nb,5.5,1,1\n", "t.csv")
    assert bad == []
    a, b = workload.jobs
    assert (workload.format, a.key, a.duration_s, b.submit_s, b.line) == ("jobs", "a", 60, 5.5, 3)
    assert a.groups == (ReplicaGroup(WORKER, Resources(accelerators=1), 2, 2, 2),)


def test_jobs_with_every_optional_column() -> None:
    columns = {
        "job_id": "a",
        "submit_s": "0",
        "duration_s": "60",
        "num_gpus": "8",
        "num_workers": "4",
        "num_ps": "2",
        "min_workers": "1",
        "max_workers": "6",
        "min_ps": "1",
        "max_ps": "3",
        "cpus": "1.5",
        "memory_gib": "2",
        "ps_cpus": "4",
        "ps_memory_gib": "1",
        "cpu_demand": "3",
        "deadline_s": "100",
        "estimated_s": "50",
        "priority": "-1",
        "model": "m",
        "batch_size": "32",
        "steps": "1000",
        "loanable": "true",
        "loss_b0": "0.1",
        "loss_b1": "1",
        "loss_b2": "0.2",
    }
    (job,) = parse_csv(",".join(columns) + "\n" + ",".join(columns.values()), "t.csv")[0].jobs
    assert job.groups == (
        ReplicaGroup(WORKER, Resources(1500, 2 * GIB, 2), 4, 1, 6),
        ReplicaGroup(PS, Resources(4000, GIB), 2, 1, 3),
    )
    assert (job.total_steps, job.deadline_s, job.estimated_s, job.priority) == (1000, 100, 50, -1)
    assert (job.model, job.batch_size, job.loanable, job.cpu_demand) == ("m", 32, True, 3)
    assert job.loss == LossCurve(0.1, 1, 0.2)


def test_jobs_of_the_itp_traces() -> None:
    text = "job_id,submit_s,duration_s,num_gpu,model_name,batch_size,num_iteration,deadline_s\n1,0,9,4,bert,64,77,30\n"
    (job,) = parse_csv(text, "t.csv")[0].jobs
    assert (job.model, job.batch_size, job.total_steps, job.deadline_s) == ("bert", 64, 77, 30)


def test_elasticflow() -> None:
    text = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n0,37,2011,cifar10,99,4096,8,56\n"
    workload, _ = parse_csv(text, "t.csv")
    (job,) = workload.jobs
    assert (workload.format, job.total_steps, job.deadline_s, job.duration_s) == ("elasticflow", 2011, 99, 56)
    assert (job.groups[0].count, job.groups[0].minimum, job.groups[0].maximum) == (8, 1, 64)


def test_pollux() -> None:
    workload, _ = parse_csv("name,time,application,num_replicas,batch_size\nbert-0,5,bert,6,384\n", "t.csv")
    (job,) = workload.jobs
    assert (workload.format, job.key, job.model, job.batch_size) == ("pollux", "bert-0", "bert", 384)


def test_gavel_durations_come_from_the_v100_table() -> None:
    workload, _ = parse_csv(
        "job_type,total_steps,scale_factor,arrival_s\nResNet-18 (batch size 16),1000,1,3\n", "t.csv"
    )
    (job,) = workload.jobs
    assert workload.format == "gavel"
    assert job.duration_s == pytest.approx(1000 / gavel_throughputs()["ResNet-18 (batch size 16)", 1])


def test_dl2() -> None:
    workload, _ = parse_csv("job_id,arrival_slot,model,epochs,max_workers\nj,2,dssm,10,8\nk,0,wlm,1,\n", "t.csv")
    j, k = workload.jobs
    assert (workload.format, j.submit_s, j.total_steps) == ("dl2", 2400, 10 * MODELS["dssm"].epoch)
    assert j.groups[1] == ReplicaGroup(WORKER, Resources(cpu=2000), 1, 1, 8)
    assert k.groups[1] == ReplicaGroup(WORKER, Resources(cpu=2000, accelerators=1), 1, 1, 16)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,x,60,1", "t.csv:3: column 'submit_s': 'x' is not a number"),
        ("a,0,0,1", "t.csv:3: column 'duration_s': '0' must be above 0"),
        ("a,0,inf,1", "t.csv:3: column 'duration_s': 'inf' is not a finite number"),
        ("a,0,60,1.5", "t.csv:3: column 'num_gpus': '1.5' is not a whole number"),
        ("a,0,60,-1", "t.csv:3: column 'num_gpus': '-1' must be at least 0"),
        ("a,0,60,0", "t.csv:3: column 'num_gpus': '0' must be at least 1 without a num_workers"),
        ("a,0,60", "t.csv:3: column 'num_gpus': '' is empty"),
        (",0,60,1", "t.csv:3: column 'job_id': '' is empty"),
        ("a,0,60,1,9", "t.csv:3: column '(beyond the last)': \"['9']\" comes after the 4 columns of the header"),
        ("ok,0,60,1", "t.csv:3: column 'job_id': 'ok' was already given in line 2"),
    ],
)
def test_a_bad_row_is_named_by_file_line_column_and_value(row: str, message: str) -> None:
    text = JOBS + "ok,0,1,1\n" + row + "\nlast,9,1,1\n"
    with pytest.raises(WorkloadError) as caught:
        parse_csv(text, "t.csv")
    assert message in str(caught.value)
    assert "1 invalid row(s), so nothing was simulated" in str(caught.value)
    workload, bad = parse_csv(text, "t.csv", skip_bad=True)
    assert [job.key for job in workload.jobs] == ["ok", "last"]
    assert [str(b) for b in bad] == [message]


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        ("num_workers", "3", "column 'num_gpus': '4' is not a multiple of num_workers, 3"),
        ("max_workers", "2", "column 'max_workers': '2' is below the declared 4"),
        ("min_workers", "5", "column 'min_workers': '5' is above the declared 4"),
        ("loanable", "maybe", "column 'loanable': 'maybe' is neither true nor false"),
        ("loss_b0", "-1", "column 'loss_b0': '-1' must be above 0"),
    ],
)
def test_bad_optional_columns(columns: str, values: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        parse_csv(f"job_id,submit_s,duration_s,num_gpus,{columns}\na,0,60,4,{values}\n", "t.csv")


def test_unknown_headers_and_models() -> None:
    with pytest.raises(WorkloadError, match="no known format has the columns foo, bar"):
        parse_csv("foo,bar\n1,2\n", "t.csv")
    with pytest.raises(WorkloadError, match="format pollux needs the column"):
        parse_csv("name,time,num_replicas,batch_size\n", "t.csv", "pollux")
    with pytest.raises(WorkloadError, match="'lenet' is not a known model; allowed: resnet-50"):
        parse_csv("job_id,arrival_slot,model,epochs\nj,0,lenet,1\n", "t.csv")
    with pytest.raises(WorkloadError, match="has no measured speed on 3 V100"):
        parse_csv("job_type,total_steps,scale_factor,arrival_s\nA3C,1,3,0\n", "t.csv")
    with pytest.raises(WorkloadError, match="contains no jobs"):
        parse_csv(JOBS, "t.csv")


def test_files_gzip_and_what_cannot_be_read(tmp_path: Path) -> None:
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress((JOBS + "a,0,1,1\n").encode()))
    assert len(read_csv(packed)[0].jobs) == 1
    packed.write_bytes(b"not gzip")
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_csv(packed)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")


CHRONUS = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,"
    "best_effort,job_type\n"
)


def test_chronus_writes_minutes() -> None:
    """A soft deadline is the first of its steps; a best-effort job has none."""
    text = CHRONUS + "0,vc,4,10,9,m,96,5,159-189-229,10-8-5,0,soft\n1,vc,1,2.5,9,m,6,5,,,1,best\n"
    soft, best = parse_csv(text, "t.csv")[0].jobs
    assert (soft.submit_s, soft.duration_s, soft.deadline_s) == (600.0, 5760.0, 600.0 + 159 * 60)
    assert soft.groups == (ReplicaGroup(WORKER, Resources(accelerators=1), 4, 4, 4),)
    assert (best.submit_s, best.deadline_s) == (150.0, None)
    assert parse_csv(text, "t.csv")[0].format == "chronus"


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("0,vc,0,10,9,m,96,5,159,10,0,soft", "num_gpu"),
        ("0,vc,1,10,9,m,96,5,x-1,10,0,soft", "expect_time_list"),
        ("0,vc,1,10,9,m,96,5,,10,0,soft", "expect_time_list"),
        ("0,vc,1,10,9,m,0,5,1,10,0,soft", "duration"),
    ],
)
def test_wrong_rows_of_chronus(row: str, column: str) -> None:
    good = "1,vc,1,2,9,m,6,5,,,1,best\n"
    with pytest.raises(WorkloadError, match=f"t.csv:2: column '{column}'"):
        parse_csv(CHRONUS + row + "\n" + good, "t.csv")

"""Jobs as Chronus (SoCC'21) writes them: of Philly, with deadlines that its authors generated."""

from dataclasses import replace

from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import WORKER, fixed_group
from elastic_tfjob.simulation.rows import Row
from elastic_tfjob.simulation.workload import WorkloadJob

__all__ = ["parse_chronus"]


def parse_chronus(row: Row) -> WorkloadJob:
    """Times are in minutes, deadlines after the submission. Of a soft one, which loses its value in steps, the first:
    until then it has all of it."""
    submit_s, gpus = 60 * row.number("submit_time"), row.whole("num_gpu", least=1)
    deadline_s = None
    if not row.flag("best_effort"):
        first = row.text("expect_time_list").partition("-")[0]
        deadline_s = submit_s + 60 * replace(row, values={"expect_time_list": first}).number(
            "expect_time_list", above=0
        )
    return WorkloadJob(
        key=row.text("job_id"),
        submit_s=submit_s,
        groups=row.groups(fixed_group(WORKER, Resources(accelerators=1), gpus)),
        duration_s=60 * row.number("duration", above=0),
        deadline_s=deadline_s,
        model=row.text("model_name"),
        line=row.line,
    )

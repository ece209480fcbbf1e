"""How far the pods of a rescale are, by what they and kube-scheduler say. Pure."""

from collections.abc import Iterable

from elastic_tfjob.controller.job.describe import describe_role
from elastic_tfjob.controller.job.pods import Role
from elastic_tfjob.controller.job.rescale_input import RescaleInput, roles_of
from elastic_tfjob.controller.objects.reports import Report
from elastic_tfjob.controller.objects.status import moment_of


def is_silent(s: RescaleInput, report: Report | None) -> bool:
    """Whether nobody will say when the program that was started last makes its first step: without a launcher, and
    after `recreate` of a program that has never reported one, once all of its pods run."""
    if not s.launcher:
        return True
    if s.coming.mode != "recreate" or s.state.step is not None or (report is not None and report.hook):
        return False
    return all_run(s)


def all_run(s: RescaleInput) -> bool:
    """Whether every pod of the size that the job runs with runs."""
    return all(role in s.by_role and s.by_role[role].phase == "Running" for role in roles_of(s.state))


def cannot_prepare(s: RescaleInput, added: list[Role]) -> str:
    """Why the coming size cannot be prepared; empty as long as it may."""
    coming, pods = s.coming, s.by_role
    for role in added:
        pod = pods.get(role)
        if pod is not None and pod.phase in ("Failed", "Succeeded"):
            return f"the new {describe_role(role)} ended"
    if refused := refused_a_node(s, added):
        return f"the new {refused}"
    for role in roles_of(coming):
        report = s.report(role)
        prepared = report.prepared if report is not None else None
        if prepared is not None and prepared.generation == coming.generation and prepared.state == "failed":
            return f"{describe_role(role)} could not be prepared: {prepared.why}"
    return ""


def refused_a_node(s: RescaleInput, roles: Iterable[Role]) -> str:
    """The first of these replicas that kube-scheduler has found no node for so long that it will not, and its words."""
    for role in roles:
        pod = s.by_role.get(role)
        since = moment_of(pod.unschedulable_at) if pod is not None and not pod.node and not pod.terminating else None
        if pod is None or since is None:
            continue
        if min(s.elapsed_s, (s.now - since).total_seconds()) >= s.timeouts.unschedulable_s:
            return f"{describe_role(role)} finds no node: {pod.unschedulable}"
    return ""


def lost_replica(s: RescaleInput, roles: Iterable[Role]) -> str:
    """The first of these replicas that is lost, in words; empty where none is."""
    return next((f"{describe_role(role)} is on a node that does not answer" for role in roles if s.lost(role)), "")


def is_prepared(s: RescaleInput, role: Role) -> bool:
    """Whether a replica's program of the coming size stands ready."""
    report, generation = s.report(role), s.coming.generation
    if report is None or role not in s.by_role:
        return False
    prepared = report.prepared
    return prepared is not None and prepared.generation == generation and prepared.state == "ready"


def runs_a_program(s: RescaleInput, role: Role) -> bool:
    """Whether a replica says that its program runs. A pod that is made anew must have begun: if `prepare` is the first
    that its launcher hears, it prepares the coming generation and runs none."""
    report = s.report(role)
    return report is not None and report.generation is not None


def all_heard(s: RescaleInput) -> bool:
    """Whether all pods that can be heard know that the new generation runs. One that does not would take the command
    that comes next for the first it hears of, and stop the program that trains for the coming one's sake. One that is
    lost hears nothing."""
    reports = (s.report(role) for role in roles_of(s.state) if role in s.by_role and not s.lost(role))
    return all(report is None or report.generation in (None, s.state.generation) for report in reports)

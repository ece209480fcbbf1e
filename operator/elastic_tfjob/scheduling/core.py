"""The decision: a pure function from what is to what shall be."""

from dataclasses import replace

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import LoanState, Snapshot
from elastic_tfjob.scheduling.toolkit.repair import misfits_view, repair


def schedule(snapshot: Snapshot, profile: Profile) -> Plan:
    """Decide for every job in the Snapshot. No clock, no I/O, no randomness but the Snapshot's seed.

    Lend first, so that borrowed nodes count at once and nodes given back no longer; then what every profile mends in
    running jobs (`repair`); then the profile's own steps, which take jobs in its Order and nodes from its Place.
    """
    loans = profile.lend.lend(snapshot)
    considered = snapshot
    if loans:
        nodes = dict(snapshot.nodes)
        for loan in loans:
            state: LoanState = "loaned" if loan.action == "borrow" else "reclaiming"
            nodes[loan.node] = replace(nodes[loan.node], loan=state)
        considered = Snapshot(snapshot.now, nodes, snapshot.jobs, snapshot.seed)
    round_ = Round(considered, profile, loans)
    returned = {loan.node for loan in loans if loan.action == "return"}
    if returned:
        for job in considered.jobs.values():
            if any(name in returned for names in job.placement.values() for name in names):
                round_.stop(job, "preempted: a node it runs on goes back to its own pool")
    repair(round_, considered.view("misfits", misfits_view))
    for step in profile.steps:
        step(round_)
    return round_.plan()

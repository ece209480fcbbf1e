"""The decision: a pure function from what is to what shall be."""

from dataclasses import replace

from elastic_tfjob.scheduling.misfits import misfits_view, repair
from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import LoanState, Snapshot


def schedule(snapshot: Snapshot, profile: Profile) -> Plan:
    """Decide for every job in the Snapshot. No clock, no I/O, no randomness but the Snapshot's seed.

    Lend first, so that borrowed nodes count at once and nodes given back no longer; then what every profile mends in
    running jobs (`misfits`); then Allocate, which takes jobs in the Order and nodes from Place; then Migrate on what
    came out.
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
    profile.allocate.allocate(round_)
    profile.migrate.migrate(round_)
    return round_.plan()

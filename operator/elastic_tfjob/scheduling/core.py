"""The decision: a pure function from what is to what shall be."""

from elastic_tfjob.scheduling.plan import Plan
from elastic_tfjob.scheduling.profile import Profile
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.snapshot import Snapshot
from elastic_tfjob.scheduling.toolkit.repair import repair, repair_candidates, repair_late


def schedule(snapshot: Snapshot, profile: Profile) -> Plan:
    """Decide for every job in the Snapshot. No clock, no I/O, no randomness but the Snapshot's seed.

    Lend first, so that borrowed nodes count at once and nodes given back no longer; then what every profile mends in
    running jobs (`repair`); then the profile's own steps, which take jobs in its Order and nodes from its Place; last,
    what was to be mended and had no room, since the steps may have made some.
    """
    round_ = Round(snapshot, profile)
    profile.lend.lend(round_)
    repair(round_, snapshot.view("repair candidates", repair_candidates))
    for step in profile.steps:
        step(round_)
    repair_late(round_)
    return round_.plan()

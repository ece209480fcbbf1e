"""One profile for a whole cluster: it composes the steps of deadline, kips, specon and the loans of aryl in one round.

By precedence: nodes that other pools want go back; sizes that jobs must have; deadlines; who gains most; who waits; CPU
of crowded nodes by remaining work; idle CPU to who uses all it has. See docs/designs/elastic.md.
"""

from collections.abc import Callable
from dataclasses import replace

from elastic_tfjob.scheduling.parameters import Stages, needs
from elastic_tfjob.scheduling.profile import Profile, Step
from elastic_tfjob.scheduling.profiles.deadline import DeadlineParameters
from elastic_tfjob.scheduling.profiles.elastic.order import EarliestDeadlineToCome
from elastic_tfjob.scheduling.profiles.elastic.planned import plan
from elastic_tfjob.scheduling.profiles.elastic.settings import Settings
from elastic_tfjob.scheduling.profiles.elastic.unplanned import Resizing, grow_unplanned, leave_ranked, restore
from elastic_tfjob.scheduling.profiles.kips import KipsParameters
from elastic_tfjob.scheduling.profiles.kips.admit import admit, guarantee, relieve
from elastic_tfjob.scheduling.profiles.kips.back import go_back
from elastic_tfjob.scheduling.profiles.specon import SpeconParameters
from elastic_tfjob.scheduling.profiles.specon.weights import Weights
from elastic_tfjob.scheduling.toolkit.balance import Balance
from elastic_tfjob.scheduling.toolkit.cpu_in_place import (
    boot,
    count_as_free,
    give_back_idle,
    give_back_used,
    grant,
    keep_for_leaving,
    raise_busy,
)
from elastic_tfjob.scheduling.toolkit.shared import sharing

__all__ = ["ElasticProfileParameters"]

BEFORE = (count_as_free, relieve, guarantee)
WAITING = (go_back, admit)
CPU = (leave_ranked, keep_for_leaving, give_back_used, raise_busy, restore, grow_unplanned, boot, give_back_idle, grant)


class ElasticProfileParameters(Settings):
    """All of them: deadlines, then who gains most; CPU in place, moves, and nodes on loan."""

    def stages(self) -> Stages:
        planning = DeadlineParameters(
            place=self.place,
            min_gain=self.min_gain,
            pause_s=self.pause_s,
            settle_s=self.settle_s,
            keep=self.keep,
            sizes="front",
            start="declared",
            probe_share=1.0,
            speed_power=self.speed_power,
            left_power=self.left_power,
            ageing=False,
        )
        lending = KipsParameters(place=self.place, min_gain=self.min_gain, rescale_pause_s=self.pause_s)
        crowded = SpeconParameters(place=self.place, moves=self.moves)

        def plan_sizes(resizing: Resizing) -> None:
            resizing.donors.planned = plan(resizing.round, settings=planning)

        def adjusting(step: Callable[[Resizing], None]) -> Step:
            return sharing(step, ("elastic", self), lambda round_: Resizing(round_, lending))

        steps: tuple[Step, ...] = (
            *map(adjusting, BEFORE),
            adjusting(plan_sizes),
            *map(adjusting, WAITING),
            Balance(crowded.moves, crowded.times, crowded.move_s, crowded.idle),
            Weights(crowded),
            *map(adjusting, CPU),
        )
        told = needs("deadline", "speed", "duration", "service", "use", "history")
        done = needs("stop", "move", "cpu")
        order = EarliestDeadlineToCome(self.settle_s)
        return Stages(order, steps, told | done, drifts=True, shares_cpu=self.share_cpu)

    def profile(self, name: str) -> Profile:
        # As for deadline: the steps themselves see to the least gain.
        return replace(super().profile(name), min_gain=0.0)

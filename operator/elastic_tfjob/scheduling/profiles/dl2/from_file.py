"""The step of a profile whose weights are in a file."""

from elastic_tfjob.scheduling.profile import Step
from elastic_tfjob.scheduling.profiles.dl2.allocate import LearnedSizes
from elastic_tfjob.scheduling.profiles.dl2.weights import read
from elastic_tfjob.scheduling.round import Round
from elastic_tfjob.scheduling.toolkit.hull_rule import HullRule

__all__ = ["FromFile"]


class FromFile:
    """`LearnedSizes` with the network in this file (empty: the one that is shipped), or `HullRule` where there is none.
    It is read by `read`, or else by the first round."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._step: Step | None = None

    def later(self) -> None:
        """No round reads the file: until `read` has, it decides as `HullRule`."""
        self._step = HullRule(instead_of=f"{self._path} is still being read")

    def read(self) -> None:
        """Read the file, whatever was known of it."""
        network = read(self._path)
        self._step = HullRule(instead_of=network) if isinstance(network, str) else LearnedSizes(network)

    def __call__(self, round_: Round) -> None:
        if self._step is None:
            self.read()
        assert self._step is not None
        self._step(round_)

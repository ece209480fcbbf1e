"""Training reads each example once in an epoch, whatever happens to its job: launchers and TensorFlow are real."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .jobs import SLOW, Job
from .pods import until

PROGRAM = Path(__file__).with_name("counted.py")

pytestmark = [pytest.mark.xdist_group("tensorflow-2"), pytest.mark.timeout(1800)]


class Counted(Job):
    """A job that counts its examples. It trains up to `hold` examples and stands still there."""

    def __init__(self, directory: Path, kind: str, *options: str, examples: int = 2000) -> None:
        self.file, self.examples = directory / "hold", examples
        super().__init__(
            directory, PROGRAM, f"--kind={kind}", f"--hold={self.file}", f"--examples={examples}", *options
        )
        self.generation = self._then = 0
        self.hold(300)

    def hold(self, position: int) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(str(position))
        os.replace(new, self.file)

    def train_to(self, position: int) -> None:
        """Have it train up to this position."""
        self.hold(position)
        until("it is there", lambda: self.position() >= position, SLOW)

    def position(self) -> int:
        """How far it is at least."""
        at = self.file.with_suffix(".at")
        return int((at.read_text() if at.exists() else "") or 0)

    def give_up(self) -> None:
        """Prepare a generation of one worker, whose warm-up reads examples, and withdraw it."""
        cluster, configs = self.cluster, self.configs
        self.configure(dict.fromkeys(cluster, 1))
        self._command("prepare", self.generation + 1, "overlap")
        until("it is ready", lambda: self._ready(self.generation + 1), SLOW)
        self.cluster, self.configs = cluster, configs
        self._command("run", self.generation, "overlap")
        until("it is withdrawn", lambda: not self.chief.status["prepared"], SLOW)

    def change(self, then: int, **replicas: int) -> None:
        """To another size; live if only workers change. It trains up to position `then` afterwards."""
        self._then = then
        self.generation += 2  # one that was given up is not used again
        live = "ps" in self.cluster and replicas.get("ps", 0) == len(self.cluster["ps"])
        if live:
            status = self.change_workers(self.generation, replicas["worker"])
        else:
            status = self.rescale(self.generation, "overlap", operator=True, **replicas)
        assert status["lost_steps"] == 0

    def _trains(self, generation: int) -> dict[str, Any] | None:
        self.hold(self._then)
        return super()._trains(generation)

    def lose(self, index: int) -> None:
        """Kill a worker while it trains; its container starts again."""
        self.pods["worker", index].stop()
        self.pods["worker", index].start()

    def end(self) -> dict[str, Any]:
        """Train to the end; what the chief reports."""
        self.hold(1 << 60)
        until("it has ended", lambda: any("epochs" in line for line in self.lines()), SLOW)
        return self.lines()[-1]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Counted]]:
    """`make(kind, *options)`: a job, which is gone when the test ends."""
    made: list[Counted] = []

    def job(kind: str, *options: str, examples: int = 2000) -> Counted:
        made.append(Counted(tmp_path, kind, *options, examples=examples))
        return made[-1]

    yield job
    for each in made:
        each.stop()


def story(job: Counted) -> dict[str, Any]:
    """Two workers, a generation that is given up, three, one of them killed, one worker and another parameter
    server; all in the first epoch."""
    job.launch(chief=1, ps=1, worker=2)
    job.train_to(300)
    job.give_up()
    job.train_to(500)
    job.change(700, chief=1, ps=1, worker=3)
    job.hold(1200)
    until("it trains", lambda: job.position() > 800, SLOW)
    job.lose(1)
    job.train_to(1200)
    job.change(1300, chief=1, ps=2, worker=1)
    return job.end()


def assert_once(job: Counted, told: dict[str, Any], repeated: int = 0) -> None:
    """Each example counts once in each epoch. A worker that is killed may have changed the model with the step that
    another worker repeats: so many examples of the first epoch may count twice."""
    first, second = told["epochs"]
    assert second == {"1": job.examples}
    assert first.get("1", 0) + first.get("2", 0) == job.examples, f"an example is missed: {first}"
    assert first.get("2", 0) <= repeated
    assert told["position"] == 2 * job.examples
    print(f"examples by how often they count, in each epoch: {told['epochs']}")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--batch-size=20",), id="scaled"),
        # The order and the batch are chosen by the same few lines for each kind of program.
        pytest.param(("--batch=fixed", "--batch-size=60", "--order=blocks"), id="fixed", marks=pytest.mark.thorough),
    ],
)
def test_a_loop_on_parameter_servers_trains_once_on_each_example(
    make: Callable[..., Counted], options: tuple[str, ...]
) -> None:
    job = make("loop", *options)
    told = story(job)
    assert_once(job, told, repeated=20)
    assert told["total_steps"] == told["step"], "it ends when no example is left"


@pytest.mark.thorough  # test_data_in_process.py has the callback, and the test above the workers
def test_fit_on_parameter_servers_trains_once_on_each_example(make: Callable[..., Counted]) -> None:
    job = make("fit", examples=10_000)
    told = story(job)
    assert_once(job, told, repeated=20)
    assert told["begun"] == [0, 1], "the last program began in the first epoch"


@pytest.mark.thorough  # test_data_in_process.py has the shares, test_rescale.py such workers
@pytest.mark.parametrize("kind", ["loop", "fit"])
def test_workers_without_parameter_servers_train_once_on_each_example(make: Callable[..., Counted], kind: str) -> None:
    job = make(kind, "--batch=fixed")
    job.launch(worker=2)
    job.train_to(300)
    job.change(700, worker=3)
    job.train_to(900)
    for pod in job.pods.values():  # the last checkpoint is some steps behind
        pod.stop()
    for pod in job.pods.values():
        pod.start()
    job.train_to(1300)
    job.change(1400, worker=1)
    assert_once(job, job.end())


@pytest.mark.thorough  # the contrast to the others: what happens without a position
def test_datasets_of_workers_miss_examples_and_repeat_others(make: Callable[..., Counted]) -> None:
    told = story(make("today"))
    first, _ = told["epochs"]
    assert first["0"] > 200, first
    assert sum(n for times, n in first.items() if int(times) > 1) > 200, first
    print(f"examples by how often they count, in each epoch: {told['epochs']}")

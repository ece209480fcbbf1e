"""Each speed model against its formula."""

import math
from dataclasses import replace
from random import Random
from statistics import mean, median

import pytest

from elastic_tfjob.scheduling.profiles import build, parse_profile
from elastic_tfjob.scheduling.resources import Resources
from elastic_tfjob.scheduling.snapshot import PS, WORKER, fixed_group
from elastic_tfjob.simulation.live_job import Noise
from elastic_tfjob.simulation.live_jobs import arrive
from elastic_tfjob.simulation.speed_models.base import FIXED, linear_speed
from elastic_tfjob.simulation.speed_models.catalogue import speed_model_named
from elastic_tfjob.simulation.speed_models.elasticflow import elasticflow, tables
from elastic_tfjob.simulation.speed_models.pollux import (
    APPLICATIONS,
    POLLUX,
    Application,
    PolluxTrueSpeed,
    application,
    between,
)
from elastic_tfjob.simulation.speed_models.ps import MODELS, PS_FORMULA, ps_measured, samples_per_s
from elastic_tfjob.simulation.workload import LossCurve, WorkloadJob

from .build import work


def on(*nodes: str, ps: int = 0) -> dict[str, tuple[str, ...]]:
    return {WORKER: nodes, **({PS: ("p",) * ps} if ps else {})}


def test_fixed_is_one_step_a_second() -> None:
    true_speed = FIXED.true_speed(work("j", 0, 12))
    assert (true_speed.total_steps, true_speed.rate(on("a", "b"))) == (12, 1)


def test_linear_with_a_loss_per_worker_beyond_the_declared() -> None:
    """Declared 2; 4 workers at a loss of 20 %: (2 + 2 * 0.8) / 2 = 1.8."""
    true_speed = linear_speed(work("j", 0, 12, gpus=2, high=4), loss=0.2)
    assert [true_speed.steps_per_s({WORKER: n}) for n in (1, 2, 4)] == [0.5, 1.0, pytest.approx(1.8)]


@pytest.mark.parametrize("points", [3, 5, 99])
def test_a_policy_that_measures_sizes_measures_those_that_a_table_has(points: int) -> None:
    """The table has 1, 2, 4, ... 64 of 1 to 64: few of those drawn are among them."""
    kind, name, batch = next(iter(tables()))
    job = replace(work("j", 0, 100, gpus=1, low=1, high=64), model=name, batch_size=batch)
    profile = build("optimus", parse_profile("optimus", {"sample_points": points}))
    live = arrive(job, 0, speed_model=elasticflow(kind), profile=profile, noise=Noise(), random=Random(1), now=0.0)
    has = [n for n in tables()[kind, name, batch] if n <= 64]
    assert len(live.seen) == min(points, len(has))
    assert {workers for _, workers in live.seen} <= {*has}


class TestPs:
    def ps_job(self, **more: object) -> WorkloadJob:
        groups = (fixed_group(PS, Resources(1000), 2), fixed_group(WORKER, Resources(1000), 4))
        return WorkloadJob("j", 0, groups, model="vgg-16", **more)  # type: ignore[arg-type]

    def test_the_optimus_form(self) -> None:
        """1/f = a/w + b + c w/p + d w + e p for resnet-50 at p=2, w=4: 0.985 + 13.06 + 26.34 + 0.9216 + 0 ms."""
        assert MODELS["resnet-50"].samples_per_s(2, 4) == pytest.approx(1 / 41.3066e-3)

    def test_nothing_moves_without_ps_or_workers(self) -> None:
        assert MODELS["wlm"].samples_per_s(0, 3) == MODELS["wlm"].samples_per_s(3, 0) == 0

    def test_beyond_what_was_measured_the_same_ratio_stands(self) -> None:
        assert MODELS["vgg-16"].samples_per_s(16, 16) == pytest.approx(MODELS["vgg-16"].samples_per_s(12, 12))

    def test_work_from_a_duration_at_the_declared_size(self) -> None:
        true_speed = PS_FORMULA.true_speed(self.ps_job(duration_s=100.0))
        assert true_speed.total_steps == pytest.approx(100 * MODELS["vgg-16"].samples_per_s(2, 4))
        assert true_speed.rate(on("a", "a", "b", "b", ps=2)) == true_speed.steps_per_s({PS: 2, WORKER: 4})

    def test_an_unknown_model_is_named_with_those_there_are(self) -> None:
        with pytest.raises(
            ValueError, match="job j: the speed model ps does not know model ''; allowed: resnet-50, vgg-16"
        ):
            PS_FORMULA.true_speed(work("j", 0, 1))


class TestPsMeasured:
    def middle(self, ps: int, workers: int) -> float:
        """Samples per second of vgg-16 without residuals: the geometric mean over many draws of them."""
        return math.exp(mean(math.log(samples_per_s("vgg-16", ps, workers, seed)) for seed in range(200)))

    @pytest.mark.parametrize(
        ("ps", "workers", "by_hand"),
        [
            (1, 1, 9.55),  # exp(2.068 + 0.1886)
            (8, 1, 21.97),  # ln 8 = 2.0794: exp(2.068 + 1.4398 - 0.4179)
            (1, 8, 4.31),  # exp(2.068 + 0.4265 - 1.0339)
            (4, 4, 14.74),  # ln 4 = 1.3863: exp(2.068 + 0.9599 + 0.2843 - 0.1857 + 0.0238 - 0.4595)
        ],
    )
    def test_the_surface(self, ps: int, workers: int, by_hand: float) -> None:
        assert self.middle(ps, workers) == pytest.approx(by_hand, rel=0.02)

    def test_greedy_climbing_ends_far_below_the_best(self) -> None:
        """Measured are 9.6 samples/s at (1, 1), 24 at (8, 1), 25.6 at (16, 2) and 4.9 at (1, 8)."""
        for (ps, workers), measured in {(1, 1): 9.6, (8, 1): 24.0, (16, 2): 25.6, (1, 8): 4.9, (4, 4): 14.6}.items():
            assert self.middle(ps, workers) == pytest.approx(measured, rel=0.13)

    def test_residuals_are_of_the_size_of_the_error_of_the_fit_and_drawn_by_seed(self) -> None:
        """The median error of that fit is 4.1 percent."""
        drawn = [math.log(samples_per_s("vgg-16", 3, 2, seed)) for seed in range(400)]
        assert median(abs(each - mean(drawn)) for each in drawn) == pytest.approx(0.041, rel=0.2)
        sizes = [samples_per_s("vgg-16", p, w) / self.middle(p, w) for p in range(1, 5) for w in range(1, 5)]
        assert len(set(sizes)) == len(sizes), "each size has its own"
        assert samples_per_s("vgg-16", 3, 2) == samples_per_s("vgg-16", 3, 2, 0) != samples_per_s("vgg-16", 3, 2, 1)

    def test_measured_speeds_agree_with_the_formula_that_was_fitted_to_them(self) -> None:
        """The two agree but for the errors of both fits: in the median by a tenth."""
        for name, model in MODELS.items():
            sizes = [(p, w) for p in range(1, 17) for w in range(1, 9) if 2 < p + w <= 24]
            off = sorted(abs(math.log(samples_per_s(name, p, w) / model.samples_per_s(p, w))) for p, w in sizes)
            assert off[len(off) // 2] < 0.15, name

    def test_nothing_moves_without_ps_or_workers_and_beyond_what_was_measured_the_ratio_stands(self) -> None:
        assert samples_per_s("wlm", 0, 3) == samples_per_s("wlm", 3, 0) == 0
        assert samples_per_s("wlm", 16, 16) == pytest.approx(samples_per_s("wlm", 12, 12))

    def test_a_policy_is_told_the_truth_or_the_fit_of_optimus(self) -> None:
        job = WorkloadJob("j", 0, (fixed_group(PS, Resources(), 2), fixed_group(WORKER, Resources(), 4)), 100.0)
        job = replace(job, model="vgg-16")
        told, fit = (ps_measured(oracle_speed=told).true_speed(job) for told in ("truth", "fit"))
        assert told.total_steps == fit.total_steps == pytest.approx(100 * samples_per_s("vgg-16", 2, 4))
        assert told.rate(on("a", "a", "b", "b", ps=2)) == fit.rate(on("a", "a", "b", "b", ps=2))
        assert told.steps_per_s({PS: 2, WORKER: 4}) == samples_per_s("vgg-16", 2, 4)
        assert fit.steps_per_s({PS: 2, WORKER: 4}) == MODELS["vgg-16"].samples_per_s(2, 4)

    def test_a_model_without_measurements_is_named(self) -> None:
        with pytest.raises(
            ValueError, match="the speed model ps-measured does not know model ''; allowed: resnet-50, vgg-16"
        ):
            ps_measured().true_speed(work("j", 0, 1))
        with pytest.raises(ValueError, match="needs steps, or a duration and at least 1 PS and 1 worker"):
            ps_measured().true_speed(replace(work("j", 0, 1), model="wlm"))


class TestElasticFlow:
    def test_the_table_and_idle_accelerators(self) -> None:
        true_speed = elasticflow().true_speed(work("j", 0, model="bert", batch_size=64, total_steps=100.0))
        rates = tables()["A100", "bert", 64]
        assert true_speed.rate(on("a", "b")) == rates[2] == true_speed.steps_per_s({WORKER: 2})
        assert true_speed.rate(on("a", "b", "c")) == rates[2]
        assert true_speed.steps_per_s({WORKER: 3}) is None

    def test_more_than_is_good_is_as_slow_as_measured(self) -> None:
        true_speed = elasticflow().true_speed(work("j", 0, model="ncf", batch_size=32768, total_steps=1.0))
        assert true_speed.rate(on(*"a" * 64)) < true_speed.rate(on("a"))

    def test_an_unknown_model_is_named(self) -> None:
        with pytest.raises(ValueError, match="no measured speed of 'lenet' at batch size 8"):
            elasticflow().true_speed(work("j", 0, model="lenet", batch_size=8, total_steps=1.0))


class TestPollux:
    app = Application(
        "toy",
        {100: [(10.0, 1.0, 1.0), (20.0, 1.0, 3.0)], 200: [(12.0, 1.0, 1.0), (20.0, 1.0, 3.0)]},
        {(1,): [(50.0, 1.0, 0.1), (100.0, 2.0, 0.2)], (2,): [(50.0, 1.1, 0.3), (100.0, 2.2, 0.4)]},
        [],
        2,
        50.0,
        100.0,
    )

    def test_gain_and_steps(self) -> None:
        """Scale 2: gain (v + s)/(v/2 + s) is 4/3 with v=1 and 1.6 with v=3; epochs of 10 and 10 progress."""
        assert self.app.gain(200, 0) == pytest.approx(4 / 3)
        assert self.app.steps(200) == pytest.approx(10 / (4 / 3) + 10 / 1.6)

    def test_step_times_between_batch_sizes_and_none_beyond(self) -> None:
        assert self.app.step_times((2,), 75.0) == pytest.approx((1.65, 0.35))
        with pytest.raises(ValueError, match="outside the measured 50 to 100"):
            between(self.app.by_placement[1,], 101.0)

    def test_one_gpu_accumulates_two_passes_above_the_smallest_batch(self) -> None:
        """Batch 200 on 1 GPU: 2 passes of 100: 2.0 + (2.0 - 0.2). On 2 GPUs: one pass of 100 each."""
        true_speed = PolluxTrueSpeed(self.app, 200, self.app.steps(200))
        assert true_speed.rate(on("a")) == pytest.approx(1 / 3.8)
        assert true_speed.rate(on("a", "a")) == pytest.approx(1 / 2.2)
        assert true_speed.steps_per_s({WORKER: 2}) == true_speed.rate(on("a", "a"))
        assert true_speed.steps_per_s({WORKER: 5}) is None

    def test_rotations_of_a_placement_are_one(self) -> None:
        app = application("cifar10")
        assert app.step_times((2, 1), 64) == app.step_times((1, 2), 64)

    def test_placements_that_were_not_measured_are_interpolated(self) -> None:
        pytest.importorskip("scipy")
        step, sync = application("cifar10").step_times((4, 4, 4, 4, 4), 64)
        assert 0 < sync < step < 1

    def test_every_shipped_application_has_what_it_needs(self) -> None:
        for name, batch in {"bert": 384, "cifar10": 2048, "deepspeech2": 320, "imagenet": 3200, "ncf": 32768}.items():
            true_speed = POLLUX.true_speed(work("j", 0, model=name, batch_size=batch))
            assert math.isfinite(true_speed.total_steps)
            assert true_speed.rate(on("a")) > 0

    def test_wrong_applications_and_batches_are_named(self) -> None:
        with pytest.raises(ValueError, match="does not know application 'gpt'"):
            POLLUX.true_speed(work("j", 0, model="gpt"))
        with pytest.raises(ValueError, match="bert was measured at batch sizes 12 to 384, not 1"):
            POLLUX.true_speed(work("j", 0, model="bert", batch_size=1))


def test_loss_curve() -> None:
    assert LossCurve(0.1, 1.0, 0.5).at(10) == pytest.approx(1 / 2 + 0.5)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_tuned_batch_size_is_as_fast_as_each_fixed_one(name: str) -> None:
    """Within what a local batch size between two measured ones can be better than both."""
    app = application(name)
    for batch in (app.init_batch, 2 * app.init_batch):
        fixed = PolluxTrueSpeed(app, batch, app.steps(batch))
        tuned = PolluxTrueSpeed(app, batch, app.steps(batch), tuned=True)
        for workers in (1, 2, 4, 8):
            rate = fixed.steps_per_s({WORKER: workers})
            if rate is not None:
                assert (tuned.steps_per_s({WORKER: workers}) or 0) >= 0.96 * rate


def test_batch_sizes_are_within_what_was_measured() -> None:
    """And with one replica, more than one pass for each larger batch: the gradient noise is measured between them."""
    app = application("cifar10")
    for shape in ((1,), (4,), (4, 4, 2)):
        for batch, seconds in app.batches(shape):
            assert app.init_batch <= batch <= app.max_batch
            assert seconds > 0
    alone = dict(app.batches((1,)))
    step, sync = app.step_times((1,), 128)
    assert alone[128] == step
    assert alone[256] == pytest.approx(step + step - sync)
    assert 257 not in alone


def test_the_tuned_model_is_chosen_by_name() -> None:
    job = work("j", 0, None, model="imagenet", batch_size=400)
    speed = speed_model_named("pollux-tuned").true_speed(job)
    assert speed.total_steps == POLLUX.true_speed(job).total_steps
    assert (speed.steps_per_s({WORKER: 64}) or 0) > 30 * (speed.steps_per_s({WORKER: 1}) or 1)

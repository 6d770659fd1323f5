"""Phases: one value outside a loop, inside one a series with its loop in the path."""

from __future__ import annotations

import contextlib
import itertools
import time

import pytest
from support.ranks import make_rank
from support.virtual_cuda import VirtualCuda

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.reduce import merge
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.rank import RankReport
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.notebook import Notebook
from pytest_distbench.worker.phases import Phases


@pytest.fixture
def rank() -> RankContext:
    """A rank whose phases are timed by a clock that moves by one second at every look."""
    made = make_rank()
    ticks = itertools.count()
    made.phases = Phases(made.notebook, lambda: float(next(ticks)), lambda: None, made.delay)
    return made


def found(rank: RankContext) -> dict[str, Observation]:
    return {o.name: o for o in rank.notebook.observations}


def test_outside_a_loop_a_phase_is_one_value_with_the_outer_ones_in_its_path(rank: RankContext) -> None:
    with rank.phase("outer"), rank.phase("inner"):
        pass

    assert {name: (o.values, o.is_series) for name, o in found(rank).items()} == {
        "phase/outer/inner": ([1.0], False),
        "phase/outer": ([3.0], False),
    }


def test_in_a_timed_loop_it_is_a_series_without_the_warm_up(rank: RankContext) -> None:
    for _ in rank.timed("step", warmup=2, iterations=3, at={"size": 8}):
        with rank.phase("forward"), rank.phase("embed"):
            pass

    series = found(rank)
    assert series["phase/step/forward/embed"].values == [1.0, 1.0, 1.0]
    assert series["phase/step/forward"].values == [3.0, 3.0, 3.0]
    assert series["phase/step/forward"].is_series
    assert series["phase/step/forward"].at == series["step"].at == {"size": 8}


def test_entered_twice_in_an_iteration_it_is_the_sum_and_where_it_is_not_entered_zero(rank: RankContext) -> None:
    for i in rank.timed("step", warmup=0, iterations=4):
        for _ in range(i % 3):
            with rank.phase("send"):
                pass

    assert found(rank)["phase/step/send"].values == [0.0, 1.0, 2.0, 0.0]


def test_a_loop_inside_a_phase_has_the_phase_in_the_path(rank: RankContext) -> None:
    with rank.phase("train"):
        for _ in rank.timed("step", warmup=0, iterations=2):
            with rank.phase("forward"):
                pass
    with rank.phase("forward"):
        pass

    assert sorted(found(rank)) == ["phase/forward", "phase/train", "phase/train/step/forward", "step"]


def test_a_goals_loop_counts_as_its_step_time(rank: RankContext) -> None:
    goal = rank.goal("accuracy", target=0.5, every=2, max_steps=4, min_steps=4, curve_steps=1)

    def evaluate() -> float:
        with rank.phase("evaluate"):
            return 0.7

    for _ in goal.steps(samples_per_step=1):
        with rank.phase("forward"):
            pass
        goal.check(evaluate)

    assert found(rank)["phase/step_time/forward"].values == [1.0] * 4
    assert found(rank)["phase/step_time/evaluate"].values == [0.0, 1.0, 0.0, 1.0]


def test_the_same_loop_at_two_points_has_phases_of_its_own(rank: RankContext) -> None:
    for size in (1, 2):
        for _ in rank.timed("step", warmup=0, iterations=1, at={"size": size}):
            with rank.phase("send"):
                pass

    assert [o.at for o in rank.notebook.observations if o.name == "phase/step/send"] == [{"size": 1}, {"size": 2}]


def test_a_name_used_twice_outside_loops_is_refused_before_its_work(rank: RankContext) -> None:
    with rank.phase("load"):
        pass

    with pytest.raises(RecordingError, match="'phase/load' is recorded twice"), rank.phase("load"):
        pytest.fail("the work was done for nothing")


@pytest.mark.parametrize("better", ["info", "lower"])
def test_a_phase_is_judged_where_it_is_asked_for(rank: RankContext, better: str) -> None:
    for _ in rank.timed("step", warmup=0, iterations=1):
        with rank.phase("send", better=better):  # type: ignore[arg-type]
            pass

    assert found(rank)["phase/step/send"].better == better


def test_a_phase_judged_two_ways_in_a_loop_is_an_error(rank: RankContext) -> None:
    def body() -> None:
        for i in rank.timed("step", warmup=0, iterations=2):
            with rank.phase("send", better="lower" if i else "info"):
                pass

    with pytest.raises(RecordingError, match="better='lower', and 'info' before in the same loop"):
        body()


def test_an_exception_inside_is_itself_and_leaves_no_phase_open(rank: RankContext) -> None:
    def body() -> None:
        for _ in rank.timed("step", warmup=0, iterations=3):
            with rank.phase("send"):
                raise KeyError

    with pytest.raises(ZeroDivisionError), rank.phase("outer"), rank.phase("inner"):
        _ = 1 / 0
    with pytest.raises(KeyError):
        body()
    with rank.phase("after"):
        pass

    assert sorted(found(rank)) == ["phase/after"]


def test_a_phase_that_outlives_its_loop_is_an_error(rank: RankContext) -> None:
    phase = rank.phase("send")
    for _ in rank.timed("step", warmup=0, iterations=1):
        phase.__enter__()

    with pytest.raises(RecordingError, match=r"phase\('send'\) was left after the loop 'step'"):
        phase.__exit__(None, None, None)


def test_a_launchs_value_is_the_fast_side_of_the_iterations_that_entered_it() -> None:
    notebook = Notebook()
    notebook.note("phase/step/save", [0.0, 4.0, 0.0, 2.0], unit="s", better="info", reduce="max", at={})
    report = RankReport(rank=0, outcome="passed", phase="body", phases={}, observations=list(notebook.observations))
    [measurement] = merge([report])

    assert measurement.value == 2.5
    assert measurement.series == [0.0, 4.0, 0.0, 2.0]


def test_an_exception_inside_is_told_without_waiting_for_the_device() -> None:
    """The device may wait for ranks that have given up: who waits for it then hangs, and nobody hears of the error."""
    waited = itertools.count()
    made = make_rank()
    made.phases = Phases(
        made.notebook, time.perf_counter, lambda: None if next(waited) == 0 else pytest.fail("waits"), made.delay
    )

    with pytest.raises(ValueError, match="the cause"), made.phase("step"):
        raise ValueError("the cause")


def test_a_captured_loop_has_no_phases(rank: RankContext) -> None:
    with (
        rank.phases.loop("step", {}, is_captured=True),
        pytest.raises(RecordingError, match=r"phase\('send'\): an iteration of the loop 'step' is captured"),
        rank.phase("send"),
    ):
        pytest.fail("its time would be recorded")


def test_a_delay_makes_a_phase_and_its_loop_longer_by_the_same_share(monkeypatch: pytest.MonkeyPatch) -> None:
    host, rank = VirtualCuda(monkeypatch), make_rank(delay=0.5)
    for _ in rank.timed("step", warmup=0, iterations=3):
        with rank.phase("forward"):
            host.compute(1.0)
        host.compute(2.0)

    assert found(rank)["phase/step/forward"].values == pytest.approx([1.5] * 3, abs=1e-4)
    assert found(rank)["step"].values == pytest.approx([4.5] * 3, abs=1e-4)


def _step_on_device(device: VirtualCuda, *, has_phases: bool) -> RankContext:
    """Kernels of 3 and 5 ms that the host enqueues at once, ten times after the warm-up."""
    rank = make_rank(device="cuda")
    parts = rank.phase if has_phases else lambda name: contextlib.nullcontext()
    for _ in rank.timed("step", warmup=3, iterations=10):
        with parts("forward"):
            device.launch(3e-3)
        with parts("backward"), parts("send"):
            device.launch(5e-3)
    return rank


def test_on_a_device_a_phase_takes_what_the_device_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    series = found(_step_on_device(VirtualCuda(monkeypatch), has_phases=True))

    assert series["phase/step/forward"].values == pytest.approx([3e-3] * 10, rel=1e-3)
    assert series["phase/step/backward"].values == pytest.approx([5e-3] * 10, rel=1e-3)
    assert series["phase/step/backward/send"].values == pytest.approx([5e-3] * 10, rel=1e-3)
    assert series["step"].values == pytest.approx([8e-3] * 10, rel=1e-3)


def test_on_a_device_phases_make_the_host_wait_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    for has_phases in (False, True):
        with monkeypatch.context() as patch:
            device = VirtualCuda(patch)
            _step_on_device(device, has_phases=has_phases)
            waits.append(device.counts().get("synchronize", 0))

    assert waits[0] == waits[1]


def test_on_a_device_a_phase_that_is_left_out_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device, rank = VirtualCuda(monkeypatch), make_rank(device="cuda")
    for i in rank.timed("step", warmup=3, iterations=4):
        device.launch(1e-3)
        if i % 2 == 0:
            with rank.phase("evaluation"):
                device.launch(2e-3)

    assert found(rank)["phase/step/evaluation"].values == pytest.approx([2e-3, 0.0, 2e-3, 0.0], rel=1e-3)

"""Phases: one value outside a loop, inside one a series with its loop in the path."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable

import pytest
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.reduce import merge, recorded
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.metric import Observation
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.notebook import Notebook
from pytest_distbench.worker.phases import Phases


@pytest.fixture
def rank() -> RankContext:
    """A rank whose phases are timed by a clock that advances by one second per reading."""
    made = make_rank()
    ticks = itertools.count(1)

    def clock() -> float:
        return float(next(ticks))

    made.phases = Phases(made.notebook, clock, lambda: None, made.delay, now_in_loops=clock, sent=lambda: 0)
    return made


def found(rank: RankContext) -> dict[str, Observation]:
    return {o.name: o for o in rank.notebook.observations}


def test_outside_a_loop_a_phase_is_one_value_with_the_outer_ones_in_its_path(rank: RankContext) -> None:
    with rank.phase("outer"), rank.phase("inner"):
        pass
    told = {name: (o.values, o.is_series) for name, o in found(rank).items()}

    assert told == {"phase/outer/inner": ([1.0], False), "phase/outer": ([3.0], False)}


def test_in_a_timed_loop_it_is_a_series_without_the_warm_up_and_says_where_it_lies(rank: RankContext) -> None:
    for _ in rank.timed("step", warmup=2, iterations=3, at={"size": 8}):
        with rank.phase("forward"), rank.phase("embed"):
            pass
    with rank.phase("after"):
        pass

    series = found(rank)
    assert list(series) == ["step", "phase/step/forward", "phase/step/forward/embed", "phase/after"]
    embed = series["phase/step/forward/embed"]
    assert (embed.loop, embed.path, embed.host_s, embed.is_apart) == ("step[size=8]", ["forward", "embed"], [], False)
    assert series["step"].loop == series["phase/after"].loop == ""
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


def test_a_goals_loop_counts_as_its_step_time_and_an_evaluation_is_apart(rank: RankContext) -> None:
    goal = rank.goal("accuracy", target=0.5, every=2, max_steps=4, min_steps=4, curve_steps=1)

    def evaluate() -> float:
        with rank.phase("predict"):
            return 0.7

    for _ in goal.steps(samples_per_step=1):
        with rank.phase("forward"):
            pass
        with rank.phase("evaluation"):
            goal.check(evaluate)

    phases = {name: (o.values, o.is_apart) for name, o in found(rank).items() if o.loop}
    assert phases == {
        "phase/step_time/forward": ([1.0] * 4, False),
        "phase/step_time/evaluation": ([1.0, 3.0, 1.0, 3.0], True),
        "phase/step_time/evaluation/predict": ([0.0, 1.0, 0.0, 1.0], True),
    }


@pytest.mark.parametrize("better", ["info", "lower"])
def test_a_phase_is_judged_where_it_is_asked_for(rank: RankContext, better: str) -> None:
    for _ in rank.timed("step", warmup=0, iterations=1):
        with rank.phase("send", better=better):  # type: ignore[arg-type]
            pass

    assert found(rank)["phase/step/send"].better == better


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


def test_a_phase_in_another_thread_is_an_error(rank: RankContext) -> None:
    told: list[BaseException] = []

    def load() -> None:
        try:
            with rank.phase("load"):
                pass
        except RecordingError as error:
            told.append(error)

    for _ in rank.timed("step", warmup=0, iterations=1):
        loader = threading.Thread(target=load, name="loader")
        loader.start()
        loader.join()

    [error] = told
    assert str(error).startswith("phase('load') was entered in the thread 'loader'; wanted the one that runs the body")


def test_a_phases_value_is_the_lower_quantile_of_iterations_that_entered_it() -> None:
    notebook = Notebook()
    notebook.note("phase/step/save", [0.0, 4.0, 0.0, 2.0], unit="s", better="info", reduce="max", at={})
    report = RankReport(rank=0, outcome="passed", phase="body", phases={}, observations=list(notebook.observations))
    [measurement] = merge(recorded([report]))

    assert measurement.value == 2.5
    assert measurement.values == [0.0, 4.0, 0.0, 2.0]


def test_it_says_when_it_began_where_it_enters_collectives_outside_of_its_own_parts() -> None:
    rank, sent = make_rank(), itertools.count()
    entered = 0
    told = {"now_in_loops": lambda: float(next(sent) + 1), "sent": lambda: entered}
    rank.phases = Phases(rank.notebook, time.perf_counter, lambda: None, rank.delay, **told)
    for i in rank.timed("step", warmup=0, iterations=3):
        with rank.phase("backward"):
            if i != 1:
                with rank.phase("all_reduce"):
                    entered += 1
        with rank.phase("optimizer"):
            pass

    began = {name: o.began_at for name, o in found(rank).items() if o.loop}
    assert began == {
        "phase/step/backward": [],
        "phase/step/backward/all_reduce": [2.0, 0.0, 12.0],
        "phase/step/optimizer": [],
    }


def enters_twice(rank: RankContext) -> None:
    with rank.phase("load"):
        pass
    with rank.phase("load"):
        pytest.fail("the work was done for nothing")


def outlives(rank: RankContext, iterations: int = 1) -> None:
    for _ in rank.timed("step", warmup=0, iterations=iterations):
        rank.phase("send").__enter__()


def crosses(rank: RankContext) -> None:
    for _ in rank.timed("step", warmup=0, iterations=2):
        with contextlib.ExitStack() as outer, contextlib.ExitStack() as inner:
            outer.enter_context(rank.phase("forward"))
            inner.enter_context(rank.phase("loss"))
            outer.close()


def ends_in_a_loop(rank: RankContext) -> None:
    train = rank.phase("train")
    train.__enter__()
    for _ in rank.timed("step", warmup=0, iterations=2):
        train.__exit__(None, None, None)


def leaves_again(rank: RankContext) -> None:
    phase = rank.phase("send")
    with phase:
        pass
    phase.__exit__(None, None, None)


def is_captured(rank: RankContext) -> None:
    with rank.phases.loop("step", {}, is_captured=True), rank.phase("send"):
        pytest.fail("its time would be recorded")


A_ROW = r"phase\('unaccounted'\): .*the table of phases has a row of that name"
OUTLIVED = r"phase\('send'\) of the loop 'step' was not left in its own iteration"


@pytest.mark.parametrize(
    ("body", "text", "kept"),
    [
        (enters_twice, "'phase/load' is recorded twice", ["phase/load"]),
        (outlives, OUTLIVED, ["step"]),
        (lambda rank: outlives(rank, 3), OUTLIVED, []),
        (crosses, r"phase\('forward'\) was left before the phase 'loss'", []),
        (ends_in_a_loop, r"phase\('train'\) was left before the loop 'step'", []),
        (leaves_again, r"phase\('send'\) was left after what it was entered in", ["phase/send"]),
        (is_captured, r"phase\('send'\): an iteration of the loop 'step' is captured", []),
        (lambda rank: rank.phase("a/b"), r"phase\('a/b'\): .*wanted printable text without \[ \] /", []),
        (lambda rank: rank.phase("unaccounted"), A_ROW, []),
    ],
)
def test_a_phase_that_is_used_otherwise_is_an_error_and_leaves_none_open(
    rank: RankContext, body: Callable[[RankContext], object], text: str, kept: list[str]
) -> None:
    with pytest.raises(RecordingError, match=text):
        body(rank)
    with rank.phase("after"):
        pass
    assert sorted(found(rank)) == ["phase/after", *kept]


def test_the_same_loop_at_two_points_has_phases_of_its_own(rank: RankContext) -> None:
    for size in (1, 2):
        for _ in rank.timed("step", warmup=0, iterations=1, at={"size": size}):
            with rank.phase("send"):
                pass

    assert [o.at for o in rank.notebook.observations if o.name == "phase/step/send"] == [{"size": 1}, {"size": 2}]


def test_what_an_exception_took_counts_where_the_loop_goes_on(rank: RankContext) -> None:
    """A loader that is empty raises StopIteration, and is begun again."""
    batches = iter([1])
    for _ in rank.timed("step", warmup=0, iterations=2):
        with contextlib.suppress(StopIteration), rank.phase("load"):
            next(batches)

    assert found(rank)["phase/step/load"].values == [1.0, 1.0]


def test_an_exception_in_a_phase_is_raised_without_waiting_for_the_device() -> None:
    """The device may wait for ranks that have given up: who waits for it then hangs, and nobody hears of the error."""
    waited = itertools.count()
    made = make_rank()

    def synchronize() -> None:
        if next(waited):
            pytest.fail("waits")

    told = {"make_device": lambda: pytest.fail("there is no loop"), "sent": lambda: 0}
    made.phases = Phases(made.notebook, time.perf_counter, synchronize, made.delay, **told)

    with pytest.raises(ValueError, match="the cause"), made.phase("step"):
        raise ValueError("the cause")

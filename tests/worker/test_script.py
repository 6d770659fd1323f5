"""A training script: it is run as ``torchrun`` would, and what it records itself."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.metric import WALL_TIME, Observation
from pytest_distbench.worker.context import RankContext


@pytest.fixture
def rank() -> RankContext:
    made = make_rank()
    made.notebook.is_of_script = True
    return made


def found(rank: RankContext) -> dict[str, Observation]:
    return {o.name: o for o in rank.notebook.observations}


def test_what_is_recorded_again_and_again_is_a_series(rank: RankContext) -> None:
    for loss in (3.0, 2.0):
        rank.record("loss", loss, better="curve")
    rank.record("parameters", 7, better="exact")
    rank.record("first", 0.5, better="curve")
    rank.record("losses", [1, 2])
    rank.finish()

    assert {name: (o.values, o.is_series) for name, o in found(rank).items()} == {
        "losses": ([1.0, 2.0], True),
        "loss": ([3.0, 2.0], True),
        "parameters": ([7.0], False),
        "first": ([0.5], True),
    }


def test_a_point_tells_series_apart(rank: RankContext) -> None:
    for seed in (1, 2, 1, 2):
        rank.record("loss", float(seed), at={"seed": seed})
    rank.finish()

    assert [(o.at, o.values) for o in rank.notebook.observations] == [({"seed": 1}, [1, 1]), ({"seed": 2}, [2, 2])]


def test_outside_of_timed_loops_phases_are_parts_of_the_script(rank: RankContext) -> None:
    with rank.phase("load"), rank.phase_at("read", "info", {"file": 1}):
        pass
    for _ in rank.timed("step", warmup=0, iterations=1):
        with rank.phase("forward"):
            pass
    rank.finish()
    places = [o for o in rank.notebook.observations if o.loop]
    found = {(place.loop, *place.path) for place in places}

    assert found == {(WALL_TIME, "load"), (WALL_TIME, "load", "read"), ("step", "forward")}


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda n: n.record("loss", "high"), "wanted"),
        (lambda n: n.record("a[b", 1), "; wanted printable text"),
        (lambda n: n.record("loss", 1, better="best"), "better='best'; wanted one of"),
        (lambda n: [n.record("loss", 1, unit="s"), n.record("loss", 2)], "with fewer arguments, and with unit='s'"),
        (lambda n: [n.record("loss", [1]), n.record("loss", [1])], "recorded twice"),
        (lambda n: n.phase("a", better="higher").__enter__(), "better='higher'; wanted one of info, lower"),
    ],
)
def test_an_error_says_at_its_own_line_what_was_wanted(
    use: Callable[[RankContext], object], said: str, rank: RankContext
) -> None:
    with pytest.raises(RecordingError) as error:
        use(rank)

    assert said in str(error.value)


def test_a_timed_loop_that_was_left_is_an_error_at_the_end(rank: RankContext) -> None:
    for _ in rank.timed("step", warmup=0, iterations=2):
        break

    with pytest.raises(RecordingError, match="was left before its last iteration"):
        rank.finish()


def test_a_bound_is_of_the_line_that_recorded_first(rank: RankContext) -> None:
    for loss in (3.0, 2.0):
        rank.record("loss", loss, at_most="2.5")
    rank.finish()

    [bound] = found(rank)["loss"].bounds
    assert (bound.side, bound.value) == ("most", 2.5)
    assert re.fullmatch(r"record at test_script\.py:\d+", bound.where)


def test_phases_nest_and_are_series(rank: RankContext) -> None:
    for _ in range(3):
        with rank.phase("step", better="lower"), rank.phase("forward"):
            pass
    rank.finish()
    told = {name: (len(o.values), o.better, o.unit) for name, o in found(rank).items()}

    assert told == {"phase/step/forward": (3, "info", "s"), "phase/step": (3, "lower", "s")}

"""Whatever a body gives to rank.*: a RecordingError refuses it, or what was recorded can be merged and stored."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import ON_TWO
from support.ranks import Line, make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.launch.reduce import merge, recorded
from pytest_distbench.records.case import Case
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord, RankReport
from pytest_distbench.store.baselines import BASELINE_FILES, SCHEMA, BaselineFile, render
from pytest_distbench.worker.context import RankContext

SCALARS = [
    None, True, False, 0, 1, 2, 5, -1, 2**53, 2**54, 10**400, -(10**400), 0.0, 0.5, 2.5, 1e300, 1e308, 5e-324, -1.5,
    math.nan, math.inf, 1j, "", "x", "3", "a[b", "a\nb", "\ud800", "é", b"x", Decimal("NaN"), Decimal("sNaN"),
    Decimal("1e999"), numpy.int64(3), numpy.float32(0.25), numpy.bool_(1), numpy.complex64(1),
    numpy.datetime64("NaT", "s"),
    torch.tensor(2), torch.tensor(0.5), torch.tensor(1j), torch.tensor([1.0, 2.0]), torch.ones(2, 2),
    torch.empty(1, device="meta"), torch.tensor(True), numpy.array(1.0), numpy.ones(3), numpy.ones((2, 2)), object(),
    object, len, "lower", "higher", "info", "exact", "curve", "steps", "floor", "same", "max", "all",
]  # fmt: skip
SCALAR = st.sampled_from(SCALARS) | st.floats() | st.integers() | st.text(max_size=3)
KEYS = st.sampled_from(["a", "seed", "every", "evaluation_samples", "", "a=b", "\ud800", 1, None])
NONSENSE = st.one_of(
    SCALAR,
    st.lists(SCALAR, max_size=3),
    st.lists(st.floats(allow_nan=False), max_size=4),
    st.dictionaries(KEYS, SCALAR, max_size=2),
    st.tuples(SCALAR),
    st.lists(SCALAR, max_size=2).map(iter),
    st.lists(st.floats(), max_size=3).map(lambda values: torch.tensor(values, dtype=torch.float64)),
)
MAPPING = st.dictionaries(KEYS, SCALAR, max_size=2) | NONSENSE
MISSING = st.just(...)


def call(function: Callable[..., Any], *positional: object, **named: object) -> Any:
    """Call with those arguments that are given; an Ellipsis stands for one left out."""
    return function(*positional, **{name: value for name, value in named.items() if value is not ...})


def refusal(work: Callable[[], object]) -> str:
    """Do it; the text of the RecordingError, empty where there was none. No other exception passes."""
    try:
        work()
    except RecordingError as error:
        return str(error) or pytest.fail("an error without text")
    return ""


def check_stored(rank: RankContext) -> None:
    """What the rank recorded goes the whole way: its report, the merge over two ranks, the baseline file, and back."""
    reports = [
        msgspec.json.decode(
            msgspec.json.encode(
                RankReport(rank=r, outcome="passed", phase="body", phases={}, observations=rank.notebook.observations)
            ),
            type=RankReport,
        )
        for r in range(2)
    ]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=merge(recorded(reports)))
    assert msgspec.json.decode(msgspec.json.encode(launch), type=LaunchRecord) == launch
    case = Case(test="t.py::t", id="ws2", conditions=ON_TWO, device="cpu")
    file = BaselineFile(schema=SCHEMA, platform="p", test="t", key="k", entry=make_entry(case, [launch] * 2, {}))
    assert BASELINE_FILES.load is not None
    read = BASELINE_FILES.load(msgspec.json.decode(render(file)))
    assert msgspec.convert(read, BaselineFile) == file


@settings(max_examples=400)
@given(
    name=st.just("m") | NONSENSE,
    value=NONSENSE,
    unit=MISSING | NONSENSE,
    better=st.sampled_from(list(METRIC_KINDS)) | NONSENSE,
    reduce=MISSING | st.sampled_from(["max", "min", "mean", "sum", "rank0", "all"]) | NONSENSE,
    at=MISSING | MAPPING,
    identity=MISSING | MAPPING,
    facts=MISSING | MAPPING,
    at_most=MISSING | st.just("2 s") | NONSENSE,
    at_least=MISSING | NONSENSE,
)
def test_record_takes_it_or_refuses_it(**arguments: object) -> None:
    rank = make_rank()
    name = arguments.pop("name")
    if not refusal(lambda: call(rank.record, name, **arguments)):
        check_stored(rank)


@settings(max_examples=400)
@given(
    name=st.just("m") | NONSENSE,
    warmup=st.sampled_from([0, 1]) | NONSENSE,
    iterations=st.sampled_from([1, 2]) | NONSENSE,
    at=MISSING | MAPPING,
    identity=MISSING | MAPPING,
    facts=MISSING | MAPPING,
    mode=MISSING | st.sampled_from(["per-iteration", "batch", "graph"]) | NONSENSE,
    over_ranks=MISSING | st.sampled_from(["max", "mean"]) | NONSENSE,
    before=MISSING | st.just(lambda index: None) | NONSENSE.filter(lambda value: not callable(value)),
)
def test_timed_takes_it_or_refuses_it(**arguments: Any) -> None:
    rank = make_rank()
    name = arguments.pop("name")
    loops: list[Any] = []
    if refusal(lambda: loops.append(call(rank.timed, name, **arguments))):
        return
    expected = arguments["warmup"] + arguments["iterations"]
    if expected < 100:
        assert len(list(loops[0])) == expected
        check_stored(rank)


@settings(max_examples=400)
@given(
    name=st.just("m") | NONSENSE,
    better=MISSING | st.sampled_from(["info", "lower"]) | NONSENSE,
    point=st.dictionaries(st.sampled_from(["a", "b c", "\ud800", "x["]), SCALAR, max_size=2),
)
def test_phase_and_point_take_it_or_refuse_it(name: object, better: object, point: dict[str, object]) -> None:
    rank = make_rank()

    def body() -> None:
        with rank.point(**point), call(rank.phase, name, better=better):  # type: ignore[arg-type]
            pass

    if not refusal(body):
        check_stored(rank)


@settings(max_examples=400)
@given(
    metric=st.just("accuracy") | NONSENSE,
    target=st.just(0.5) | NONSENSE,
    every=st.sampled_from([1, 2]) | NONSENSE,
    max_steps=st.sampled_from([2, 3]) | NONSENSE,
    better=MISSING | st.sampled_from(["higher", "lower"]) | NONSENSE,
    min_steps=MISSING | NONSENSE,
    curve_steps=MISSING | NONSENSE,
    evaluation_samples=MISSING | NONSENSE,
    samples_per_step=st.just(4) | NONSENSE,
    evaluation=st.just(0.75) | NONSENSE,
    loss=st.just(1.5) | NONSENSE,
)
def test_goal_takes_it_or_refuses_it(
    metric: object, samples_per_step: Any, evaluation: Any, loss: Any, **arguments: object
) -> None:
    rank = make_rank()

    def body() -> None:
        goal = call(rank.goal, metric, **arguments)
        if goal.max_steps > 1000:
            return
        for _ in goal.steps(samples_per_step=samples_per_step):
            goal.check(lambda: evaluation, loss=loss)

    if not refusal(body):
        check_stored(rank)


@settings(max_examples=400)
@given(value=NONSENSE, at=MAPPING)
def test_the_rest_takes_it_or_refuses_it(value: Any, at: Any) -> None:
    line = Line()
    rank = make_rank(line)
    for work in (
        lambda: rank.agree(value),
        lambda: rank.sum_over_ranks(value),
        lambda: rank.max_over_ranks(value),
        lambda: rank.wants(value, at),
        lambda: rank.progress(value),
        lambda: rank.progress("step", value=value),
        lambda: rank.goal("m", target=1, every=1, max_steps=1).check(value),
    ):
        refusal(work)
    assert all(msgspec.json.encode(text) for text in line.shown)


LONG = {"a": "x" * 101}


def loop(rank: RankContext, **options: Any) -> Any:
    return rank.timed("t", **{"warmup": 0, "iterations": 1, **options})


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda r: loop(r, warmup=2.5), r"timed\('t'\): warmup=2.5; wanted a whole number of at least 0"),
        (lambda r: loop(r, iterations=0), "iterations=0; wanted a whole number of at least 1"),
        (
            lambda r: loop(r, warmup=1, iterations=2, before=3),
            r"timed\('t'\): wanted before to be a function of the iteration's index, or None, found 3 \(int\)",
        ),
        (lambda r: r.timed("wall_time", warmup=0, iterations=1), r"timed\('wall_time'\): the plugin itself records"),
        (lambda r: r.record("fingerprint", 1), r"record\('fingerprint'\): the plugin itself records a metric"),
        (lambda r: r.record("phase/step/x", 1), "the plugin itself records a metric of that name; choose another"),
        (lambda r: r.record("", 1, at_most="fast"), r"name=''; wanted printable text without \[ \], not empty"),
        (lambda r: r.record("m", 1, at=LONG), r"at\['a'\]='x+'; wanted printable text of at most 100 characters"),
        (lambda r: r.max_over_ranks({1: 2}), r"max_over_ranks\(...\): wanted a list of numbers, not empty, found {1"),
        (lambda r: r.record("m", 1, better="best"), "better='best'; wanted one of higher, lower, exact"),
        (lambda r: r.record("m", 1, reduce="median"), "reduce='median'; wanted one of max, min"),
        (lambda r: r.goal("a", target=math.nan, every=1, max_steps=2), "target=nan; wanted a finite number"),
        (lambda r: r.agree(True), r"agree\(...\): wanted a number, found True"),
        (lambda r: r.progress(3), r"progress\(...\): wanted text, found 3"),
        (lambda r: [list(loop(r)), loop(r)], "'t' is recorded twice"),
        (lambda r: [loop(r), r.check_complete()], r"timed\('t'\) was left before its last iteration"),
        (
            lambda r: r.record("m", 1, unit="s", at_most="10 GB/s"),
            r"record\('m'\): at_most: the unit 'GB/s' does not fit: wanted a time",
        ),
        (lambda r: r.record("m", 1, at_most=math.nan), r"record\('m'\): at_most: nan is no bound"),
        (lambda r: r.record("m", 1, at_least=3, at_most=2), r"record\('m'\): at_least=3 is more than at_most=2"),
    ],
)
def test_the_error_says_the_call_what_was_wanted_and_what_was_found(
    work: Callable[[RankContext], object], message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        work(make_rank())


def test_on_a_host_whose_gpus_nobody_has_seen_a_rank_takes_that_of_its_place_there() -> None:
    assert make_rank(device="cuda", devices=[3]).device == torch.device("cuda", 3)
    assert make_rank(device="cuda", devices=[]).device == torch.device("cuda", 0)


def test_a_bound_has_the_unit_of_its_number_and_the_line_of_the_body() -> None:
    rank = make_rank()
    rank.record("step", 0.02, unit="s", at_most="25ms", at_least=0.001)

    [noted] = rank.notebook.observations
    assert [(bound.side, bound.value) for bound in noted.bounds] == [("least", 0.001), ("most", 0.025)]
    assert all(re.fullmatch(r"rank\.record at test_context\.py:\d+", bound.where) for bound in noted.bounds)

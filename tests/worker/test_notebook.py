"""Whatever a body gives to rank.*: it is refused by name, or what was recorded can be merged and stored."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
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
from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.launch.reduce import merge, recorded
from pytest_distbench.records.case import Case
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord, RankReport
from pytest_distbench.records.metric import Bound
from pytest_distbench.store.baselines import BASELINE_FILES, SCHEMA, BaselineFile, render
from pytest_distbench.worker import notebook as module
from pytest_distbench.worker.context import Goal, RankContext
from pytest_distbench.worker.notebook import Notebook, check_scalars, check_several, check_unread, check_values


def note(notebook: Notebook, value: object, better: str = "info", **options: object) -> None:
    arguments = {"unit": "", "reduce": None, "at": {}, **options}
    notebook.note("m", value, better=better, **arguments)  # type: ignore[arg-type]


def test_a_metric_is_noted_once_at_each_point_and_not_where_it_is_refused() -> None:
    notebook = Notebook()
    note(notebook, 1, at={"size": 1})
    note(notebook, 1, at={"size": 2})

    with pytest.raises(RecordingError, match=r"'m\[size=2\]' is recorded twice: give each its own name or point"):
        note(notebook, 1, at={"size": 2})

    notebook = Notebook()
    with pytest.raises(RecordingError):
        note(notebook, "fast")
    note(notebook, 1)
    assert [o.values for o in notebook.observations] == [[1.0]]


@pytest.mark.parametrize(
    ("better", "reduce"), [("lower", "max"), ("higher", "min"), ("exact", "all"), ("info", "rank0"), ("same", "mean")]
)
def test_the_kind_says_how_ranks_are_reduced_unless_the_call_does(better: str, reduce: str) -> None:
    notebook = Notebook()
    note(notebook, 1, better)
    note(notebook, 1, better, reduce="sum", at={"b": 1})

    assert [o.reduce for o in notebook.observations] == [reduce, "sum"]


EVERY_0, NO_SAMPLES = {"every": 0}, {"evaluation_samples": 0}
SECONDS, BYTES = {"unit": "s"}, {"unit": "B"}


@pytest.mark.parametrize(
    ("value", "better", "options", "message"),
    [
        (1.0, "curve", {}, "wanted a series, one value per step, got one number"),
        ([1.0], "same", {}, "wanted one number, got a series"),
        (97.0, "floor", {"identity": {"evaluation_samples": 10}}, "97 is no share of 10 samples; wanted 0 to 1"),
        (0.9, "floor", {"identity": NO_SAMPLES}, "wanted evaluation_samples in identity to be a whole number, at lea"),
        (-3, "steps", {}, r"record\('m', better='steps'\): wanted whole steps, 0 or more, found -3"),
        (2.5, "steps", {}, "wanted whole steps, 0 or more, found 2.5"),
        (5, "steps", {"identity": EVERY_0}, "wanted every in identity to be the steps between evaluations, above 0"),
        (0.0, "lower", SECONDS, r"record\('m'\): 0 s is no time that anything takes"),
        (-5.0, "lower", {"unit": "ms"}, r"record\('m'\): -5 ms is no time that anything takes"),
        (-1.0, "higher", SECONDS, r"record\('m'\): -1 s is no time that anything takes"),
        (-1, "lower", BYTES, r"record\('m'\): -1 B is no size"),
        ([3.0, -1.0, 3.0], "lower", SECONDS, r"record\('m'\): -1 s is no time"),
        ([0.0, 0.0, 3.0], "lower", SECONDS, r"record\('m'\): 0 s is no time"),
        (-1.0, "info", {"unit": "s", "bounds": [Bound(side="most", value=1.0, where="here")]}, "no time"),
    ],
)
def test_what_no_rule_could_judge_and_a_time_or_a_size_that_cannot_be_are_refused(
    value: object, better: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        note(Notebook(), value, better, **options)


@pytest.mark.parametrize("value", [2**60 + 1, -(2**63), 2**64 - 1, numpy.int64(2**60 + 1), torch.tensor(2**60 + 1)])
def test_a_large_integer_keeps_all_its_digits_on_the_way(value: Any) -> None:
    notebook = Notebook()
    notebook.note("checksum", value, unit="", better="exact", reduce=None, at={})
    report = RankReport(rank=0, outcome="passed", phase="body", phases={}, observations=notebook.observations)
    [measurement] = merge(recorded([msgspec.json.decode(msgspec.json.encode(report), type=RankReport)]))

    assert measurement.value == int(value)
    assert isinstance(measurement.value, int)


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (0, {"better": "steps"}),
        (5.0, {"better": "steps"}),
        (None, {"better": "steps"}),
        (0.0, {"unit": "s", "better": "info"}),
        ([0.0, 3.0, 3.0, 3.0, 3.0], {"unit": "s", "better": "lower"}),
        (0, {"unit": "B", "better": "lower"}),
        (-3.0, {"unit": "points", "better": "higher"}),
        (0.0, {"unit": "s", "better": "lower", "signals": {"cpu_s": [0.1]}}),
    ],
)
def test_unjudged_values_and_own_timings_are_noted(value: object, options: dict[str, Any]) -> None:
    notebook = Notebook()
    note(notebook, value, **options)

    assert len(notebook.observations) == 1


def test_numbers_of_other_libraries_are_numbers_and_errors_name_the_call() -> None:
    numbers = [3, 3.0, numpy.int64(3), numpy.float32(3), torch.tensor(3), Fraction(3), Decimal(3)]
    for value in (*numbers, torch.tensor([3.0], requires_grad=True)):
        assert module.check_number("call", "x", value) == 3.0

    texts = (None, True, numpy.bool_(1), "3", b"3", [3])
    tensors = (torch.tensor([1, 2]), torch.tensor(True), torch.tensor(1j), torch.empty(1, device="meta"))
    numbers = (3j, numpy.complex64(3), math.nan, math.inf, 10**400, 1e301, Decimal("sNaN"))
    for value in (*texts, *tensors, *numbers):
        with pytest.raises(RecordingError, match=r"call: x=.*; wanted a finite number"):
            module.check_number("call", "x", value)

    assert module.check_point("call", {"a": "x" * 100}) == {"a": "x" * 100}

    given = {"a": numpy.int64(1), "b": torch.tensor(2.5), "c": "text", "d": True, "e": numpy.bool_(0)}
    found = check_scalars("call", "at", given)
    assert found == {"a": 1, "b": 2.5, "c": "text", "d": True, "e": False}
    assert [type(v) for v in found.values()] == [int, float, str, bool, bool]

    found = check_unread("call", "loss", torch.ones(1, requires_grad=True).as_subclass(_Unread))
    assert isinstance(found, torch.Tensor)
    assert (found.shape, found.requires_grad) == ((), False)
    assert check_unread("call", "loss", numpy.float32(0.5)) == 0.5


@pytest.mark.parametrize(
    ("value", "values", "is_series"),
    [
        (None, [], False),
        (2, [2.0], False),
        (torch.tensor(2), [2.0], False),
        (numpy.array(2.0), [2.0], False),
        ([1, numpy.float64(2), torch.tensor(3.0)], [1.0, 2.0, 3.0], True),
        ((v for v in (1, 2)), [1.0, 2.0], True),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), [1.0, 2.0], True),
        (numpy.arange(2), [0.0, 1.0], True),
    ],
)
def test_a_value_is_a_number_a_series_or_none(value: object, values: list[float], is_series: bool) -> None:
    assert check_values("call", value) == (values, is_series)


@pytest.mark.parametrize(
    "value",
    [[1, 2.0], (1, 2), numpy.array([1, 2]), torch.tensor([1.0, 2.0]), iter([1, 2]), [torch.tensor(1), numpy.int8(2)]],
)
def test_several_numbers_may_come_in_any_list_or_array(value: object) -> None:
    assert check_several("call", value) == [1.0, 2.0]


class _Unread(torch.Tensor):
    """A tensor that its device still computes: reading it would wait."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func not in (torch.Tensor.__float__, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__)
        return super().__torch_function__(func, types, args, kwargs or {})


NO_LISTS = [
    3, None, {1: 2}, [], "12", {1, 2}, [1, None], [[1]], torch.tensor(1.0), torch.ones(2, 2), numpy.ones(0),
    torch.empty(2, device="meta"),
]  # fmt: skip
NO_NUMBERS = [
    "x", None, [1], 1j, True, torch.ones(3), torch.ones(0), torch.tensor(1j), torch.tensor(True),
    torch.empty(1, device="meta"),
]  # fmt: skip
series, point = partial(check_values, "call"), partial(check_scalars, "call", "at")
several, unread = partial(check_several, "call"), partial(check_unread, "call", "loss")


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (series, [], "the series is empty: nothing was measured"),
        (series, [1.0, None], "element 1 of the series=None; wanted a finite number"),
        (series, [1.0, math.nan], "element 1 of the series=nan; wanted a finite number"),
        (series, numpy.ones((2, 2)), r"a series of numbers, found an array of shape \[2, 2\]"),
        (series, torch.ones(2, device="meta"), r"a series of numbers, found an array of shape \[2\]"),
        (series, "fast", "a series of numbers, found 'fast'"),
        (series, {"a": 1}, "a series of numbers, found {'a': 1}"),
        (point, [1], r"wanted at to be a mapping of names to numbers and texts, found \[1\]"),
        (point, {1: 1}, r"a name in at=1; wanted printable text without \[ \] = ,, not empty"),
        (point, {"a=b": 1}, "a name in at="),
        (point, {"": 1}, "a name in at="),
        (point, {"a": [1]}, r"at\['a'\]=\[1\]; wanted True, False, printable text, or a number: "),
        *((point, {"a": value}, r"at\['a'\]") for value in (math.inf, 2**60, None, "\ud800")),
        *((several, value, "call: wanted a list of numbers, not empty, found ") for value in NO_LISTS),
        *(
            (unread, value, "call: wanted loss to be a number or a tensor of one element, found ")
            for value in NO_NUMBERS
        ),
    ],
)
def test_what_is_no_number_no_series_and_no_point_is_refused_with_its_place(
    check: Callable[[object], object], value: object, message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        check(value)


def train(goal: Goal, *, value: object = 0.9, loss: object = None, samples: object = 1) -> None:
    for _ in goal.steps(samples_per_step=samples):  # type: ignore[arg-type]
        goal.check(lambda: value, loss=loss)  # type: ignore[arg-type,return-value]


def training(**given: object) -> Callable[[Goal], None]:
    return lambda goal: train(goal, **given)


def make_goal(rank: RankContext | None = None) -> Goal:
    return (rank or make_rank()).goal("accuracy", target=0.5, every=1, max_steps=2, curve_steps=1)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (training(loss=torch.ones(2)), r"one element, found one of shape \[2\] and torch.float32: take its mean"),
        (training(loss=torch.tensor(1j)), r"one of shape \[\] and torch.complex64"),
        (training(loss="low"), r"wanted loss to be a number or a tensor of one element, found 'low' \(str\)"),
        (training(loss=True), r"found True \(bool\)"),
        (training(loss=math.nan), "the loss is nan at step 1: it diverged"),
        (training(loss=torch.tensor(math.inf)), "the loss is inf at step 1: it diverged"),
        (training(value=None), r"goal\('accuracy'\).check\(...\): wanted evaluate\(\) to return a number, found None"),
        (training(value=math.nan), "at step 1: the evaluation on rank 0=nan; wanted a finite number"),
        (training(samples=0), "samples_per_step"),
        (training(samples="8"), "samples_per_step"),
        (training(samples=math.nan), "samples_per_step"),
        (lambda goal: goal.check(lambda: 1.0), r"wanted inside the loop over goal.steps\(...\), found outside of it"),
        (lambda goal: [train(goal), goal.check(lambda: 1.0)], "found outside of it"),
        (lambda goal: [train(goal), train(goal)], r"were taken before; make a new one with rank.goal\(...\)"),
        (lambda goal: [goal.check(0.9) for _ in goal.steps(samples_per_step=1)], "wanted evaluate to be a function"),
        (lambda goal: list(goal.steps(samples_per_step=1)), "the loop never called goal.check"),
    ],
)
def test_a_goal_used_otherwise_or_a_step_without_its_numbers_is_refused(
    use: Callable[[Goal], object], message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        use(make_goal())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"curve_steps": 0}, "curve_steps=0; wanted a whole number of at least 1"),
        ({"evaluation_samples": 0}, r"evaluation_samples=.*; wanted a whole number"),
        ({"better": "floor"}, "better='floor'; wanted one of higher, lower"),
        ({"min_steps": -1}, r"min_steps=.*; wanted a whole number"),
    ],
)
def test_numbers_that_make_no_training_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        make_rank().goal("accuracy", **{"target": 1, "every": 1, "max_steps": 2, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("every", "met_at"), [(1, 3), (2, 2), (3, 1)])
def test_the_time_to_the_target_is_the_end_of_the_evaluation_that_met_it(
    monkeypatch: pytest.MonkeyPatch, every: int, met_at: int
) -> None:
    """Each step takes a second of simulated time."""
    rank = make_rank()
    now = [10.0]
    monkeypatch.setattr(rank, "own_clock", lambda: now[0])
    goal = rank.goal("accuracy", target=0.5, every=every, max_steps=6, curve_steps=1, min_steps=6)
    values = iter([0.0] * (met_at - 1) + [0.9] * 6)
    for _ in goal.steps(samples_per_step=1):
        now[0] += 1.0
        goal.check(lambda: next(values))
    found = {o.name: o.values for o in rank.notebook.observations}

    assert found["evaluation_ends"] == pytest.approx([float(step) for step in range(every, 7, every)], abs=0.1)
    assert found["time_to_accuracy"] == [found["evaluation_ends"][met_at - 1]]


@pytest.mark.parametrize(
    "loss",
    [2, 2.0, numpy.float32(2), torch.tensor(2.0), torch.tensor([2.0], requires_grad=True), torch.tensor([[2]])],
    ids=repr,
)
def test_a_loss_is_a_number_or_a_tensor_of_one_element(loss: object) -> None:
    rank = make_rank()
    train(make_goal(rank), loss=loss)

    assert [o.values for o in rank.notebook.observations if o.name == "loss"] == [[2.0, 2.0]]


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
    file = BaselineFile(schema=SCHEMA, platform="p", test="t", key="k", entry=make_baseline(case, [launch] * 2, {}))
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
    assert all(re.fullmatch(r"rank\.record at test_notebook\.py:\d+", bound.where) for bound in noted.bounds)

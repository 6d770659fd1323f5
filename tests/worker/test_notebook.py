"""What a body gives to rank.*: numbers, each metric once, and a training's goal; or it is told otherwise by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import msgspec
import numpy
import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.reduce import merge, recorded
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.metric import Bound
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
def test_the_kind_says_how_ranks_are_reduced_unless_told(better: str, reduce: str) -> None:
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
        (0.0, {"unit": "s", "better": "lower", "witnesses": {"cpu_s": [0.1]}}),
    ],
)
def test_what_is_not_judged_and_what_a_clock_of_ours_says_is_noted(value: object, options: dict[str, Any]) -> None:
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

    with pytest.raises(RecordingError, match=r"call: x=0; wanted a whole number of at least 1 and at most 9"):
        module.check_whole("call", "x", 0, least=1)
    with pytest.raises(RecordingError, match=r"call: name='a\[b'; wanted printable text without \[ \], not empty"):
        module.check_name("call", "name", "a[b")
    with pytest.raises(RecordingError, match="call: the plugin itself records a metric of that name; choose"):
        module.check_metric("call", "wall_time")

    assert module.check_point("call", {"a": "x" * 100}) == {"a": "x" * 100}
    with pytest.raises(RecordingError, match=r"call: at\['a'\]='xxx.*; wanted printable text of at most 100"):
        module.check_point("call", {"a": "x" * 101})

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
    """As one whose device still computes it: whoever reads it would wait."""

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
    """Each step takes a second, by a clock that is made up."""
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

"""Checks of what bodies give: numbers of numpy and torch are numbers, True and text are none."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.notebook import (
    check_metric,
    check_name,
    check_number,
    check_point,
    check_scalars,
    check_several,
    check_unread,
    check_values,
    check_whole,
)


def test_numbers_of_other_libraries_are_numbers_and_errors_name_the_call() -> None:
    numbers = [3, 3.0, numpy.int64(3), numpy.float32(3), torch.tensor(3), Fraction(3), Decimal(3)]
    for value in (*numbers, torch.tensor([3.0], requires_grad=True)):
        assert check_number("call", "x", value) == 3.0

    texts = (None, True, numpy.bool_(1), "3", b"3", [3])
    tensors = (torch.tensor([1, 2]), torch.tensor(True), torch.tensor(1j), torch.empty(1, device="meta"))
    numbers = (3j, numpy.complex64(3), math.nan, math.inf, 10**400, 1e301, Decimal("sNaN"))
    for value in (*texts, *tensors, *numbers):
        with pytest.raises(RecordingError, match=r"call: x=.*; wanted a finite number"):
            check_number("call", "x", value)

    for refused, told in (
        (lambda: check_whole("call", "x", 0, least=1), r"call: x=0; wanted a whole number of at least 1 and at most 9"),
        (
            lambda: check_name("call", "name", "a[b"),
            r"call: name='a\[b'; wanted printable text without \[ \], not empty",
        ),
        (lambda: check_metric("call", "wall_time"), "call: the plugin itself records something of that name; give it"),
    ):
        with pytest.raises(RecordingError, match=told):
            refused()

    assert check_point("call", {"a": "x" * 100}) == {"a": "x" * 100}
    with pytest.raises(RecordingError, match=r"call: at\['a'\]='xxx.*; wanted printable text of at most 100"):
        check_point("call", {"a": "x" * 101})

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
    ("value", "message"),
    [
        ([], "the series is empty: nothing was measured"),
        ([1.0, None], "element 1 of the series=None; wanted a finite number"),
        ([1.0, math.nan], "element 1 of the series=nan; wanted a finite number"),
        (numpy.ones((2, 2)), r"a series of numbers, found an array of shape \[2, 2\]"),
        (torch.ones(2, device="meta"), r"a series of numbers, found an array of shape \[2\]"),
        ("fast", "a series of numbers, found 'fast'"),
        ({"a": 1}, "a series of numbers, found {'a': 1}"),
    ],
)
def test_what_is_neither_is_refused_with_its_place(value: object, message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        check_values("call", value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], r"wanted at to be a mapping of names to numbers and texts, found \[1\]"),
        ({1: 1}, r"a name in at=1; wanted printable text without \[ \] = ,, not empty"),
        ({"a=b": 1}, "a name in at="),
        ({"": 1}, "a name in at="),
        ({"a": [1]}, r"at\['a'\]=\[1\]; wanted True, False, printable text, or a number: "),
        ({"a": math.inf}, r"at\['a'\]"),
        ({"a": 2**60}, r"at\['a'\]"),
        ({"a": None}, r"at\['a'\]"),
        ({"a": "\ud800"}, r"at\['a'\]"),
    ],
)
def test_a_point_that_no_file_could_hold_is_refused(value: object, message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        check_scalars("call", "at", value)


@pytest.mark.parametrize(
    "value",
    [[1, 2.0], (1, 2), numpy.array([1, 2]), torch.tensor([1.0, 2.0]), iter([1, 2]), [torch.tensor(1), numpy.int8(2)]],
)
def test_several_numbers_may_come_in_any_list_or_array(value: object) -> None:
    assert check_several("call", value) == [1.0, 2.0]


@pytest.mark.parametrize(
    "value",
    [
        3, None, {1: 2}, [], "12", {1, 2}, [1, None], [[1]], torch.tensor(1.0), torch.ones(2, 2), numpy.ones(0),
        torch.empty(2, device="meta"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_list_of_numbers_is_refused(value: object) -> None:
    with pytest.raises(RecordingError, match=r"call: wanted a list of numbers, not empty, found "):
        check_several("call", value)


class _Unread(torch.Tensor):
    """As one whose device still computes it: whoever reads it would wait."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func not in (torch.Tensor.__float__, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(
    "value",
    ["x", None, [1], 1j, True, torch.ones(3), torch.ones(0), torch.tensor(1j), torch.tensor(True),
     torch.empty(1, device="meta")],
    ids=repr,
)  # fmt: skip
def test_what_can_be_no_number_is_refused_before_it_is_read(value: object) -> None:
    with pytest.raises(RecordingError, match=r"call: wanted loss to be a number or a tensor of one element, found "):
        check_unread("call", "loss", value)

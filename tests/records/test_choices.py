"""What a user may choose, and what an argument has to be: the check and the words of its error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.wanted import (
    FRACTION,
    NAMED,
    TOLERANCE,
    YES_OR_NO,
    Wanted,
    number,
    one_of,
    seconds,
    text,
    whole,
)

NO_NUMBERS = [None, True, numpy.bool_(1), torch.tensor(True), "3", b"3", [3], object(), math.nan, math.inf, 10**400]
A_FRACTION = "a fraction from 0 to 5, such as 0.05 or 5%"
NO_SHARES = [value for value in NO_NUMBERS if value != "3"]


@pytest.mark.parametrize(
    ("wanted", "taken", "refused", "words"),
    [
        (
            whole(1, 9),
            [1, 9, numpy.int64(3), torch.tensor(3)],
            [*NO_NUMBERS, 0, 10, 2.0, numpy.float64(2)],
            "a whole number of at least 1 and at most 9",
        ),
        (whole(1).plain(), [1, 2], [numpy.int64(1)], "a whole number of at least 1 and at most 9007199254740992"),
        (
            number(above=0, most=5),
            [1e-9, 5, numpy.float32(3), torch.tensor(3.0), Fraction(3), Decimal(3)],
            [*NO_NUMBERS, 0, -1, 5.1],
            "a finite number above 0, at most 5",
        ),
        (number(), [-3, 1e300], NO_NUMBERS, "a finite number"),
        (seconds(above=0), [0.1, 604800], [*NO_NUMBERS, 0, 604801], "seconds, above 0 and at most 604800"),
        (FRACTION, [0, 0.5, 5], [*NO_SHARES, -0.1, 10, "-1%", "501%", "10 m"], A_FRACTION),
        (
            TOLERANCE,
            [0.1, {"step": 0.1}],
            [*NO_SHARES, {}, {"step": "x"}, {" ": 0.1}, {3: 0.1}, {"a": 0.1, "b": 10}],
            f"{A_FRACTION}, or one per metric name",
        ),
        (
            text(without="[]", longest=5),
            ["a", "a b"],
            ["", " ", "a[b", "a\nb", "\ud800", "x" * 6, 3, None, ["a"]],
            "printable text without [ ] of at most 5 characters, not empty",
        ),
        (text(may_be_empty=True), ["", "a"], [" ", 3], "printable text"),
        (one_of(["a", "b"]), ["a"], ["c", "", ["a"], None], "one of a, b"),
        (YES_OR_NO, [True, False], [1, 0, "yes", None, numpy.bool_(1)], "True or False"),
        (NAMED, [{}, {"a": 1}], [{1: 2}, [], None, "a"], "a dict whose keys are text"),
    ],
)
def test_what_is_not_wanted_is_refused_with_name_value_and_words(
    wanted: Wanted[Any], taken: Sequence[object], refused: Sequence[object], words: str
) -> None:
    assert wanted.words == words
    for value in taken:
        assert wanted("x", value) == value
    for value in refused:
        with pytest.raises(ConfigurationError, match=r"^x=.*; wanted") as raised:
            wanted("x", value)
        assert str(raised.value).endswith(words)


def test_numbers_of_other_libraries_become_python_s() -> None:
    assert [type(whole(1)("x", v)) for v in (numpy.int64(3), torch.tensor(3))] == [int, int]
    assert [type(number()("x", v)) for v in (numpy.float32(3), torch.tensor(3.0), Fraction(3))] == [float] * 3


@pytest.mark.parametrize(("given", "share"), [(0.1, 0.1), ("0.1", 0.1), ("10%", 0.1), ("10 %", 0.1), ("0%", 0.0)])
def test_a_fraction_may_be_given_in_per_cent(given: object, share: float) -> None:
    assert FRACTION("tolerance", given) == share
    assert TOLERANCE("tolerance", {"step": given}) == {"step": share}

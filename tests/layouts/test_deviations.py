"""How far a layout's training may be from the one on a single rank, and that nobody chooses a tolerance."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from pytest_distbench import layouts
from pytest_distbench.layouts.deviations import GRADIENT, LOSS, STATE, Quantity, first_beyond, limits_of, times_beyond

FIRST, SECOND = Quantity(1, GRADIENT, "a"), Quantity(2, GRADIENT, "a")


ONE, TWO = Quantity(1, LOSS), Quantity(2, LOSS)


@pytest.mark.parametrize(
    ("controls", "limits"),
    [
        ([{FIRST: 1.0, SECOND: 2.0}, {FIRST: 4.0, SECOND: 2.0}], {FIRST: 6.0 * 2, SECOND: 6.0 * 2}),
        ([{FIRST: 0.0}, {FIRST: 3.0}], {FIRST: 3.0}),  # one that is exact makes no limit infinite
        ([{FIRST: 0.0}, {FIRST: 0.0}], {FIRST: 0.0}),
        ([{ONE: 0.0, TWO: 2.0}, {ONE: 2.0, TWO: 1.0}], {ONE: 4.0, TWO: 4.0}),
    ],
)
def test_a_limit_is_the_sum_of_all_controls_times_how_far_they_are_apart(
    controls: list[dict[Quantity, float]], limits: dict[Quantity, float]
) -> None:
    """The largest of all steps counts."""
    assert limits_of(controls) == limits


def test_the_first_step_and_part_is_named_and_of_it_what_is_furthest_beyond() -> None:
    far, near = Quantity(1, GRADIENT, "far"), Quantity(1, GRADIENT, "near")
    later, state = Quantity(2, LOSS), Quantity(1, STATE, "far")
    limits = dict.fromkeys([far, near, later, state], 1.0)

    assert first_beyond({later: 9.0, state: 8.0, near: 1.5, far: 3.0}, limits) == far
    assert first_beyond({later: 9.0, state: 8.0, near: 1.0, far: 1.0}, limits) == state
    assert first_beyond(dict.fromkeys(limits, 1.0), limits) is None


@pytest.mark.parametrize(
    ("deviation", "limit", "times"),
    [(3.0, 2.0, 1.5), (0.0, 0.0, 0.0), (1e-9, 0.0, math.inf), (math.nan, 1.0, math.inf), (math.inf, 1.0, math.inf)],
)
def test_what_is_no_number_is_beyond_every_limit(deviation: float, limit: float, times: float) -> None:
    assert times_beyond(deviation, limit) == times
    assert (first_beyond({FIRST: deviation}, {FIRST: limit}) is None) == (times <= 1)


HARMLESS = {0.0, 1.0, 2.0}
"""Zero and one; and the base of the scale of a loss in float16."""
TRAININGS = {"models.py", "from_transformers.py"}  # which have rates, and how far apart experts are


def test_no_file_of_the_extension_has_a_tolerance() -> None:
    found = [
        (path.name, node.lineno, node.value)
        for path in Path(layouts.__file__).parent.glob("*.py")
        if path.name not in TRAININGS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value not in HARMLESS
    ]

    assert found == []

"""What is said of the first thing that deviates."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.ranks import make_rank

from pytest_distbench.layouts.compare import LayoutComparison
from pytest_distbench.layouts.deviations import GRADIENT, LOSS, STATE, WEIGHTS, Quantity
from pytest_distbench.layouts.reference import MISSING, NOT_FINITE, Seen
from pytest_distbench.records.metric import SAID

EQUAL = Seen(0.0, 1.0, 0.0)
NONE = Seen(0.0, 0.0, 0.0)  # this rank has not seen it


def quantities(step: int) -> list[Quantity]:
    named = [Quantity(step, part, name) for part in (WEIGHTS, GRADIENT, STATE) for name in ("a", "b")]
    return sorted([*named, Quantity(step, LOSS)])


def texts(*ranks: Mapping[Quantity, Seen], dtypes: Mapping[str, set[str]] | None = None) -> dict[str, str]:
    """Text about each metric, or "" within its bound."""
    all_of = [*quantities(1), *quantities(2)]
    rank = make_rank()
    seen = [{q: s for q, s in (dict.fromkeys(all_of, EQUAL) | dict(one)).items() if s is not NONE} for one in ranks]
    LayoutComparison(limits=dict.fromkeys(all_of, 0.1), seen=seen, dtypes=dtypes or {}).record(rank)
    return {each.name: str(each.facts.get(SAID, "")) for each in rank.notebook.observations}


A = Quantity(1, GRADIENT, "a")
B = Quantity(1, GRADIENT, "b")


OFF = Seen(1.0, 0.5, 0.9)
DOUBLE, ZERO = Seen(1.0, 2.0, 0.0), Seen(1.0, 0.0, 1.0)
OTHER, ANOTHER = Seen(1.0, 1.5, 0.9), Seen(1.0, 0.5, 0.9)
OF_A, FIRST = "the gradient of a in step 1", "deviates first"
ON_1 = f"{FIRST} on rank 1 alone"
FORWARD, BACKWARD = "check the forward pass", "check the backward pass"
UPDATED = f"b after the update of step 2 {FIRST}: its gradient is right, so check clipping, the optimizer and its "
SCALED = f"{OF_A} {FIRST}, with 1 other of 2: 2 times that of one rank, so check the reduction, the weight of the "


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        ([{Quantity(1, WEIGHTS, "a"): OFF}, {}], f"a before step 1 {FIRST} on rank 0 alone: check the initialisation"),
        ([{Quantity(2, WEIGHTS, "a"): OFF}], "a before step 2 deviates first: check what was saved and loaded"),
        (
            [{Quantity(2, LOSS): DOUBLE}],
            f"the loss of step 2 {FIRST}: it is 2 times that of one rank, so {FORWARD}, its ",
        ),
        ([{Quantity(2, STATE, "b"): OFF}], f"{UPDATED}schedule, and whether they were saved and loaded"),
        ([{A: DOUBLE, B: DOUBLE}] * 2, f"{SCALED}loss, and clipping"),
        ([{A: ZERO}], f"{OF_A} deviates first: it is 0, so check the backward pass, and whether it was cleared before"),
        ([{A: OTHER}, {A: ANOTHER}], f"{OF_A} deviates first: ranks hold different gradients, so it was not reduced"),
        ([{A: EQUAL}, {A: OTHER}], f"{OF_A} {ON_1}: other ranks hold the right one, so check what "),
        ([{A: MISSING}], f"{OF_A} is missing"),
        ([{}, {A: NOT_FINITE}], f"{OF_A} {ON_1}: it is not finite"),
        ([{A: OTHER}, {A: NONE}], f"{OF_A} {FIRST}: rank 1 has none, so check what is frozen there, and the reduction"),
        ([{A: OTHER}] * 2, f"{OF_A} {FIRST}: ranks hold the same gradients, so {BACKWARD} and what was reduced"),
    ],
)
def test_the_sentence_names_what_is_at_fault(ranks: list[dict[Quantity, Seen]], sentence: str) -> None:
    found = texts(*ranks)

    [text] = filter(None, found.values())
    assert text.startswith(sentence)


def test_deviations_that_follow_from_the_first_one_are_not_explained() -> None:
    found = texts(
        {A: Seen(1.0, 1.5, 0.9), Quantity(1, STATE, "a"): Seen(9.0, 9.0, 9.0), Quantity(2, LOSS): Seen(9.0, 1.0, 9.0)}
    )

    assert [name for name, text in found.items() if text] == ["gradient_deviation"]
    assert set(found) == {"loss_deviation", "gradient_deviation", "state_deviation"}


def test_dtypes_of_16_bits_are_named_with_a_deviation() -> None:
    dtypes = {"parameters": {"float32"}, "gradients": {"bfloat16"}, "what a step sends": {"float32", "bfloat16"}}
    found = texts({A: OTHER}, dtypes=dtypes)

    assert found["gradient_deviation"].endswith("; gradients in bfloat16; what a step sends in bfloat16")


def test_a_quantity_that_no_rank_has_is_reported_as_missing() -> None:
    rank = make_rank()
    LayoutComparison(limits={A: 0.1, Quantity(1, LOSS): 0.1}, seen=[{Quantity(1, LOSS): EQUAL}], dtypes={}).record(rank)
    [gradient] = [each for each in rank.notebook.observations if each.name == "gradient_deviation"]

    assert gradient.facts[SAID] == "the gradient of a in step 1 is missing"
    assert gradient.value is None

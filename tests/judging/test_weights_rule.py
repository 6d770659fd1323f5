"""Weights and saved tensors against a baseline's, case by case."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from support.metrics import metric

from pytest_distbench.judging import weights_rule
from pytest_distbench.judging.entry import stored_samples
from pytest_distbench.judging.training_rule import CurveSays, Family, judge_family
from pytest_distbench.judging.weights_rule import accepted_share, changes, changes_of_saved, option_changes
from pytest_distbench.records.metric import SAVED, WEIGHTS, Sample
from pytest_distbench.records.run import Finding
from pytest_distbench.records.trained import TensorState
from pytest_distbench.worker.tensors import sketch, state_of, state_of_number

Named = Mapping[str, torch.Tensor]

FIRST = {name: torch.randn(64, generator=torch.Generator().manual_seed(i)) for i, name in enumerate(("a", "b", "c"))}
MOVE = {name: torch.randn(64, generator=torch.Generator().manual_seed(9 + i)) for i, name in enumerate(FIRST)}
WEIGHTS_THEN = {name: tensor + MOVE[name] for name, tensor in FIRST.items()}


def states(named: Named) -> dict[str, TensorState]:
    found = {}
    for name, tensor in named.items():
        first = sketch(FIRST[name]) if name in FIRST else None
        state = state_of(tensor, first=first)
        assert state is not None
        found[name] = state
    return found


def sample(named: Named, *, updates: int = 5, name: str = WEIGHTS, ranks: str = "all", **fields: object) -> Sample:
    tensors = {ranks: states(named)}
    made = {"name": name, "unit": "", "better": "weights", "value": 1.0, "identity": {"updates": updates}}
    return Sample(**(made | {"tensors": tensors} | fields))  # type: ignore[arg-type]


def judged(now: Sample, *then: Sample, **changes: object) -> Finding:
    stored = stored_samples(then or [sample(WEIGHTS_THEN)])
    usual: dict[str, object] = {"same_software": True, "is_exact": True}
    return judge_family(Family(current={WEIGHTS: [now]}, stored={WEIGHTS: stored}, **(usual | changes)))  # type: ignore[arg-type]


FAULTS = {
    "a sign": ({"b": -WEIGHTS_THEN["b"]}, "b is -1 times the baseline's"),
    "a factor": ({"b": 1.01 * WEIGHTS_THEN["b"]}, "b is 1.01 times the baseline's"),
    "an order": ({"b": WEIGHTS_THEN["b"].roll(1)}, "b has the same norm"),
    "two layers exchanged": ({"a": WEIGHTS_THEN["b"], "b": WEIGHTS_THEN["a"]}, "b holds what a held"),
    "one element": ({"b": WEIGHTS_THEN["b"].index_fill(0, torch.tensor(3), 0.0)}, "b differs by about"),
    "a shape": ({"b": WEIGHTS_THEN["b"].view(8, 8)}, "b was float32 64, is float32 8x8"),
    "a dtype": ({"b": WEIGHTS_THEN["b"].half()}, "b was float32 64, is float16 64"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("curve", ["nothing", "equal", "other digits"])
def test_one_that_differs_among_others_that_are_equal_is_no_rounding(fault: str, curve: CurveSays) -> None:
    changed, told = FAULTS[fault]
    finding = judged(sample({**WEIGHTS_THEN, **changed}), curve=curve, loss_share=0.0)

    assert finding.code == "weights"
    is_most = len(changed) > 1
    begin = "" if is_most else "the training is the same, its weights at the end are not: "
    assert finding.reason.startswith(begin + told)


@pytest.mark.parametrize("curve", ["nothing", "equal", "other digits", "diverges"])
@pytest.mark.parametrize("same_software", [True, False])
def test_equal_digits_acquit_whatever_the_curve_says(curve: CurveSays, same_software: bool) -> None:
    assert judged(sample(WEIGHTS_THEN), curve=curve, same_software=same_software).code == "equal"


@pytest.mark.parametrize(
    ("share", "loss_share", "is_exact", "code"),
    [
        (1e-4, 1e-7, True, "numerics"),
        (0.03, 1e-7, True, "weights"),
        (0.03, 0.01, True, "numerics"),  # the losses have left by as much: rounding that has grown
        (0.1, 1e-7, False, "numerics"),  # gradients in bfloat16
        (1.5, 0.01, False, "weights"),
        (0.1, None, True, "numerics"),
        (1.5, None, True, "weights"),
        (2.5, 1e-7, True, "weights"),
    ],
)
def test_other_digits_within_rounding_are_numerics(
    share: float, loss_share: float | None, is_exact: bool, code: str
) -> None:
    other = {name: tensor + share * MOVE[name].flip(0) for name, tensor in WEIGHTS_THEN.items()}
    finding = judged(sample(other), curve="other digits", loss_share=loss_share, is_exact=is_exact)

    assert finding.code == code
    assert finding.threshold == accepted_share(is_exact=is_exact, loss_share=loss_share)
    assert "3 of 3 tensors differ" in finding.reason


@pytest.mark.parametrize("curve", ["other digits", "diverges"])
@pytest.mark.parametrize("fault", ["a shape", "a dtype"])
def test_no_rounding_and_no_diverged_curve_explains_another_form(fault: str, curve: CurveSays) -> None:
    changed, expected = FAULTS[fault]
    others = {name: tensor + 1e-4 * MOVE[name].flip(0) for name, tensor in WEIGHTS_THEN.items()}
    finding = judged(sample({**others, **changed}), curve=curve, loss_share=1e-7)

    assert (finding.code, finding.reason) == ("weights", f"{expected}; 3 of 3 tensors differ")


def test_a_few_without_a_gradient_may_go_their_own_way() -> None:
    """A bias in front of a batch norm, which Adam moves by noise; a large one is no such tensor."""
    then, now = states({**WEIGHTS_THEN}), states({n: t + 1e-4 * MOVE[n].flip(0) for n, t in WEIGHTS_THEN.items()})
    small = [TensorState("float32 2", digest, norm, norm, 0.0, 0.1) for digest, norm in (("x", 0.5), ("y", 0.65))]
    sides = [sample({}, tensors={"all": {**side, "bias": one}}) for side, one in zip((then, now), small, strict=True)]
    large = [TensorState("float32 2", digest, norm, norm, 0.0, 9.0) for digest, norm in (("x", 9.0), ("y", 18.0))]
    others = [sample({}, tensors={"all": {**side, "bias": one}}) for side, one in zip((then, now), large, strict=True)]

    assert judged(sides[1], sides[0], curve="other digits", loss_share=1e-7).code == "numerics"
    assert judged(others[1], others[0], curve="other digits", loss_share=1e-7).code == "weights"


def test_the_last_digits_of_one_are_rounding_though_the_others_are_equal() -> None:
    other = {**WEIGHTS_THEN, "b": WEIGHTS_THEN["b"] * (1 + 1e-6)}

    assert judged(sample(other), curve="equal", loss_share=0.0).code == "numerics"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if len(FAULTS[fault][0]) == 1])
def test_under_other_software_one_decides_where_most_are_equal_in_every_digit(fault: str) -> None:
    finding = judged(sample({**WEIGHTS_THEN, **FAULTS[fault][0]}), curve="equal", loss_share=0.0, same_software=False)
    is_other_form = fault in ("a shape", "a dtype")  # which a release may choose

    assert finding.code == ("other-software" if is_other_form else "weights")


def test_under_other_software_a_tensor_more_does_not_hide_one_that_differs() -> None:
    then = {**WEIGHTS_THEN, "b": -WEIGHTS_THEN["b"], "buffer": WEIGHTS_THEN["a"] + 1}
    finding = judged(sample(then), curve="equal", same_software=False)

    assert finding.code == "weights"
    assert "its weights at the end are not: b is" in finding.reason


def test_under_other_software_other_digits_of_all_say_nothing() -> None:
    other = {name: tensor * 1.01 for name, tensor in WEIGHTS_THEN.items()}

    assert judged(sample(other), curve="other digits", same_software=False).code == "other-software"


def test_another_number_of_updates_is_not_compared() -> None:
    finding = judged(sample({"a": FIRST["a"]}, updates=6))

    assert (finding.code, finding.reason) == ("other-definition", "updates was 5, now 6")


def test_what_the_baselines_launches_differ_by_is_accepted_four_times() -> None:
    noise = [{n: t + 0.02 * k * MOVE[n] for n, t in WEIGHTS_THEN.items()} for k in (0, 1, -1)]
    then = [sample(one) for one in noise]

    assert judged(sample({n: t + 0.05 * MOVE[n] for n, t in WEIGHTS_THEN.items()}), *then).code == "equal"
    assert judged(sample({n: t + 0.6 * MOVE[n] for n, t in WEIGHTS_THEN.items()}), *then).code == "weights"
    assert stored_samples(then)[0].tensors["all"]["a"].digest == ""


def test_trainings_that_are_not_seeded_are_not_judged() -> None:
    then = [
        sample({n: torch.randn(64, generator=torch.Generator().manual_seed(50 + k)) for n in FIRST}) for k in range(5)
    ]
    now = sample({n: torch.randn(64, generator=torch.Generator().manual_seed(99)) for n in FIRST})

    assert judged(now, *then).code == "not-judged"


def test_another_name_for_the_same_is_no_change_and_one_that_is_gone_is() -> None:
    then = {"all": states(WEIGHTS_THEN)}
    assert changes(then, {"all": {f"net.{name}": state for name, state in then["all"].items()}}) == []
    [gone] = changes(then, {"all": {n: s for n, s in then["all"].items() if n != "b"}})
    assert (gone.name, gone.text) == ("b", "is gone")
    [new] = changes(then, {"all": {**then["all"], "d": then["all"]["a"]}})
    assert (new.name, new.text) == ("d", "is new")


def test_one_that_has_another_name_and_other_digits_is_compared_with_the_nearest() -> None:
    then = {"all": states(WEIGHTS_THEN)}
    now = states({**WEIGHTS_THEN, "b": -WEIGHTS_THEN["b"], "c": WEIGHTS_THEN["c"] + 1e-3 * MOVE["c"]})
    found = changes(then, {"all": {f"net.{name}": state for name, state in now.items()}}, share=0.01)

    assert [(change.name, change.excess > 1.0) for change in found] == [("b", True), ("c", False)]


def test_the_state_of_a_weight_without_a_gradient_is_rounding_next_to_others() -> None:
    """Adam's average of the gradient of a key's bias: 5e-11, where others are 1e-3."""
    usual = TensorState("float32 4", "x", 1e-3)
    tiny = [TensorState("float32 4", digest, norm) for digest, norm in (("y", 5e-11), ("z", 3e-11))]
    sides = [{"0": {"m.pt: a.exp_avg": usual, "m.pt: b.exp_avg": one}} for one in tiny]
    [change] = changes_of_saved(*sides, share=0.01, launches=3)

    assert change.excess < 1.0


def test_ranks_that_held_the_same_and_do_not_any_more_are_named() -> None:
    then, now = states(WEIGHTS_THEN), states({**WEIGHTS_THEN, "b": -WEIGHTS_THEN["b"]})
    found = changes(
        {"all": then}, {"all": {"a": then["a"], "c": then["c"]}, "0,2-3": {"b": then["b"]}, "1": {"b": now["b"]}}
    )

    [told] = [f"{change.name} {change.text}" for change in found]
    assert told == "b of rank 1 is not that of rank 0,2-3; the baseline's ranks held the same"


def test_of_ranks_that_differed_already_each_is_compared() -> None:
    then, now = states(WEIGHTS_THEN), states({"b": -WEIGHTS_THEN["b"]})
    before = {"0": {"b": then["b"]}, "1": {"b": then["a"]}}

    assert changes(before, before) == []
    [change] = changes(before, {"0": {"b": then["b"]}, "1": {"b": now["b"]}})
    assert change.who == " of rank 1"


def saved(named: Named, *, updates: int = 5, **numbers: float) -> dict[str, dict[str, TensorState]]:
    entries = {f"m.pt: {name}": state for name, state in states(named).items()}
    entries |= {f"m.pt: {name}": state_of_number(value) for name, value in {"updates": updates, **numbers}.items()}
    return {"0": entries}


@pytest.mark.parametrize(
    ("now", "launches", "told"),
    [
        (saved(WEIGHTS_THEN, epoch=3), 3, []),
        (saved(WEIGHTS_THEN, epoch=4), 3, ["m.pt: epoch 3 -> 4"]),
        (saved({**WEIGHTS_THEN, "a": 100 * WEIGHTS_THEN["a"]}, epoch=3), 2, ["m.pt: a is 100 times the baseline's"]),
        (saved({"b": WEIGHTS_THEN["b"], "c": WEIGHTS_THEN["c"]}, epoch=3), 3, ["m.pt: a is gone"]),
        (saved({"b": WEIGHTS_THEN["b"], "c": WEIGHTS_THEN["c"]}, epoch=3), 2, []),
        ({"0": {"other.pt: a": state_of_number(1)}}, 3, ["m.pt is not saved any more"]),
        ({"0": {"other.pt: a": state_of_number(1)}}, 2, []),
        (saved({**WEIGHTS_THEN, "a": FIRST["a"]}, epoch=3, updates=4), 3, []),  # saved at another moment
        (saved({**WEIGHTS_THEN, "more": FIRST["a"]}, epoch=3), 3, []),
    ],
)
def test_a_saved_file_is_compared_as_far_as_it_repeats(
    now: Mapping[str, Mapping[str, TensorState]], launches: int, told: list[str]
) -> None:
    found = changes_of_saved(saved(WEIGHTS_THEN, epoch=3), now, share=0.01, launches=launches)

    assert [f"{change.name} {change.text}" for change in found] == told


def test_the_same_training_that_saves_at_another_moment_is_changed() -> None:
    then, now = saved(WEIGHTS_THEN), saved({**WEIGHTS_THEN, "a": FIRST["a"]}, updates=4)

    assert changes_of_saved(then, now, share=0.01, launches=3) == []
    found = changes_of_saved(then, now, share=0.01, launches=3, ends_alike=True)
    assert {f"{change.name} {change.text}" for change in found} >= {"m.pt: updates 5 -> 4"}


def test_a_number_that_was_saved_is_judged_where_the_arithmetic_is_the_same() -> None:
    other = {name: tensor + 1e-4 * MOVE[name].flip(0) for name, tensor in WEIGHTS_THEN.items()}
    then = [sample({}, name=SAVED, tensors=saved(WEIGHTS_THEN, wrong=8))] * 3
    found = {
        code: judged(sample({}, name=SAVED, tensors=saved(named, wrong=7, fused=1)), *then, loss_share=1e-7).code
        for code, named in (("weights", WEIGHTS_THEN), ("numerics", other))
    }
    assert found == {"weights": "weights", "numerics": "numerics"}


def test_numbers_and_names_that_do_not_repeat_are_not_stored() -> None:
    found = ({"m.pt: time": state_of_number(t), f"{t}.pt: x": state_of_number(1)} for t in (17.0, 18.0))
    launches = [sample({}, name=SAVED, tensors={"0": one}) for one in found]
    assert weights_rule.stored_tensors(launches) == {}


def test_options_are_compared_but_for_how_they_are_computed() -> None:
    then = {"all": {"AdamW: weight_decay": 0.1, "AdamW: fused": "none", "AdamW: lr": 0.5, "AdamW: old": 1}}
    now = {
        "0": {"AdamW: weight_decay": 0.0, "AdamW: fused": True, "AdamW: lr": 0.5, "AdamW: new": 1},
        "1": {"AdamW: weight_decay": 0.0, "AdamW: fused": True, "AdamW: lr": 0.25},
    }
    assert option_changes(then, then) == []
    assert option_changes(then, now) == ["AdamW: weight_decay 0.1 -> 0 on rank 0, 1", "AdamW: lr 0.5 -> 0.25 on rank 1"]
    now = sample(WEIGHTS_THEN, updates=6, options={"all": {"AdamW: lr": 0.25}})
    finding = judged(now, sample(WEIGHTS_THEN, options=then), same_software=False)
    assert (finding.code, finding.reason) == ("options", "AdamW: lr 0.5 -> 0.25")


def test_without_a_baseline_weights_are_shown_and_nothing_is_asked() -> None:
    finding = judge_family(Family(current={WEIGHTS: [sample(WEIGHTS_THEN)]}, stored={}, same_software=True))

    assert (finding.code, finding.is_judged) == ("not-judged", False)
    other = judge_family(Family(current={"x": [metric(1.0, "same")]}, stored={}, same_software=True))
    assert other.code == "no-baseline"

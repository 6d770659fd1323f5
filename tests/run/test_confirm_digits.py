"""Which revision computes which digits: the candidate, the baseline commit, and what that stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.metrics import passed
from support.stores import CASE, SOFTWARE

from pytest_distbench.judging.case import compare
from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.run.confirm.rule import are_asked_about, confirm_digits

TERMS = Terms(default_tolerance=0.1, max_launches=5, cores=2)
LOSSES = {
    "language model": [10.8214, 10.4631, 9.9127, 9.1748, 8.6302],
    "contrastive": [0.69315, 0.69312, 0.69304, 0.69291, 0.69273],
    "negative": [-1.20417, -1.90311, -2.61258, -3.10402, -3.37815],
}


def launch(losses: Sequence[float], final: float = 4.0, software: dict[str, str] | None = None) -> LaunchRecord:
    measurements = [
        Sample(name="loss", unit="", better="curve", value=losses[-1], values=list(losses)),
        Sample(name="final", unit="", better="same", value=final),
    ]
    return passed(*measurements, software=software or dict(SOFTWARE))


def rounded(losses: Sequence[float], by: float = 1e-7) -> list[float]:
    return [value * (1 + by * (-1) ** i) for i, value in enumerate(losses)]


def other(losses: Sequence[float], share: float = 0.3) -> list[float]:
    """A training whose updates are larger by a share."""
    return [losses[0] + (value - losses[0]) * (1 + share) for value in losses]


def confirmed(
    stored: LaunchRecord, here: LaunchRecord, there: LaunchRecord, *, beside: LaunchRecord | None = None
) -> tuple[dict[str, Finding], dict[str, Finding]]:
    """What the stored comparison says, and what the commit that recorded it makes of that."""
    entry = make_baseline(CASE, [stored, stored], stored.software)
    before = [*compare(TERMS, CASE, [here], entry, comparisons=1)]
    references = [there, beside or there]
    after = confirm_digits(TERMS, CASE, before, [here], references, entry, revision="3f2a91c0d4")
    return {v.metric: v for v in before}, {v.metric: v for v in after}


every = pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)


@every
def test_other_digits_are_the_codes_unless_the_baseline_commit_computes_them_too(losses: list[float]) -> None:
    before, code = confirmed(launch(losses), launch(rounded(losses)), launch(losses))
    _, machine = confirmed(launch(losses), launch(rounded(losses)), launch(rounded(losses)))

    assert [found["loss"].code for found in (before, code, machine)] == ["numerics", "numerics", "numerics-environment"]
    assert code["loss"].reason.endswith("3f2a91c0d4 still computes its own digits here: the code changed them")
    assert "3f2a91c0d4 computes the same here: the environment changed the digits, not" in machine["loss"].reason


@every
def test_another_training_that_the_baseline_commit_computes_too_passes_and_says_so(losses: list[float]) -> None:
    """Its random numbers are those of another torch."""
    changed = launch(other(losses), 5.0)
    before, after = confirmed(launch(losses), changed, changed)

    assert (before["loss"].code, before["final"].code) == ("losses", "training-number")
    assert (after["loss"].kind, after["final"].kind) == ("environment", "environment")
    assert "the environment changed the digits" in after["final"].reason


@every
def test_another_training_than_the_baseline_commit_computes_is_red_whatever_is_stored(losses: list[float]) -> None:
    for there in (launch(losses), launch(other(losses, -0.4), 3.9)):
        before, after = confirmed(launch(losses), launch(other(losses), 5.0), there)

        assert (before["loss"].code, after["loss"].code) == ("losses", "losses")
        assert after["loss"].reason.endswith("compared with what 3f2a91c0d4 computes here")
        assert after["final"].kind == "changed"


@every
def test_a_change_by_environment_and_code_passes_and_names_both(losses: list[float]) -> None:
    changed = other(losses)
    _, after = confirmed(launch(losses), launch(rounded(changed)), launch(changed))

    assert after["loss"].kind == "environment"
    assert "both code and environment changed them" in after["loss"].reason


@every
def test_a_number_of_one_seed_that_other_software_left_open_is_decided(losses: list[float]) -> None:
    newer = {**SOFTWARE, "torch": "9.9"}
    here = launch(rounded(losses), 4.2, newer)
    before, fault = confirmed(launch(losses), here, launch(rounded(losses), 4.0, newer))
    _, healthy = confirmed(launch(losses), here, here)

    assert before["final"].kind == "inconclusive"
    assert (fault["final"].kind, healthy["final"].kind) == ("changed", "environment")


@every
def test_a_baseline_commit_that_does_not_repeat_itself_here_clears_nobody(losses: list[float]) -> None:
    here = launch(other(losses), 5.0)
    before, after = confirmed(launch(losses), here, here, beside=launch(losses))

    assert (before["loss"].code, after["loss"].code) == ("losses", "losses")


def test_ranks_further_apart_than_those_of_the_baseline_commit_are_red_though_their_mean_is_equal() -> None:
    def of(scatter: float) -> LaunchRecord:
        made = launch(LOSSES["negative"])
        loss, final = made.measurements
        return replace(made, measurements=[loss, replace(final, spread=Spread(over_ranks=[scatter]), ranks=2)])

    before, after = confirmed(of(0.1), of(0.9), of(0.1))

    assert (before["final"].code, after["final"].code) == ("ranks-apart", "ranks-apart")


def test_what_is_asked_about() -> None:
    curve = Finding(metric="loss", code="beyond-threshold", unit="", better="curve", baseline=1.0)

    assert are_asked_about(curve)
    assert not are_asked_about(replace(curve, better="exact"))
    assert not are_asked_about(replace(curve, code="not-measured"))
    assert not are_asked_about(replace(curve, code="within-threshold"))
    assert not are_asked_about(replace(curve, baseline=None))

"""Peak memory: a size, which no load of the machine changes."""

from __future__ import annotations

import pytest

from pytest_distbench.judging.entry import stored_metric
from pytest_distbench.judging.metric import Circumstances, judge
from pytest_distbench.judging.pair_rule import PairCircumstances, judge_pairs
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace

MIB = 2**20
STORED = (200.0, 203.0, 198.0)


def memory(mebibytes: float) -> Measurement:
    return Measurement(
        name="peak_memory", unit="B", better="memory", value=mebibytes * MIB, facts={"rank": 1}, identity={}
    )


def ranks(*mebibytes: float) -> Measurement:
    return replace(memory(max(mebibytes)), series=[v * MIB for v in mebibytes])


def kinds(*mebibytes: float, stored: tuple[float, ...] = STORED, most: int = 10) -> tuple[str, bool]:
    rule = Circumstances(tolerance=0.2, comparisons=1, max_launches=most, busier_cores=2.0, cores=2)
    baseline = BaselineMetric(better="memory", unit="B", launches=[v * MIB for v in stored])
    verdict, is_open = judge([memory(v) for v in mebibytes], baseline, rule)
    return verdict.kind, is_open


def test_twice_the_memory_is_red_after_three_launches_however_busy_the_machine_is() -> None:
    assert kinds(400) == ("regressed", True)
    assert kinds(400, 401) == ("regressed", True)
    assert kinds(400, 401, 402) == ("regressed", False)
    assert kinds(400, most=1) == ("regressed", False)


def test_the_message_names_the_rank_that_needs_most() -> None:
    rule = Circumstances(tolerance=0.2, comparisons=1, max_launches=1)
    baseline = BaselineMetric(better="memory", unit="B", launches=[200.0 * MIB])
    verdict = judge([memory(400)], baseline, rule).verdict

    assert verdict.reason == "rank 1 needs most"
    assert verdict.ratio == 2.0
    assert verdict.limit == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("now", "kind"), [(200, "unchanged"), (242, "unchanged"), (245, "regressed"), (165, "unchanged"), (100, "improved")]
)
def test_a_fifth_is_accepted_beyond_what_the_baseline_has_seen(now: float, kind: str) -> None:
    assert kinds(now, now, now)[0] == kind


@pytest.mark.parametrize(("stored", "now", "kind"), [(1, 15, "unchanged"), (0, 16, "unchanged"), (0, 17, "regressed")])
def test_a_few_mebibytes_are_no_change_whatever_share_they_are(stored: float, now: float, kind: str) -> None:
    assert kinds(now, now, now, stored=(stored,) * 3)[0] == kind


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        ((150, 20), "unchanged"),
        ((20, 150), "unchanged"),
        ((150, 150), "regressed"),
        ((150, 30), "unchanged"),
        ((150, 150, 150), "unchanged"),
    ],
)
def test_a_rank_that_needs_less_than_another_is_judged_too(now: tuple[float, ...], kind: str) -> None:
    stored = stored_metric([ranks(150, 20), ranks(19, 149)], tolerance=None)
    verdict = judge([ranks(*now)] * 3, stored, Circumstances(tolerance=0.2, comparisons=1, max_launches=3)).verdict

    assert stored.series == [150 * MIB, 20 * MIB]
    assert verdict.kind == kind
    if kind == "regressed":
        assert verdict.reason == "2 ranks need 150 MiB or more, and 1 did in the baseline"


def test_one_launch_in_three_that_needs_more_is_not_red() -> None:
    assert kinds(400, 200) == ("unchanged", False)
    assert kinds(400, 400, 200) == ("inconclusive", False)


def test_where_the_baseline_has_none_nothing_is_said() -> None:
    """No test asks for it: one of bounds alone has no baseline, and older baselines have no memory."""
    verdict = judge([memory(400)], None, Circumstances(tolerance=0.2, comparisons=1, max_launches=1)).verdict

    assert (verdict.kind, verdict.is_judged) == ("unchanged", False)


def test_beside_another_revision_the_same_holds() -> None:
    rule = PairCircumstances(tolerance=0.05, comparisons=1, looks=(5,))
    same = judge_pairs([(memory(200), memory(215))] * 5, rule).verdict
    doubled = judge_pairs([(memory(200), memory(400))] * 5, rule).verdict
    unknown = judge_pairs([(None, memory(400))] * 5, rule).verdict

    assert (same.kind, doubled.kind) == ("unchanged", "regressed")
    assert not unknown.is_judged

"""What interleaved A/B decides about a suspicious timing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace as replaced

import pytest
from support.stores import CASE, SOFTWARE, entry, launches

from pytest_distbench.judging.case import compare
from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import LOOKS, VETO
from pytest_distbench.judging.training_rule import NOT_REPEATED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.reasons import ReasonCode, VerdictName
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.run.confirm.rule import (
    Evaluated,
    Sides,
    StoredComparison,
    can_be_confirmed,
    confirm,
    crossed,
    not_slower,
    ratios,
    split_change,
    undecided,
)

TERMS = Terms(default_tolerance=0.15, max_launches=10, cores=2)
SLOWER = Finding(
    metric="step", code="beyond-threshold", unit="s", better="lower", current=0.028, baseline=0.02, threshold=0.15
)
EXACT = Finding(metric="sum", code="communication", unit="", better="exact")


def turns(
    slower: float, *, count: int = LOOKS[0], itself: float = 1.0, noise: float = 0.01, moods: float = 0.3, seed: int = 0
) -> Sides:
    """The candidate, so many times as slow as the revision, on a machine whose speed varies for all three sides."""
    rng = random.Random(seed)
    mood = [math.exp(rng.gauss(0, moods)) for _ in range(count)]

    def side(factor: float) -> list[LaunchRecord]:
        return launches(*(factor * m * math.exp(rng.gauss(0, noise)) for m in mood), software=SOFTWARE)

    return side(slower), side(1.0), side(itself)


def confirmed(
    sides: Sides,
    *stored: Finding,
    numbers: Sequence[float] = (0.7, 0.71, 0.7),
    before: Sequence[float] = (),
    evaluated: Evaluated = ((), True),
) -> list[Finding]:
    """A baseline of a machine that was 1.4 times as fast, unless other numbers are stored."""
    baselines = {"baseline": entry(*numbers), "before": entry(*before) if before else None}
    known = StoredComparison(verdicts=stored or [SLOWER], **baselines, tolerances={"step": 0.15, "sum": 0.15})
    return confirm(TERMS, CASE, known, sides, revision="3f2a91c0d4", cases=1, evaluated=lambda: evaluated)


def test_the_revision_decides_whether_it_is_the_code_or_the_machine() -> None:
    [found] = confirmed(turns(1.25))
    assert (found.kind, found.is_open) == ("regressed", False)
    assert found.ratio == pytest.approx(1.25, abs=0.03)
    assert "interleaved A/B with 3f2a91c0d4 (baseline commit): +2" in found.reason
    assert "A/A noise" in found.reason

    [found] = confirmed(turns(1.0, moods=0.01))
    assert (found.kind, found.is_open) == ("environment", False)
    assert found.ratio == pytest.approx(1.41, abs=0.01)  # of the launches that were made for it
    assert "not the code; --distbench-update records new baselines" in found.reason

    for later, kind in ((SLOWER, "environment"), (replace(SLOWER, code="within-threshold"), "unchanged")):
        assert not_slower(SLOWER, later, "the same code").kind == kind
        assert not_slower(EXACT, None, "the same code") == EXACT

    assert [j.kind for j in confirmed(turns(1.0, moods=0.01), SLOWER, EXACT)] == ["environment", "changed"]
    assert not can_be_confirmed([SLOWER, EXACT])
    assert can_be_confirmed([SLOWER, replace(SLOWER, code="within-threshold")])


@pytest.mark.parametrize(
    "numbers", [(0.99, 1.0, 1.01), (0.7, 1.0, 1.3), (0.4, 0.8, 1.6, 0.5)], ids=["within", "noisy", "of two states"]
)
def test_what_further_launches_do_not_show_is_no_shift(numbers: Sequence[float]) -> None:
    [found] = confirmed(turns(1.0, moods=0.01), numbers=numbers)

    assert found.kind == "unchanged"


@pytest.mark.parametrize(
    ("evaluated", "numbers", "kind"),
    [
        ((["conftest.py"], True), (0.5, 0.505, 0.5), "regressed"),
        ((["conftest.py"], True), (0.84, 0.845, 0.84), "inconclusive"),
        ((["settings.py"], False), (0.5, 0.505, 0.5), "inconclusive"),
        ((["conftest.py"], True), (1.0, 1.01, 1.0), "unchanged"),
    ],
    ids=["far beyond", "beyond", "of an imported module", "within"],
)
def test_turns_do_not_clear_what_pytest_evaluates_for_both_sides(
    evaluated: Evaluated, numbers: Sequence[float], kind: VerdictName
) -> None:
    [found] = confirmed(turns(1.0, moods=0.01), numbers=numbers, evaluated=evaluated)

    assert found.kind == kind
    assert (f"{evaluated[0][0]} differs" in found.reason) == (kind != "unchanged")
    three: Evaluated = (["a.py", "b.py", "c.py"], True)
    [found] = confirmed(turns(1.0, moods=0.01), numbers=(0.5, 0.505, 0.5), evaluated=three)
    assert "a.py and 2 more differ from" in found.reason


@pytest.mark.parametrize(
    ("slower", "stored", "kind"),
    [
        (1.9, (1.0, 1.01, 1.0), "regressed"),  # the stored numbers are none of code that is so slow
        (1.5, (1.5, 1.51, 1.5), "unchanged"),  # it was accepted
        (1.9, (1.5, 1.51, 1.5), "regressed"),  # not all of it
        (0.5, (0.5, 0.51, 0.5), "unchanged"),
        (1.0, (0.7, 0.71, 0.7), "environment"),
    ],
)
def test_a_later_baseline_is_judged_with_the_one_before_it(
    slower: float, stored: Sequence[float], kind: VerdictName
) -> None:
    [found] = confirmed(turns(slower, moods=0.01), numbers=stored, before=(1.0, 1.01, 1.0))
    later = StoredComparison(verdicts=[], baseline=entry(3.0, 3.0), before=entry(2.0, 2.0), tolerances={"step": 0.1})

    assert found.kind == kind
    assert later.of_pairs == {"step": pytest.approx(1.5 * 1.1 - 1)}
    assert replaced(later, before=entry(0.0, 2.0)).of_pairs == {"step": pytest.approx(0.1)}


def test_noise_between_equal_launches_vetoes_no_more_than_its_share() -> None:
    [found] = confirmed(turns(1.5, itself=1.25, count=LOOKS[-1]))
    assert found.kind == "inconclusive"
    assert "this machine is too noisy" in found.reason

    [found] = confirmed(turns(1.5, itself=1 + 0.3 / VETO / 2, count=LOOKS[-1]))
    assert found.kind == "regressed"

    [first] = confirmed(turns(1.2, noise=0.4))
    [last] = confirmed(turns(1.15, noise=0.4, count=LOOKS[-1]))
    assert (first.kind, first.is_open) == ("inconclusive", True)
    assert (last.kind, last.is_open) == ("inconclusive", False)


def test_a_metric_that_the_revision_does_not_record_stays_inconclusive() -> None:
    sides = turns(1.25)
    other = [launches(*[1.0] * LOOKS[0], name="other", software=SOFTWARE) for _ in range(2)]
    found = {j.metric: j for j in confirmed((sides[0], *other))}

    assert found["step"].kind == "inconclusive"
    assert "interleaved A/B with 3f2a91c0d4 gave no comparable number" in found["step"].reason


def of_set(slower: float, pairs: int, kind: VerdictName) -> Finding:
    """What the pairs of one set of processes show."""
    codes: dict[VerdictName, ReasonCode] = {"regressed": "beyond-threshold", "inconclusive": "launches-used-up"}
    code = codes.get(kind, "within-threshold")
    found = replace(SLOWER, code=code, current=slower, baseline=1.0, launches=pairs, is_open=kind == "inconclusive")
    assert found.kind == kind
    return found


@pytest.mark.parametrize(
    ("first", "second", "is_last", "code", "is_open"),
    [
        ((1.3, 3, "regressed"), None, False, "beyond-threshold", True),  # not checked yet
        ((1.3, 3, "regressed"), (1.2, 2, "inconclusive"), False, "beyond-threshold", False),
        ((1.3, 3, "regressed"), (1.1, 2, "inconclusive"), False, "ab-disagrees", True),
        ((1.3, 3, "regressed"), (1.1, 4, "inconclusive"), False, "ab-disagrees", True),
        ((1.3, 3, "regressed"), (1.1, 4, "inconclusive"), True, "ab-disagrees", False),
        ((1.3, 3, "regressed"), (1.0, 4, "unchanged"), False, "ab-disagrees", False),
        ((1.0, 3, "unchanged"), (1.3, 4, "regressed"), False, "ab-disagrees", False),  # in the second set alone
        ((1.06, 3, "inconclusive"), (1.3, 4, "regressed"), False, "ab-disagrees", False),
        ((1.2, 3, "inconclusive"), (1.3, 4, "regressed"), False, "beyond-threshold", False),
    ],
)
def test_a_slowdown_of_both_sets_of_processes_is_red_and_of_one_is_not(
    first: tuple[float, int, VerdictName],
    second: tuple[float, int, VerdictName] | None,
    is_last: bool,
    code: ReasonCode,
    is_open: bool,
) -> None:
    again = {} if second is None else {"step": of_set(*second)}
    [found] = crossed([SLOWER], {"step"}, {"step": of_set(*first)}, again, is_last=is_last)

    assert (found.code, found.is_open) == (code, is_open)


@pytest.mark.parametrize(
    ("before", "after"),
    [("beyond-threshold", "inconclusive"), ("communication", "changed"), ("low-power", "unchanged")],
)
def test_a_timing_is_inconclusive_if_no_interleaved_launch_ran(before: str, after: VerdictName) -> None:
    verdict = replace(EXACT if before == "communication" else SLOWER, code=before, reason="why")
    [found] = undecided([verdict], "it hung")

    assert found.kind == after
    assert found.reason == ("it hung (why)" if before == "beyond-threshold" else "why")


def test_a_change_is_split_between_code_and_software_where_there_is_one() -> None:
    total = ratios(launches(0.1, 2.0, None, 0.0), launches(0.144, 2.0, 9.0, 9.0))
    [found] = split_change([SLOWER], code={"step": 1.03}, total=total, software="torch 2.12.0 -> 2.13.0")
    assert total == {"step": pytest.approx(1.2)}
    assert found.reason.endswith("of +20.0 % by interleaved A/B: code +3.0 %, torch 2.12.0 -> 2.13.0 +16.5 %")

    fine = replace(SLOWER, code="within-threshold")
    assert split_change([fine], code={"step": 1.0}, total={"step": 1.2}, software="torch") == [fine]


def test_unchanged_code_is_hardly_ever_red_on_a_moody_machine_and_a_slower_one_nearly_always() -> None:
    def red(slower: float) -> int:
        return sum(
            confirmed(turns(slower, noise=0.05, count=14, seed=seed))[0].kind == "regressed" for seed in range(60)
        )

    assert red(1.0) == 0
    assert red(1.3) > 55


def of_two_ranks(side: Sequence[LaunchRecord], computes: float, rng: random.Random) -> list[LaunchRecord]:
    """The launches of one side, whose two ranks compute for 0.8 s each, times a factor."""
    times = [1.6 * computes * math.exp(rng.gauss(0, 0.005)) for _ in side]
    return [
        replace(each, measurements=[replace(m, companions={"cpu_s": cpu_s}, ranks=2) for m in each.measurements])
        for each, cpu_s in zip(side, times, strict=True)
    ]


@pytest.mark.parametrize(
    ("slower", "computes", "noise", "least", "most"),
    [
        (1.3, 1.3, 0.3, 35, 40),
        (1.3, 1.0, 0.3, 0, 5),
        (1.0, 1.3, 0.02, 0, 0),
        (1.0, 1.0, 0.3, 0, 0),
        (1.3, 1.0, 0.02, 40, 40),
    ],
    ids=[
        "computes longer",
        "waits, in noise",
        "in a thread that nobody waits for",
        "unchanged",
        "waits, without noise",
    ],
)
def test_cpu_time_shows_in_noise_that_ranks_compute_longer_and_excuses_no_wait(
    slower: float, computes: float, noise: float, least: int, most: int
) -> None:
    red = 0
    for seed in range(40):
        rng = random.Random(seed)
        sides = turns(slower, noise=noise, count=LOOKS[2], seed=seed)
        now, *others = (of_two_ranks(side, f, rng) for side, f in zip(sides, (computes, 1.0, 1.0), strict=True))
        [found] = confirmed((now, others[0], others[1]))
        red += found.kind == "regressed"

    assert least <= red <= most


def test_a_slowdown_by_cpu_time_names_both_times() -> None:
    rng = random.Random(1)
    sides = turns(1.3, noise=0.3, count=LOOKS[2], seed=1)
    [found] = confirmed(tuple(of_two_ranks(side, f, rng) for side, f in zip(sides, (1.3, 1.0, 1.0), strict=True)))

    assert "baseline commit), CPU time of a rank: +29.9 % over 7 pairs" in found.reason
    assert "; wall time +" in found.reason
    assert found.statistic == "A/B CPU time"


@pytest.mark.parametrize(("noise", "says"), [(0.1, True), (0.01, False)])
def test_an_open_comparison_names_the_slowdown_that_so_noisy_pairs_detect(noise: float, says: bool) -> None:
    [found] = confirmed(turns(1.15, noise=noise, seed=3))

    assert found.is_open
    assert ("; pairs scatter by " in found.reason and "so 3 of them detect slowdowns from +" in found.reason) is says


@pytest.mark.parametrize("other", [2.05, 1.9, 2.4])
def test_the_first_launches_count_for_whether_the_code_repeats_itself(other: float) -> None:
    def losses(last: float) -> LaunchRecord:
        curve = Sample(name="loss", unit="", better="curve", value=last, values=[3.0, 2.5, last])
        return LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[curve], software=dict(SOFTWARE))

    healthy, [here, once_more] = [losses(2.0)] * 2, [losses(2.2), losses(other)]
    stored = make_baseline(CASE, healthy, healthy[0].software)
    seen = [*compare(TERMS, CASE, [here], stored, comparisons=1)]
    known = StoredComparison(verdicts=seen, launches=[here], baseline=stored, are_timings=False)
    sides = [once_more], healthy[:1], healthy[:1]

    [found] = confirm(TERMS, CASE, known, sides, revision="3f2a91c0d4", cases=1)

    assert found.kind == "changed"
    assert NOT_REPEATED in found.reason

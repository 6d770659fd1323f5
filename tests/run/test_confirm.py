"""Finding the baseline commit, and interleaving launches while an answer is open."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.repositories import git
from support.results import verdict
from support.stores import CASE, KEY, PLATFORM, SOFTWARE, TEST, entry, result

from pytest_distbench.errors import LauncherError
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import LOOKS
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.plan import BodyReference, LaunchRequest, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.run.against import Variant
from pytest_distbench.run.confirm import (
    Allowance,
    Confirmation,
    Confirmer,
    Rerun,
    Suspect,
    for_places,
    in_time,
    interleaved,
)
from pytest_distbench.run.directory import Revision
from pytest_distbench.run.request import CaseRequest, Settings
from pytest_distbench.run.sources import Crossed, Source
from pytest_distbench.store.baselines import Baselines, NotRecorded

ROOT = Path(__file__).parent
"""A folder of a repository that has no commit of that name, so that nothing differs from it."""
COMMIT = "3f2a91c0d4" + 30 * "0"
REQUEST = CaseRequest(
    nodeid="n", case=CASE, terms=Terms(default_tolerance=0.1, max_launches=4, cores=2), launches=1, xfail_perf=""
)


class Pairs(Source):
    """Interleaved launches, with the candidate so many times as slow."""

    def __init__(self, slower: float, *, breaks_at: int = 99, error: str = "") -> None:
        super().__init__()
        self._slower = slower
        self._breaks_at = breaks_at
        self._error = error

    def add(self, *, only: Sequence[str] = ()) -> None:
        del only
        if len(self) == self._breaks_at:
            if self._error:
                raise LauncherError(self._error)
            self.alone, self.most = "in 3f2a91c0d4: hung", len(self)
            return
        wobble = 1 + 0.001 * (len(self) % 3)
        for side, value in ((self.launches, self._slower), (self.others, 1.0), (self.controls, 1.0 * wobble)):
            side.append(launch(len(side), value * wobble))


class Alone(Source):
    """Launches of the candidate alone."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def add(self, *, only: Sequence[str] = ()) -> None:
        del only
        self.launches.append(launch(len(self), self._value))


def launch(index: int, value: float, torch: str = "2.13.0") -> LaunchRecord:
    measured = Sample(name="step", unit="s", better="lower", value=value)
    return LaunchRecord(
        index=index, outcome="passed", wall_s=2.0, measurements=[measured], software={**SOFTWARE, "torch": torch}
    )


def suspect(*, is_itself: bool = False) -> Suspect:
    before = result(1.4, 1.4, 1.4)
    [verdict] = before.verdicts
    found = replace(before, verdicts=[replace(verdict, current=1.4, baseline=1.0)], suspicion=2.0)
    variant = Variant(revision=Revision("", COMMIT, ROOT), interpreter=None, is_itself=is_itself)
    numbers = {"baseline": entry(0.7, 0.71, 0.7), "tolerances": {"step": 0.1}}
    return Suspect(result=found, verdicts=found.verdicts, launches=found.launches, variant=variant, **numbers)


def rerun(case: Suspect, *, budget_s: float = 60.0, why_not: str = "") -> Rerun:
    left = {KEY: why_not} if why_not else {}
    return Rerun(
        sources={}, results={}, suspects={KEY: case}, variants={}, cases=1, left=left, budget=Allowance(budget_s)
    )  # fmt: skip


def confirm_case(
    source: Source, case: Suspect, how: Rerun, of_its_time: Source | None = None, exchanged: Source | None = None
) -> tuple[str, str, int]:
    confirmation = Confirmation(REQUEST, case, how)
    pairs = Crossed(source, exchanged, close=lambda: None)
    made = confirmation.result(pairs, here="1a2b", of_its_time=of_its_time)
    if made is None:
        return "not decided", confirmation.why_not, -1
    [verdict] = made.verdicts
    return verdict.kind, verdict.reason, len(made.confirmation.baselines) if made.confirmation else -1


@pytest.mark.parametrize(("slower", "kind"), [(1.3, "regressed"), (1.0, "environment")])
def test_as_many_pairs_are_made_as_it_takes(slower: float, kind: str) -> None:
    case = suspect()

    assert confirm_case(Pairs(slower), case, rerun(case))[::2] == (kind, LOOKS[0])


@pytest.mark.parametrize(("now", "kind", "text"), [(1.0, "environment", "beyond"), (0.71, "unchanged", "within")])
def test_the_same_tree_is_launched_again_alone(now: float, kind: str, text: str) -> None:
    case = suspect(is_itself=True)
    found, reason, pairs = confirm_case(Alone(now), case, rerun(case))

    assert (found, pairs) == (kind, 0)
    assert reason.startswith("the code equals the baseline commit 3f2a91c0d4")
    assert f"3 more launches are {text} its noise" in reason


SLOWER = "slower in one set of processes"


@pytest.mark.parametrize(
    ("trees", "kind", "text", "pairs"),
    [
        ((1.3, 1.0), "inconclusive", f"{SLOWER} (+29.9 % over 3 pairs), not in another one (+0.0 % over 4)", 4),
        ((1.5, 0.8), "inconclusive", f"{SLOWER} (+*), not in another one (-20.? % over 4)", 4),
        ((1.22, 1.06), "inconclusive", f"{SLOWER} (+*), not in another one (+6.0 % over 4)", 4),
        ((1.3, 1.3), "regressed", "*: +29.? % over 5 pairs; *; confirmed in new processes: +30.0 % over 2 pairs", 2),
        ((1.5, 1.2), "regressed", "*; confirmed in new processes: +20.0 % over 2 pairs", 2),
        ((1.06, 1.06), "environment", "*", 0),
        ((1.0, 1.3), "environment", "*", 0),
    ],
)
def test_a_slowdown_is_measured_in_other_process_trees_before_it_is_red(
    trees: tuple[float, float], kind: str, text: str, pairs: int
) -> None:
    case, second = suspect(), Pairs(trees[1])
    found, reason, _ = confirm_case(Pairs(trees[0]), case, rerun(case), exchanged=second)

    assert (found, len(second)) == (kind, pairs)
    assert fnmatch(reason, text)


class Calms(Pairs):
    """A candidate that is slower in its first three pairs alone."""

    def add(self, *, only: Sequence[str] = ()) -> None:
        if len(self) == LOOKS[0]:
            self._slower = 1.0
        super().add(only=only)


def test_where_the_second_set_does_not_run_later_pairs_of_the_first_decide() -> None:
    case = suspect()
    kind, _, pairs = confirm_case(Calms(1.3), case, rerun(case), exchanged=Pairs(1.0, breaks_at=0, error="no room"))

    assert kind != "regressed"
    assert pairs > LOOKS[0]


def test_the_last_look_decides_by_the_pairs_that_there_are() -> None:
    case = suspect()
    confirmation = Confirmation(REQUEST, case, rerun(case))
    confirmation._looks = (3, 5)
    pairs = Crossed(Pairs(1.3), Pairs(1.0), close=lambda: None)
    [found] = confirmation.decide_in_time(pairs)

    assert (found.code, len(pairs)) == ("ab-disagrees", 5)


@pytest.mark.parametrize(
    ("others_s", "second"),
    [(61.0, Pairs(1.0)), (0.0, Pairs(1.0, breaks_at=1, error="no room"))],
    ids=["time that others need", "does not run"],
)
def test_where_nothing_can_be_seen_again_the_first_red_stands(others_s: float, second: Pairs) -> None:
    case = suspect()
    how = dataclasses.replace(rerun(case), others_s=others_s)
    kind, reason, _ = confirm_case(Pairs(1.3), case, how, exchanged=second)

    assert kind == "regressed"
    assert reason.endswith("A/A noise +0.1 %")


@pytest.mark.parametrize(("breaks_at", "error"), [(0, ""), (0, "cannot start"), (2, "")])
def test_a_revision_that_breaks_decides_nothing(breaks_at: int, error: str) -> None:
    case = suspect()
    found = confirm_case(Pairs(1.3, breaks_at=breaks_at, error=error), case, rerun(case))

    assert found == ("not decided", error or "in 3f2a91c0d4: hung", -1)


class SimulatedTime:
    """Time that passes as pairs are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(interleaved.time, "monotonic", lambda: self.now)


class Slow(Pairs):
    """Pairs that take their time, an open answer for ever."""

    def __init__(self, clock: SimulatedTime, *each_s: float) -> None:
        super().__init__(1.1)
        self._clock, self._each_s = clock, each_s

    def add(self, *, only: Sequence[str] = ()) -> None:
        self._clock.now += self._each_s[min(len(self), len(self._each_s) - 1)]
        super().add(only=only)


@pytest.mark.parametrize(
    ("each_s", "budget_s", "pairs", "took_s", "why_not"),
    [
        ((5.0,), 60.0, 10, 50.0, ""),  # 14 pairs do not fit
        ((5.0, 5.0, 5.0, 30.0), 60.0, 4, 45.0, ""),  # what was begun became slow
        ((8.0,), 20.0, 2, 16.0, "2 of 3 pairs used all of the time: --distbench-confirm=auto:SECONDS"),
        ((7.0, 20.0), 30.0, 2, 27.0, "2 of 3 pairs used all of the time: --distbench-confirm=auto:SECONDS"),
    ],
)
def test_no_pair_begins_that_would_end_behind_the_budget(
    monkeypatch: pytest.MonkeyPatch, each_s: tuple[float, ...], budget_s: float, pairs: int, took_s: float, why_not: str
) -> None:
    clock = SimulatedTime(monkeypatch)
    source, case = Slow(clock, *each_s), suspect()
    began_at = clock.now
    confirmation = Confirmation(REQUEST, case, rerun(case, budget_s=budget_s))
    verdicts = confirmation.decide_in_time(source)

    assert (len(source), clock.now - began_at, confirmation.why_not) == (pairs, took_s, why_not)
    assert [v.code for v in verdicts] == ["not-confirmed"] * (not why_not)
    assert all("its time was used up: --distbench-confirm=auto:SECONDS" in v.reason for v in verdicts)


CURVE = Sample(name="loss_curve", unit="", better="curve", value=1.0, values=[3.0, 2.0, 1.0, 0.5])


class Trains(Pairs):
    """Pairs of a training whose curve differs from the stored one: in the candidate alone, or in the revision too."""

    def __init__(self, *, is_of_code: bool) -> None:
        super().__init__(1.0)
        self._curves = [replace(CURVE, values=[3.0, 1.0, 0.7, 0.4]), CURVE]
        self._is_of_code = is_of_code

    def add(self, *, only: Sequence[str] = ()) -> None:
        super().add(only=only)
        for side, curve in ((self.launches, 0), (self.others, self._is_of_code), (self.controls, self._is_of_code)):
            side[-1] = replace(side[-1], measurements=[*side[-1].measurements, self._curves[curve]])


@pytest.mark.parametrize(("is_of_code", "pairs", "kind"), [(True, 1, "changed"), (False, 3, "environment")])
def test_one_pair_says_whose_other_losses_are_and_timings_are_confirmed_if_they_are_not_the_codes(
    is_of_code: bool, pairs: int, kind: str
) -> None:
    case, source = suspect(), Trains(is_of_code=is_of_code)
    source.add()
    [other], source = source.launches, Trains(is_of_code=is_of_code)
    known = replace(entry(0.7, 0.71, 0.7), metrics={**entry(0.7, 0.71, 0.7).metrics, CURVE.key: [CURVE] * 3})
    losses = verdict("losses", metric=CURVE.key, better="curve", unit="", baseline=1.0)
    case = dataclasses.replace(case, baseline=known, launches=[other], verdicts=[*case.verdicts, losses])
    verdicts = Confirmation(REQUEST, case, rerun(case)).decide_in_time(source)

    assert (len(source), {v.metric: v.kind for v in verdicts}[CURVE.key]) == (pairs, kind)


def test_with_the_old_software_at_hand_the_change_is_split() -> None:
    case = suspect()
    old = Pairs(1.0)
    for index in range(LOOKS[0]):
        old.launches.append(launch(index, 1.2))
        old.others.append(launch(index, 1.0, "2.12.0"))
    kind, reason, _ = confirm_case(Pairs(1.0), case, rerun(case), old)

    assert kind == "environment"
    assert reason.endswith("of +20.0 % by interleaved A/B: code +0.0 %, torch 2.12.0 -> 2.13.0 +20.0 %")


def test_an_interleaved_launch_is_limited_by_the_candidates_duration() -> None:
    request = LaunchRequest(
        title="t", work=Ranks(body=BodyReference(file="f", function="g")), world_size=2, backend="gloo", device="cpu",
        timeout_s=600.0,
    )  # fmt: skip

    assert in_time(request, [1.0, 2.0]).timeout_s == pytest.approx(50.0)
    assert in_time(request, [500.0]).timeout_s == 600.0


@pytest.fixture
def store(tmp_path: Path) -> Baselines:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "work.py").write_text("1")
    made = Baselines(tmp_path / "baselines", PLATFORM)
    made.write(TEST, KEY, entry(1.0, 1.1))
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return made


def confirmer(root: Path, **settings: object) -> Confirmer:
    asked = Settings(gpus=Gpus(), baselines=root / "baselines", **settings)  # type: ignore[arg-type]
    return Confirmer(asked, root, root)


def test_a_tree_of_which_baselines_alone_differ_is_the_one_that_was_measured(store: Baselines, tmp_path: Path) -> None:
    path = store.path(TEST, KEY)
    first = confirmer(tmp_path).find(path)
    assert (first[0].is_itself, first[1]) == (True, None), "the first commit of all is its own recorder"

    store.write("other.py::test_b", KEY, entry(2.0, 2.1))
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "other baselines")
    same = confirmer(tmp_path).find(path)[0]
    (tmp_path / "work.py").write_text("2")
    assert (same.is_itself, confirmer(tmp_path).find(path)[0].is_itself) == (True, False)
    assert same.revision is not None
    assert same.revision.commit == git(tmp_path, "rev-parse", "HEAD~1").strip()


@pytest.mark.parametrize(("name", "is_itself"), [("helper.py", False), ("run.html", True)])
def test_code_that_git_does_not_know_is_not_what_was_measured(
    store: Baselines, tmp_path: Path, name: str, is_itself: bool
) -> None:
    """A test or a helper that was never added may be the slower code; what a run has written is none."""
    (tmp_path / name).write_text("new")

    assert confirmer(tmp_path).find(store.path(TEST, KEY))[0].is_itself == is_itself


def commit(root: Path, **files: str) -> str:
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "more")
    return git(root, "rev-parse", "HEAD").strip()


@pytest.mark.parametrize(
    ("files", "steps_back", "is_itself"),
    [({"work": "slower"}, 1, False), ({"other": "new"}, 1, False), ({}, 0, True)],
    ids=["code", "another file", "baselines alone"],
)
def test_a_commit_that_changed_code_is_not_its_own_baseline_commit(
    store: Baselines, tmp_path: Path, files: dict[str, str], steps_back: int, is_itself: bool
) -> None:
    path = store.path(TEST, KEY)
    store.write(TEST, KEY, entry(0.5, 0.6))
    commit(tmp_path, **files)
    found = confirmer(tmp_path).find(path)

    assert found[0].revision is not None
    assert found[0].revision.commit == git(tmp_path, "rev-parse", f"HEAD~{steps_back}").strip()
    assert found[0].is_itself == is_itself
    assert found[1] == (None if is_itself else entry(1.0, 1.1))
    commit(tmp_path, work="later")
    later = confirmer(tmp_path).find(path)
    assert (later[0].is_itself, later[1]) == (False, None)


def test_what_is_out_of_time_is_not_decided() -> None:
    case = suspect()

    assert confirm_case(Pairs(1.3), case, rerun(case, why_not="no time")) == ("not decided", "no time", -1)


def test_it_says_about_how_long_it_takes() -> None:
    assert suspect().takes_s > 3 * LOOKS[0]
    assert suspect(is_itself=True).takes_s == pytest.approx(LOOKS[0])


def test_a_link_to_nothing_is_a_reason(store: Baselines, tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="data"):
        confirmer(tmp_path, against_link=("data",)).find(store.path(TEST, KEY))


def test_without_a_python_of_its_time_there_is_no_variant_of_it(store: Baselines, tmp_path: Path) -> None:
    found = confirmer(tmp_path)

    assert found.of_its_time(found.find(store.path(TEST, KEY))[0]) is None


def test_waiting_for_others_takes_nothing_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedTime(monkeypatch)
    budget = Allowance(60.0)

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        clock.now += 300.0
        yield

    with budget.waiting(hold()):
        clock.now += 10.0
    assert budget.left_s == 50.0


def test_a_reason_against_interleaving_takes_the_place_of_a_suspect(store: Baselines, tmp_path: Path) -> None:
    source = Alone(1.4)
    source.why_not_interleaved = "its ranks are of several hosts"
    (tmp_path / "work.py").write_text("slower")
    found, path = suspect().result, store.path(TEST, KEY)

    with pytest.raises(NotRecorded, match="its ranks are of several hosts"):
        confirmer(tmp_path).suspect(REQUEST, source, path, found, entry(1.0, 1.1), comparisons=1, made_of=())


@pytest.mark.parametrize(("wall_s", "seconds"), [(1.0, 3.0), (4.0, 12.0), (5.0, 10.0)])
def test_time_for_places_is_set_aside_and_is_no_more_than_a_part_of_the_budget(wall_s: float, seconds: float) -> None:
    launches = [LaunchRecord(index=0, outcome="passed", wall_s=wall_s)]
    budget, small = Allowance(60.0), Allowance(8.0)

    assert for_places(launches) == (round(seconds / wall_s), seconds)
    with budget.setting_aside(seconds), small.setting_aside(seconds):
        assert budget.aside_s == seconds
        assert small.aside_s == min(seconds, 2.0)
        assert budget.left_s <= 60.0 - seconds
    assert budget.left_s > 60.0 - seconds

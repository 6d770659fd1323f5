"""The loop: launches come while an answer is open, and not after."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from support.nvml import HOSTS, simulated
from support.plans import BODY
from support.results import verdict
from support.stores import CASE, environment, result

from pytest_distbench.judging.terms import NOT_EVALUATED, Terms
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.machine.gpus import Gpus, read_gpus
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import Command, LaunchRequest, Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, OtherSideRecord
from pytest_distbench.run import session as sessions
from pytest_distbench.run.against import Variant
from pytest_distbench.run.kinds import LAUNCH_KINDS
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import CaseComparison, Launches, PairedLaunches, Source

REQUEST = CaseRequest(nodeid="n", case=CASE, terms=Terms(default_tolerance=0.1, max_launches=9, cores=2), launches=1)


class Long(Work, frozen=True, kw_only=True):
    """A launch that lasts."""


class Lone(Work, frozen=True, kw_only=True):
    """A launch without a paired one."""


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    row = LAUNCH_KINDS[Command]
    few = {"open_s": 300.0, "most_open": 5, "most_stored": 3}
    monkeypatch.setitem(LAUNCH_KINDS, Long, dataclasses.replace(row, **few))
    monkeypatch.setitem(LAUNCH_KINDS, Lone, dataclasses.replace(row, why_alone="it takes the machine"))


class Counted(Source):
    """Notes what each sample is still needed for; the one of this index fails."""

    def __init__(self, *, fails_at: int | None = None, better: str = "lower") -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self.fails_at = fails_at
        self.better = better

    def add(self, *, only: Sequence[str] = ()) -> None:
        self.asked.append(list(only))
        [launch] = result(1.0).launches
        outcome = "failed" if len(self) == self.fails_at else "passed"
        measurements = [replace(m, better=self.better) for m in launch.measurements]
        self.launches.append(replace(launch, index=len(self), outcome=outcome, measurements=measurements))


class Opened(CaseComparison):
    """A comparison that is undecided until there are so many launches."""

    def __init__(self, until: int, fewest: int = 0) -> None:
        super().__init__(REQUEST)
        self.until = until
        self.fewest = fewest

    def looks(self) -> range:
        return range(2, 6)

    def wants_more(self, source: Source) -> bool:
        return len(source) < self.fewest

    def compare(self, source: Source) -> list[Finding]:
        return [replace(verdict("beyond-threshold"), is_open=len(source) < self.until)]

    def record(self, source: Source) -> OtherSideRecord:
        return OtherSideRecord(kind="stored")

    def conclude(self, made: CaseResult) -> CaseResult:
        return replace(made, headline="concluded")


@pytest.fixture
def session() -> Session:
    settings = SimpleNamespace(gpus=Gpus(), max_message_bytes=None)
    launching: Any = SimpleNamespace(
        settings=settings, on_progress=None, on_wait=None, hosting=lambda work: Hosting(hosts="none")
    )
    made = Session(launching)
    made.__dict__["hardware"] = environment("cpu-x")
    return made


@pytest.mark.parametrize(("until", "count"), [(0, 2), (2, 2), (4, 4), (99, 5)])
def test_samples_come_while_an_answer_is_open_and_more_are_allowed(session: Session, until: int, count: int) -> None:
    made = session.decide(REQUEST, Counted(), Opened(until))

    assert (len(made.launches), made.headline) == (count, "concluded")
    assert [v.kind for v in made.verdicts] == ["regressed"]


@pytest.mark.parametrize(
    ("until", "fewest", "asked"),
    [
        (3, 0, [[], [], ["step"]]),
        (0, 7, [[]] * 7),  # until the reference can judge them, everything is measured in each
    ],
)
def test_later_samples_are_for_what_is_open(session: Session, until: int, fewest: int, asked: list[list[str]]) -> None:
    source = Counted()
    session.decide(REQUEST, source, Opened(until, fewest))

    assert source.asked == asked


class RedForCertain(Opened):
    """A comparison in which an exact number is wrong, while the rest stays open."""

    def compare(self, source: Source) -> list[Finding]:
        return [*super().compare(source), verdict("beyond-threshold", metric="count", better="exact")]


def test_what_is_red_for_certain_ends_the_loop_and_what_is_open_stays_unjudged(session: Session) -> None:
    made = session.decide(REQUEST, Counted(), RedForCertain(99))

    assert len(made.launches) == 2
    assert [(v.metric, v.kind) for v in made.verdicts] == [("step", "not evaluated"), ("count", "regressed")]
    assert made.verdicts[0].reason == f"{NOT_EVALUATED} (count regressed)"


class Compared(Opened):
    """A comparison that knows beforehand whether timings are judged."""

    judges_timings = False


@pytest.mark.parametrize(
    ("known", "better", "failed", "waited", "made"),
    [
        (False, "exact", False, [False], 2),
        (False, "exact", True, [False], 1),
        (False, "lower", False, [False, True], 3),  # the first launch does not count: it was not alone
        (True, "lower", False, [True], 2),
    ],
)
def test_a_case_waits_for_another_measurement_only_if_it_has_timings(
    session: Session, monkeypatch: pytest.MonkeyPatch, known: bool, better: str, failed: bool, waited: Any, made: int
) -> None:
    asked: list[bool] = []

    def busy(world_size: int, *, takes_host: bool, waits: bool = True) -> contextlib.AbstractContextManager[bool]:
        asked.append(waits)
        return contextlib.nullcontext(waits)

    monkeypatch.setattr(session, "alone", busy)
    monkeypatch.setattr(Compared, "judges_timings", known)
    source = Counted(fails_at=0 if failed else None, better=better)
    result = session.decide(REQUEST, source, Compared(0))

    assert (asked, len(source.asked)) == (waited, made)
    assert [launch.index for launch in result.launches] == [*range(1 if failed else 2)]


def test_the_gpu_is_leased_that_ranks_will_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of different GPUs, by the number that CUDA gives it."""
    with simulated(HOSTS["RTX 3060 and 4090"]):
        found = read_gpus({"CUDA_VISIBLE_DEVICES": "1"})
    leased: list[str] = []
    monkeypatch.setattr(sessions, "alone_on_this_host", lambda on_wait, waits: contextlib.nullcontext(True))
    monkeypatch.setattr(sessions, "lease", lambda uuids, on_wait: contextlib.nullcontext(leased.extend(uuids)))
    source = Counted()
    source.takes_host = True
    launching: Any = SimpleNamespace(
        settings=SimpleNamespace(gpus=found, fake_rank=None, shares_host=False),
        on_wait=None,
        one_at_a_time=lambda is_alone: contextlib.nullcontext(),
    )
    Session(launching).measure([source], 0, world_size=1)

    assert leased == ["GPU-4090"]
    assert found.platform == "nvidia-geforce-rtx-4090"


@pytest.mark.parametrize(("limit", "value"), [("open_s", 0.0), ("most_open", 1), ("most", 2)])
def test_an_open_answer_that_is_not_worth_another_sample_stays_open(session: Session, limit: str, value: float) -> None:
    source = Counted()
    setattr(source, limit, value)
    found = session.decide(REQUEST, source, Opened(5))

    assert (len(source), len(found.launches)) == (2, 2)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(("against", "kind"), [("main", PairedLaunches), (None, Launches)])
@pytest.mark.parametrize(
    ("work", "given", "limited"), [(Ranks(body=BODY), False, False), (Long(), False, True), (Long(), True, False)]
)
def test_launches_are_pairs_under_against_and_limited_in_time_by_their_kind(
    session: Session, against: str | None, kind: type[Source], work: Work, given: bool, limited: bool
) -> None:
    settings = SimpleNamespace(is_paired=against is not None, attach=None, launches=(None, 9 if given else None))
    session.launching.settings = settings  # type: ignore[assignment]
    session.launching.compared_with = Variant(revision=None, interpreter=None)
    request: Any = SimpleNamespace(work=work)
    source = session.source(request)
    source.launches = [LaunchRecord(index=0, outcome="passed", wall_s=299.0)]

    assert type(source) is kind
    assert source.most_stored == (3 if limited else math.inf)
    assert source.most_open == (5 if limited and against is None else math.inf)
    assert source.may_grow
    source.others = [LaunchRecord(index=0, outcome="passed", wall_s=2.0)]
    assert source.may_grow is not limited


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("work", "hosts", "launcher", "why"),
    [
        (Ranks(body=BODY), "none", {}, "its ranks are simulated"),
        (Ranks(body=BODY), "many", {"shares": False}, r"not all hosts confirmed that they see /.* \(TMPDIR\), where"),
        (Ranks(body=BODY), "many", {"describe": None}, r"not all hosts confirmed that they see /.* \(TMPDIR\), where"),
        (Ranks(body=BODY), "many", {"may_confirm": False}, "the mine launcher does not state that two"),
        (Ranks(body=BODY), "many", {}, "$"),
        (Ranks(body=BODY), "one", {"holds_two": False}, "the mine launcher cannot keep two groups open at once"),
        (Lone(), "one", {}, "it takes the machine"),
        (Long(), "one", {}, "$"),
        (Ranks(body=BODY), "one", {}, "$"),
    ],
)
def test_what_cannot_be_interleaved_keeps_the_stored_comparison_and_says_why(
    session: Session, work: Work, hosts: Literal["none", "one", "many"], launcher: dict[str, bool | None], why: str
) -> None:
    launching: Any = session.launching
    launching.hosting = lambda work: Hosting(hosts=hosts)
    launching.on_start = lambda: None
    found = cast(Any, None), bool(launcher.get("shares", True))
    kind = {"holds_two": True, "may_confirm": True, "describe": lambda **wanted: found, **launcher}
    launching.launcher_kind = SimpleNamespace(**kind)
    launching.settings = SimpleNamespace(launcher="mine", gpu=False, platform=None, largest=2, engine="")
    request = LaunchRequest(work=work, world_size=2, backend="gloo", device="cpu", timeout_s=10.0)
    assert re.match(why, session.launches_of(request).why_not_interleaved)


def test_a_launch_that_fails_is_the_last_and_nothing_is_judged(session: Session) -> None:
    made = session.decide(REQUEST, Counted(fails_at=1), Opened(9))

    assert (len(made.launches), made.verdicts, made.headline) == (2, [], "concluded")

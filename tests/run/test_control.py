"""An injected slowdown goes through the screening, and from there to interleaved A/B, as a regression does."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.plans import BODY
from support.results import verdict
from support.stores import CASE, entry, result

from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchRequest, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.run import control
from pytest_distbench.run.kinds import LAUNCH_KINDS
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import Source
from pytest_distbench.store.baselines import NotRecorded

REQUEST = CaseRequest(nodeid="n", case=CASE, terms=Terms(default_tolerance=0.3, max_launches=9, cores=2), launches=1)
HEALTHY = result(1.0)


def launch(value: float, *, delayed_s: float = 0.0, outcome: str = "passed") -> LaunchRecord:
    return replace(result(value).launches[0], delayed_s=delayed_s, outcome=outcome, reason="it hangs")


DELAYED = [launch(1.4, delayed_s=0.4)]


class Alone(Source):
    """Launches with the delay."""

    def add(self, *, only: Sequence[str] = ()) -> None:
        raise NotImplementedError


class Session:
    """A run whose launches and verdicts are made up."""

    def __init__(
        self, *verdicts: Finding, suspect: object = None, has_baseline: bool = True, share: float | None = None
    ) -> None:
        self.verdicts = verdicts
        self.raised = suspect
        self.confirmer: object = object()
        self.launching = None
        self.injected: list[LaunchRequest] = []
        self.launches = DELAYED
        self.settings = SimpleNamespace(control=share or "tolerance", confirm_budget_s=60.0)
        self.baseline = SimpleNamespace(
            has_numbers=has_baseline, baseline=entry(1.0) if has_baseline else None, suspect=self.suspect
        )

    def stored(self, request: CaseRequest) -> Any:
        return self.baseline

    def source(self, request: LaunchRequest) -> Source:
        self.injected.append(request)
        made = Alone()
        made.launches += self.launches
        return made

    def decide(self, request: CaseRequest, source: Source, comparison: object) -> CaseResult:
        return replace(result(1.4), verdicts=list(self.verdicts))

    def suspect(self, *of: object) -> object:
        if isinstance(self.raised, Exception):
            raise self.raised
        return self.raised

    @contextlib.contextmanager
    def alone(self, world_size: int, *, takes_host: bool) -> Iterator[None]:
        yield


def inject(session: Session, *, healthy: CaseResult = HEALTHY) -> Any:
    work = Ranks(body=BODY)
    launched = LaunchRequest(work=work, world_size=2, backend="gloo", device="cpu", timeout_s=10.0)
    found = control.inject_slowdown(session, dataclasses.replace(REQUEST, launched=launched), healthy)  # type: ignore[arg-type]
    assert found is not None or healthy is not HEALTHY
    return found


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[LaunchRequest]:
    """The interleaved launches: 1.4 s with the delay, else 1 s. It collects the requests."""
    asked: list[LaunchRequest] = []

    class Interleaving(Source):
        def __init__(self, launching: object, request: LaunchRequest, variant: object, *, has_control: bool) -> None:
            super().__init__()
            asked.append(request)

        def add(self, *, only: Sequence[str] = ()) -> None:
            noise = 1 + 0.001 * (len(self) % 3)
            self.launches.append(launch(1.4 * noise, delayed_s=0.4))
            self.others.append(launch(1.0))
            self.controls.append(launch(noise))

    monkeypatch.setattr(control, "PairedLaunches", Interleaving)
    return asked


@pytest.mark.parametrize(("share", "injected"), [(None, 0.4), (0.2, 0.2)])
def test_the_share_is_the_users_or_a_third_more_than_the_tolerance(share: float | None, injected: float) -> None:
    session = Session(verdict("within-threshold"), share=share)
    found = inject(session)

    assert (found.share, found.is_chosen) == (pytest.approx(injected), share is not None)
    assert [request.delay for request in session.injected] == [pytest.approx(injected)]


def test_what_is_not_suspicious_is_lost_in_the_screening(beside: list[LaunchRequest]) -> None:
    found = inject(Session(verdict("low-power")))

    assert (found.step, found.found, found.launches, beside) == ("screening", [], 1, [])


@pytest.mark.parametrize("has_baseline", [True, False])
def test_a_suspect_or_a_case_without_a_baseline_is_decided_by_interleaving(
    beside: list[LaunchRequest], has_baseline: bool
) -> None:
    code = "beyond-threshold" if has_baseline else "no-baseline"
    found = inject(Session(verdict(code), suspect=object() if has_baseline else None, has_baseline=has_baseline))

    assert (found.step, found.has_baseline, found.launches) == ("turns", has_baseline, 1 + 3 * 3)
    assert [(v.kind, v.ratio) for v in found.found] == [("regressed", pytest.approx(1.4, rel=0.01))]
    assert beside[0].delay == pytest.approx(0.4)


def test_where_no_turns_can_be_had_the_baseline_decides_alone() -> None:
    found = inject(Session(verdict("beyond-threshold"), suspect=NotRecorded("its baseline is not committed")))

    assert (found.step, found.why_alone) == ("stored", "its baseline is not committed")
    assert found.found


@pytest.mark.parametrize(
    ("launches", "verdicts", "why"),
    [
        ([launch(1.0)], [verdict()], "it takes its own times"),
        ([launch(1.0, outcome="failed")], [], "a launch with the delay failed: it hangs"),
        (DELAYED, [verdict("communication", metric="fingerprint")], "communication is changed already"),
    ],
)
def test_what_could_not_be_tried_says_why(launches: list[LaunchRecord], verdicts: list[Finding], why: str) -> None:
    session = Session(*verdicts)
    session.launches = launches
    assert why in inject(session).why_not


def test_a_case_without_timings_gets_no_slowdown() -> None:
    measured = [replace(m, better="exact") for m in HEALTHY.launches[0].measurements]
    healthy = replace(HEALTHY, launches=[replace(HEALTHY.launches[0], measurements=measured)])

    assert inject(Session(), healthy=healthy) is None


def test_what_cannot_be_delayed_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    row = dataclasses.replace(LAUNCH_KINDS[Ranks], why_no_delay="nobody can delay it")
    monkeypatch.setitem(LAUNCH_KINDS, Ranks, row)
    assert inject(session).why_not == "nobody can delay it"
    assert session.injected == []

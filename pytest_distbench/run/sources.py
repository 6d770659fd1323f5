"""The launches of a case, alone or in pairs with the other side, and the loop that adds them.

Consecutive launches on a shared machine share its load of those seconds, so ten of them show neither how noisy it is,
nor whether a slowdown lasts. They are spaced in time, unless the iterations of the last one show a quiet machine.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_distbench.errors import BodyError, DerivationError, LauncherError, line_of, show
from pytest_distbench.judging.bounds import check_measured, judge_bounds
from pytest_distbench.judging.terms import certain_failure, closed
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import FINGERPRINT, LARGEST_NUMBER, AskedBound, Sample
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, OtherSideRecord
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.units import as_float, why_impossible

if TYPE_CHECKING:
    from pytest_distbench.run.against import Variant
    from pytest_distbench.run.launching import Launching


SPACING_S = 1.5  # from the begin of one launch to that of the next

RESTLESS = 0.1
"""``log(p95 / p25)`` of the iterations above which a machine is not quiet: slow iterations take 10 % longer."""


class Pacer:
    """Delays launches to :data:`SPACING_S` after the begin of the one before; with 0 seconds not at all."""

    def __init__(
        self,
        spacing_s: float = SPACING_S,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spacing_s = spacing_s
        self._now = now
        self._sleep = sleep
        self._began_at = -math.inf

    def wait_for_next(self, before: LaunchRecord | None) -> None:
        remaining = self._began_at + self._spacing_s - self._now()
        if before is not None and remaining > 0 and is_restless(before):
            self._sleep(remaining)
        self._began_at = self._now()


def is_restless(launch: LaunchRecord) -> bool:
    """Whether a metric of a launch was noisy, or a noisy kind of metric has no iterations."""
    noisy = [m.spread for m in launch.measurements if m.is_noisy]
    return any(s is None or s.p25 <= 0 or math.log(s.p95 / s.p25) > RESTLESS for s in noisy)


class Source(ABC):
    """The launches of a case, and where more come from.

    Attributes:
        launches: launches of the candidate.
        others: launches of the other revision, one per candidate launch; empty for a stored baseline.
        controls: further launches of the other revision, for its noise; empty without confirmation.
        why_not_interleaved: why it cannot be interleaved with another revision, in a clause, or "".
        alone: why the other revision was not launched although it should have been, or "".
        is_new: whether that is because the other revision does not have the test.
        most: the most launches there can be.
        most_stored: the most launches that a baseline stores, even if they are noisy.
        most_open: the most launches of an undecided case, unless the first look asks for more.
        open_s: an undecided case gets more launches while those so far took less, in seconds.
        takes_host: whether they are measured on this host, where one measurement at a time may run.
        before: number of launches of the case that another source made before.
    """

    def __init__(self) -> None:
        self.launches: list[LaunchRecord] = []
        self.others: list[LaunchRecord] = []
        self.controls: list[LaunchRecord] = []
        self.why_not_interleaved = ""
        self.alone = ""
        self.is_new = False
        self.most: float = math.inf
        self.most_stored: float = math.inf
        self.most_open: float = math.inf
        self.open_s: float = math.inf
        self.takes_host = False
        self.before = 0

    @property
    def may_grow(self) -> bool:
        """Whether an undecided case may have another launch."""
        took_s = sum(launch.wall_s for launch in [*self.launches, *self.others])
        return len(self) < self.most_open and took_s < self.open_s

    def __len__(self) -> int:
        return len(self.launches)

    @property
    def sides(self) -> tuple[list[LaunchRecord], list[LaunchRecord], list[LaunchRecord]]:
        """Launches of the candidate, of the other revision, and further ones of the other revision."""
        return self.launches, self.others, self.controls

    @property
    def may_be_repeated(self) -> bool:
        """Whether more launches can be made some time later."""
        return True

    @property
    def whole(self) -> list[int]:
        """Indices of the launches in which all metrics were measured."""
        return [i for i, launch in enumerate(self.launches) if not launch.only]

    @property
    def failed(self) -> LaunchRecord | None:
        """The launch that did not pass, which is the last one, or None."""
        last = self.launches[-1] if self.launches else None
        return last if last is not None and last.outcome != "passed" else None

    @property
    def starts(self) -> Sequence[int]:
        """Numbers of the launches before which processes are started that stay for the later ones."""
        return (0,)

    @abstractmethod
    def add(self, *, only: Sequence[str] = ()) -> None:
        """Make one more launch, which may measure only these metrics; ``()`` for all."""

    def forget(self) -> None:
        """Drop all launches."""
        for side in self.sides:
            side.clear()


class CaseComparison:
    """How a case is compared, and the loop that adds launches until every metric is decided."""

    def __init__(self, request: CaseRequest) -> None:
        self.request = request

    @property
    def judges_timings(self) -> bool:
        """Whether timings are judged or stored for certain, before the first launch is made."""
        return False

    def judges_timings_of(self, launch: LaunchRecord) -> bool:
        return self.request.terms.judge_timings(launch.measurements)

    def looks(self) -> Iterable[int]:
        """Ascending numbers of launches after which the case is judged; the last one is the most."""
        return (self.request.launches,)

    def wants_more(self, source: Source) -> bool:
        """Whether the launches are too few to be judged, although the look asks for no more."""
        del source
        return False

    def may_begin(self, source: Source, look: int) -> bool:
        """Whether there is time for the launches that a look still needs."""
        del source, look
        return True

    def give_up(self, source: Source, error: LauncherError) -> None:
        """Go on without a launch that could not be started, or raise the error."""
        del source
        raise error

    def compare(self, source: Source) -> list[Finding]:
        raise NotImplementedError

    def bounds(self) -> Sequence[AskedBound]:
        """Bounds that are set in the baseline file, each with its metric; empty for another side."""
        return ()

    def judge(self, source: Source) -> list[Finding]:
        """Judge the launches; an open finding asks for more of them, unless another finding fails the case anyway."""
        findings, terms = self.compare(source), self.request.terms
        if not findings:
            return []
        check_measured(self.bounds(), source.launches, terms.largest_message)
        asked = [*terms.bounds, *self.bounds()]
        findings = judge_bounds(findings, source.launches, asked, baseline=source.others)
        reason = certain_failure(findings)
        return [closed(f, reason) if reason and f.is_open else f for f in findings]

    def decide(self, source: Source) -> list[Finding]:
        """Add launches until every metric is decided, or there can be no more."""
        findings: list[Finding] = []
        only: list[str] = []
        for look in self.looks():
            while len(source) < source.most and (len(source) < look or self.wants_more(source)):
                if not self.may_begin(source, look):
                    return findings
                try:
                    source.add(only=only)
                except LauncherError as error:
                    self.give_up(source, error)
                if source.failed:
                    return findings
            findings = self.judge(source)
            if any(finding.is_open for finding in findings) and not source.may_grow:
                source.most = len(source)
                findings = self.judge(source)
            only = [finding.metric for finding in findings if finding.is_open]
            if not only or len(source) >= source.most:
                break
            if FINGERPRINT in only:
                only = []  # a fingerprint needs whole launches
        return findings

    def record(self, source: Source) -> OtherSideRecord:
        """The other side, for the record of the case."""
        raise NotImplementedError

    def conclude(self, result: CaseResult) -> CaseResult:
        """Complete the result after the last launch, such as by preparing an update of the baseline."""
        return result


class SourceFailed(Exception):
    """A launch did not pass, of a source that another case needs."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source


class Launches(Source):
    def __init__(self, launching: Launching, request: LaunchRequest, pacer: Pacer) -> None:
        super().__init__()
        self._launching = launching
        self._request = request
        self._pacer = pacer
        self.takes_host = launching.hosting(request.work).hosts == "one"

    def add(self, *, only: Sequence[str] = ()) -> None:
        self._pacer.wait_for_next(self.launches[-1] if self.launches else None)
        self.launches.append(self._launching.launch(self._request, len(self.launches), only=only))


class PairedLaunches(Launches):
    """Interleaved launches of the candidate and of another revision; with a control, two of the other revision each.

    With a control a failure of the other revision ends the launches without failing the case: ``alone`` says why.
    """

    def __init__(
        self, launching: Launching, request: LaunchRequest, variant: Variant, *, has_control: bool = False
    ) -> None:
        super().__init__(launching, request, Pacer(0.0))
        self._variant = variant
        self._has_control = has_control

    def add(self, *, only: Sequence[str] = ()) -> None:
        if not self.alone and not self._launching.other_side(self._variant).has(self._request.work):
            self._stay_alone()
        if self.alone and self._has_control:
            return
        if self.alone:
            super().add(only=only)
            return
        found = self._launching.launch_pair(
            self._variant,
            self._request,
            self.before + len(self.launches),
            only=only,
            times=1 + self._has_control,
        )
        if self._variant.judged is not None and found[0] is not None and found[0].outcome == "skipped":
            found[0] = self._judge_skip(found[0])
        records = [record for record in found if record is not None]
        bodiless = [
            record
            for record in found[1:]
            if record is not None and any(f.error and f.error.kind == BodyError.__name__ for f in record.fates)
        ]
        if not self.launches and bodiless:
            for record in bodiless:
                self._launching.forget(record)
            self._stay_alone()
            if not self._has_control:
                self.add(only=only)
            return
        for record in records:
            if record.outcome != "passed" and self._has_control and record is not found[0]:
                self.alone, self.most = record.reason, len(self)
                return
            if record.outcome != "passed":
                self.launches, self.others, self.controls = [record], [], []
                return
        for kept, record in zip((self.launches, self.others, self.controls), records, strict=False):
            kept.append(record)

    def _judge_skip(self, here: LaunchRecord) -> LaunchRecord:
        """Fail a launch of the candidate that skips, unless its base, launched once more alone, skips too."""
        there = self._launching.launch_other(self._variant, self._request, len(self.launches))
        if there.outcome != "passed":
            return here if there.outcome == "skipped" else there
        return replace(
            here, outcome="failed", reason=f"{here.reason}: it does not skip in {self._variant}, which judges"
        )

    def _stay_alone(self) -> None:
        self.alone, self.is_new = f"the test does not exist in {self._variant}", True
        self.most = 0 if self._has_control else 1


class Crossed(Source):
    """Pairs in one set of processes, and once :meth:`cross` is called in another one, each tree at the other's path.

    A slowdown by one process tree, or by the path of one checkout, does not recur in the second set. If that does not
    run, the first one goes on. ``close`` is called to end its processes.
    """

    def __init__(self, first: Source, second: Source | None, *, close: Callable[[], None]) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.is_crossed = False
        self.most = first.most
        self.takes_host = first.takes_host
        self._close = close

    def cross(self) -> None:
        if self.second is not None:
            self.is_crossed, self.second.before = True, len(self.first)

    @property
    def starts(self) -> Sequence[int]:
        return (0, len(self.first)) if self.is_crossed else (0,)

    def add(self, *, only: Sequence[str] = ()) -> None:
        if self.second is None or not self.is_crossed:
            self.first.add(only=only)
        else:
            count = len(self.second)
            with contextlib.suppress(LauncherError):
                self.second.add(only=only)
            if self.second.failed or len(self.second) == count:  # the next call goes on with the first set
                self.second, self.is_crossed = None, False
                self._close()
        parts = [self.first] if self.second is None or self.first.failed else [self.first, self.second]
        for number, side in enumerate(self.sides):
            side[:] = [launch for part in parts for launch in part.sides[number]]
        self.alone, self.is_new, self.most = self.first.alone, self.first.is_new, self.first.most


def alternate(sources: Sequence[Source], wanted: int) -> None:
    """Add launches, one of each source in turn, until every source has ``wanted`` whole ones.

    A number that is derived from consecutive launches is less noisy than one from launches a minute apart.
    """
    for number in range(1, wanted + 1):
        for source in sources:
            while len(source.whole) < number and len(source) < source.most:
                source.add()
                if source.failed:
                    raise SourceFailed(source)


Derivation = Callable[..., float | None]
"""Function that takes one :class:`Values` per run, of one launch each, and returns the derived number, or None."""


class Values(dict[str, float | None]):
    """Metric of a launch -> value, by name and point as in tables: ``latency[message_bytes=4096]``."""

    def __missing__(self, metric: str) -> float:
        raise KeyError(f"{metric!r} was not measured; there are {', '.join(self) or 'none'}")


class Made(Source):
    """Launches that were made already; there can be no more."""

    def __init__(self, launches: Sequence[LaunchRecord]) -> None:
        super().__init__()
        self.launches += launches
        self.most = len(launches)

    def add(self, *, only: Sequence[str] = ()) -> None:
        raise NotImplementedError


class GivenNumbers(Source):
    def __init__(self, metric: Sample, values: Sequence[float], software: Mapping[str, str]) -> None:
        super().__init__()
        self.most = len(values)
        self.alone = "the test computes it itself: give judge a function and of=, and both sides are computed"
        self.why_not_interleaved = self.alone
        self._metric = metric
        self._values = values
        self._software = dict(software)

    @property
    def may_be_repeated(self) -> bool:
        return False  # the test has computed them

    def add(self, *, only: Sequence[str] = ()) -> None:
        del only
        number = replace(self._metric, value=self._values[len(self)])
        self.launches.append(_launch(len(self), number, self._software))


class DerivedNumbers(Source):
    """A number that is derived from several runs, whose launches alternate.

    More launches of the runs are made if it needs them.
    """

    def __init__(self, metric: Sample, derive: Derivation, sources: Sequence[Source]) -> None:
        super().__init__()
        self._metric = metric
        self._derive = derive
        self._sources = sources
        self.alone = next((source.alone for source in sources if source.alone), "")
        self.why_not_interleaved = next((s.why_not_interleaved for s in sources if s.why_not_interleaved), "")
        self.most = min(source.most for source in sources)
        self.most_stored = min(source.most_stored for source in sources)
        self.most_open = min(source.most_open for source in sources)
        self.takes_host = any(source.takes_host for source in sources)

    @property
    def may_be_repeated(self) -> bool:
        return all(source.may_be_repeated for source in self._sources)

    @property
    def may_grow(self) -> bool:
        return all(source.may_grow for source in self._sources)

    def add(self, *, only: Sequence[str] = ()) -> None:
        del only
        number = len(self)
        alternate(self._sources, number + 1)
        if any(len(source.whole) <= number for source in self._sources):
            self.alone = next((source.alone for source in self._sources if source.alone), "")
            self.most = number
            return
        at = [source.whole[number] for source in self._sources]
        self.launches.append(self._of([s.launches[i] for s, i in zip(self._sources, at, strict=True)]))
        if not self.alone and all(source.others for source in self._sources):
            self.others.append(self._of([s.others[i] for s, i in zip(self._sources, at, strict=True)]))
        if not self.alone and all(source.controls for source in self._sources):
            self.controls.append(self._of([s.controls[i] for s, i in zip(self._sources, at, strict=True)]))

    def _of(self, launches: Sequence[LaunchRecord]) -> LaunchRecord:
        call, code = f"distbench.judge({self._metric.key!r})", getattr(self._derive, "__code__", None)
        line = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        try:
            found = self._derive(*(Values({m.key: m.value for m in launch.measurements}) for launch in launches))
        except Exception as error:
            where = line_of(error) or line
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise DerivationError(f"{call}: its function raised {type(error).__name__}: {text}{where}") from error
        number = None if found is None else as_float(found)
        if found is not None and (number is None or not abs(number) <= LARGEST_NUMBER):
            raise DerivationError(
                f"{call}: its function returned {show(found)}; wanted a finite number, or None for no value{line}"
            )
        counts = number is not None and (self._metric.is_judged or self._metric.bounds)
        if number is not None and counts and (why := why_impossible(number, self._metric.unit)):
            raise DerivationError(f"{call}: its function returned {show(found)}: {why}{line}")
        made = _launch(launches[0].index, replace(self._metric, value=number), launches[0].software)
        return replace(
            made,
            foreign_cores=_largest(launch.foreign_cores for launch in launches),
            foreign_wanted=_largest(launch.foreign_wanted for launch in launches),
            crowding=_largest(launch.crowding for launch in launches),
        )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _launch(index: int, number: Sample, software: Mapping[str, str]) -> LaunchRecord:
    return LaunchRecord(index=index, outcome="passed", wall_s=0.0, measurements=[number], software=dict(software))

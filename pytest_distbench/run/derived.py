"""Numbers that a test derives: of its own making, or made of several runs, launch by launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_distbench.errors import DerivationError, line_of, show
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import LARGEST_NUMBER, Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.run.samples import Samples, take_turns
from pytest_distbench.units import as_float, why_impossible

Derivation = Callable[..., float | None]
"""Called once per launch with one :class:`Values` per run that the number is made of; None: there is no value."""


class Values(dict[str, float | None]):
    """What one launch measured: metric -> value, by name and point as in tables: ``latency[message_bytes=4096]``."""

    def __missing__(self, metric: str) -> float:
        raise KeyError(f"{metric!r} was not measured; there are {', '.join(self) or 'none'}")


class GivenNumbers(Samples):
    """Numbers that a test gives, one per sample."""

    def __init__(self, metric: Measurement, values: Sequence[float], software: Mapping[str, str]) -> None:
        super().__init__()
        self.most = len(values)
        self.alone = "derived by the test: give judge a function and of=, and it is called for both sides"
        self.why_never_beside = self.alone
        self._metric = metric
        self._values = values
        self._software = dict(software)

    @property
    def may_be_repeated(self) -> bool:
        return False  # the test has made them of what it measured then

    def add(self, *, only: Sequence[str] = ()) -> None:
        del only
        number = replace(self._metric, value=self._values[len(self)])
        self.launches.append(_launch(len(self), number, self._software))


class DerivedNumbers(Samples):
    """A number made of several runs, whose launches are made in turns.

    It has at least one launch of each source; more are added where they are needed.
    """

    def __init__(self, metric: Measurement, derive: Derivation, sources: Sequence[Samples]) -> None:
        super().__init__()
        self._metric = metric
        self._derive = derive
        self._sources = sources
        self.alone = next((source.alone for source in sources if source.alone), "")
        self.why_never_beside = next((s.why_never_beside for s in sources if s.why_never_beside), "")
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
        """Add one."""
        del only
        number = len(self)
        take_turns(self._sources, number + 1)
        if any(len(source.whole) <= number for source in self._sources):
            self.alone = next((source.alone for source in self._sources if source.alone), "")
            self.most = number
            return
        at = [source.whole[number] for source in self._sources]
        self.launches.append(self._of([s.launches[i] for s, i in zip(self._sources, at, strict=True)]))
        if not self.alone and all(source.references for source in self._sources):
            self.references.append(self._of([s.references[i] for s, i in zip(self._sources, at, strict=True)]))
        if not self.alone and all(source.controls for source in self._sources):
            self.controls.append(self._of([s.controls[i] for s, i in zip(self._sources, at, strict=True)]))

    def _of(self, launches: Sequence[LaunchRecord]) -> LaunchRecord:
        value = self._value([Values({m.key: m.value for m in launch.measurements}) for launch in launches])
        made = _launch(launches[0].index, replace(self._metric, value=value), launches[0].software)
        return replace(
            made,
            foreign_cores=_largest(launch.foreign_cores for launch in launches),
            foreign_wanted=_largest(launch.foreign_wanted for launch in launches),
            crowding=_largest(launch.crowding for launch in launches),
        )

    @property
    def _line(self) -> str:
        """Where the function stands; empty where it is no Python function."""
        code = getattr(self._derive, "__code__", None)
        return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""

    def _value(self, values: Sequence[Values]) -> float | None:
        call = f"distbench.judge({self._metric.key!r})"
        try:
            found = self._derive(*values)
        except Exception as error:
            where = line_of(error) or self._line
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise DerivationError(f"{call}: its function raised {type(error).__name__}: {text}{where}") from error
        if found is None:
            return None
        number = as_float(found)
        if number is None or not abs(number) <= LARGEST_NUMBER:
            raise DerivationError(
                f"{call}: its function returned {show(found)}; wanted a finite number, or None for no value{self._line}"
            )
        if (self._metric.is_judged or self._metric.bounds) and (why := why_impossible(number, self._metric.unit)):
            raise DerivationError(f"{call}: its function returned {show(found)}: {why}{self._line}")
        return number


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _launch(index: int, number: Measurement, software: Mapping[str, str]) -> LaunchRecord:
    return LaunchRecord(index=index, outcome="passed", wall_s=0.0, measurements=[number], software=dict(software))

"""Samples: the launches of a case so far, alone or in pairs with those of a reference. ``derived`` has another kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_distbench.errors import BodyError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.run.pacing import Pacer

if TYPE_CHECKING:
    from pytest_distbench.run.against import Variant
    from pytest_distbench.run.launching import Launching


class Samples(ABC):
    """What a case is judged by.

    Attributes:
        launches: of this tree.
        references: of what it is compared with on the spot, as many; empty where that is nothing, or stored.
        controls: the same once more, to be compared with the references; empty where nobody asked for that.
        why_never_beside: why it cannot be run in turns with another revision, in a clause; empty: it can.
        alone: why there are no references although there should be; empty: there are.
        is_new: there are none because the reference does not have the test.
        most: the most samples there can be.
        most_stored: of them, the most that a baseline is worth, whatever their noise.
        most_open: of them, the most that an open answer is worth, unless the first look asks for more.
        open_s: an answer that is open gets more launches only while those so far took less.
        takes_host: they are measured on this host, so that one measurement at a time may run here.
    """

    def __init__(self) -> None:
        self.launches: list[LaunchRecord] = []
        self.references: list[LaunchRecord] = []
        self.controls: list[LaunchRecord] = []
        self.why_never_beside = ""
        self.alone = ""
        self.is_new = False
        self.most: float = math.inf
        self.most_stored: float = math.inf
        self.most_open: float = math.inf
        self.open_s: float = math.inf
        self.takes_host = False

    @property
    def may_grow(self) -> bool:
        """Whether an open answer is worth another sample."""
        took_s = sum(launch.wall_s for launch in [*self.launches, *self.references])
        return len(self) < self.most_open and took_s < self.open_s

    def __len__(self) -> int:
        return len(self.launches)

    @property
    def may_be_repeated(self) -> bool:
        """Whether more of them can be measured some time later."""
        return True

    @property
    def whole(self) -> list[int]:
        """Indices of the samples in which everything was measured."""
        return [i for i, launch in enumerate(self.launches) if not launch.only]

    @property
    def failed(self) -> LaunchRecord | None:
        """The launch that did not pass, after which there are no more."""
        last = self.launches[-1] if self.launches else None
        return last if last is not None and last.outcome != "passed" else None

    @abstractmethod
    def add(self, *, only: Sequence[str] = ()) -> None:
        """Add one sample, for the metrics that are still needed; none: all."""


class SampleFailed(Exception):
    """A launch did not pass, of samples that somebody else needs."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        self.samples = samples


class Launches(Samples):
    """Launches of this tree."""

    def __init__(self, launching: Launching, request: LaunchRequest, pacer: Pacer) -> None:
        super().__init__()
        self._launching = launching
        self._request = request
        self._pacer = pacer
        self.takes_host = launching.hosting(request.work).hosts == "one"

    def add(self, *, only: Sequence[str] = ()) -> None:
        self._pacer.wait_for_next(self.launches[-1] if self.launches else None)
        self.launches.append(self._launching.launch(self._request, len(self.launches), only=only))


class PairedLaunches(Samples):
    """Launches of this tree and of a reference, side by side; and, with a control, of the reference once more.

    With a control a reference that fails ends the samples, and is no failure of the case: ``alone`` says why.
    """

    def __init__(
        self, launching: Launching, request: LaunchRequest, variant: Variant, *, has_control: bool = False
    ) -> None:
        super().__init__()
        self._launching = launching
        self._request = request
        self._variant = variant
        self._has_control = has_control
        self.takes_host = launching.hosting(request.work).hosts == "one"

    def add(self, *, only: Sequence[str] = ()) -> None:
        if not self.alone and not self._launching.reference(self._variant).has(self._request.work):
            self._stay_alone()
        if self.alone and self._has_control:
            return
        if self.alone:
            self.launches.append(self._launching.launch(self._request, len(self.launches), only=only))
            return
        found = self._launching.launch_beside(
            self._variant, self._request, len(self.launches), only=only, times=1 + self._has_control
        )
        records = [record for record in found if record is not None]
        bodiless = [record for record in found[1:] if record is not None and _has_no_body(record)]
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
                self.launches, self.references, self.controls = [record], [], []
                return
        for kept, record in zip((self.launches, self.references, self.controls), records, strict=False):
            kept.append(record)

    def _stay_alone(self) -> None:
        """A test that the reference does not have is run once: it has to work, and shows its numbers."""
        self.alone, self.is_new = f"the test does not exist in {self._variant}", True
        self.most = 0 if self._has_control else 1


def take_turns(sources: Sequence[Samples], wanted: int) -> None:
    """Add samples, one of each source and then one of each again, until every source has so many whole ones.

    Neighbours in time make a number derived from them quieter than launches that a minute lies between.
    """
    for number in range(1, wanted + 1):
        for source in sources:
            while len(source.whole) < number and len(source) < source.most:
                source.add()
                if source.failed:
                    raise SampleFailed(source)


def _has_no_body(launch: LaunchRecord) -> bool:
    """Whether ranks found no body of that name in the file."""
    return any(fate.error is not None and fate.error.kind == BodyError.__name__ for fate in launch.fates)

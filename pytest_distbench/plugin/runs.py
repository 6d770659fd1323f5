"""Run: what one ``distbench.run`` or ``measure`` found, as a test sees it."""

from __future__ import annotations

from collections.abc import Callable

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult, Verdict
from pytest_distbench.run.samples import Samples


class Run:
    """What one ``distbench.run``, ``measure`` or ``judge`` found.

    Of a run that was only measured the launches that were asked for are made when ``result`` is first called, in turns
    with those of the other measured runs of the test.
    """

    def __init__(self, samples: Samples, result: Callable[[], CaseResult]) -> None:
        self.samples = samples
        self._result = result

    @property
    def result(self) -> CaseResult:
        """Launches and verdicts as records."""
        return self._result()

    @property
    def launches(self) -> list[LaunchRecord]:
        """One record per process group."""
        return self.result.launches

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Verdict per metric key; empty after ``measure``."""
        return {v.metric: v for v in self.result.verdicts}

    def values(self, metric: str) -> list[float | None]:
        """The metric's value in each launch.

        Raises:
            KeyError: no such metric; the message lists those there are.
        """
        launches = self.launches
        found = [m.value for launch in launches for m in launch.measurements if m.key == metric]
        if not found:
            known = sorted({m.key for launch in launches for m in launch.measurements})
            raise KeyError(f"{metric!r} was not measured; there are {', '.join(known)}")
        return found

"""How long a run will take, before it begins: from what the launches of its tests took when baselines were measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_distbench.records.case import CaseKey
from pytest_distbench.store.baselines import BaselineStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of a run.

    Attributes:
        tests: that will be measured.
        unknown: of them, those of which no baseline tells how long they take.
        seconds: all of them take, the unknown ones as long as the others do on average; None: nothing is known.
        elsewhere: of them, those known from another class of machines only.
    """

    tests: int
    unknown: int = 0
    seconds: float | None = None
    elsewhere: int = 0


def estimate(store: BaselineStore, tests: Iterable[tuple[str, str, str]], *, launcher: str, launches: int) -> Estimate:
    """Add up what baselines tell.

    Args:
        store: of this class of machines; those of others in its folder are asked where it knows nothing.
        tests: path and function, id, and backend of each.
        launcher: that will start the ranks.
        launches: of each case, if nothing is open.
    """
    known: list[float] = []
    unknown = elsewhere = 0
    others = [BaselineStore(store.folder, name) for name in store.platforms() if name != store.platform]
    for test, case_id, backend in tests:
        here = _seconds(store, test, case_id, backend, launcher)
        there = here or next(filter(None, (_seconds(o, test, case_id, backend, launcher) for o in others)), None)
        if there is None:
            unknown += 1
            continue
        known.append(there)
        elsewhere += here is None
    mean = sum(known) / len(known) if known else 0.0
    return Estimate(
        tests=len(known) + unknown,
        unknown=unknown,
        seconds=launches * (sum(known) + unknown * mean) if known else None,
        elsewhere=elsewhere,
    )


def _seconds(store: BaselineStore, test: str, case_id: str, backend: str, launcher: str) -> float | None:
    """One launch of each case of a test; None where nothing is stored that tells."""

    def is_wanted(text: str) -> bool:
        key = CaseKey.parse(text)
        return key.backend == backend and key.launcher == launcher and case_id in key.test_ids

    found = [entry.launch_s for entry in store.entries(test, wanted=is_wanted).values()]
    return sum(s for s in found if s is not None) if any(found) else None

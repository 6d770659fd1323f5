"""Reach: for which metrics of a case nothing that could have been measured would have turned red. Pure, no I/O."""

from __future__ import annotations

from pytest_distbench.judging.software import version_changes
from pytest_distbench.judging.stats import BLIND_LIMIT
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import format_change

_PASSING = ("unchanged", "improved", "drifted")


def out_of_reach(result: CaseResult) -> list[tuple[Verdict, str]]:
    """The metrics that passed and could not have failed, and why, in a clause.

    Of a noisy one that is so where its rule sees no doubling; of one that is equal or not, where the software is
    another one; of one that is judged over seeds, where besides there is one seed. A bound can fail all the same.
    """
    changed = result.reference.software and version_changes(result.reference.software, result.environment.software)
    found = []
    for verdict in result.verdicts:
        if verdict.kind not in _PASSING or not METRIC_KINDS[verdict.better].is_judged or verdict.bounds:
            continue
        if why := _why(verdict, other_software=", ".join(changed or ())):
            found.append((verdict, why))
    return found


def _why(verdict: Verdict, *, other_software: str) -> str:
    kind = METRIC_KINDS[verdict.better]
    if kind.is_noisy:
        seen = verdict.detectable
        is_blind = seen is not None and seen > BLIND_LIMIT
        return f"no slowdown below {format_change(1 + (seen or 0.0))} would have been red" if is_blind else ""
    if not other_software or verdict.name == "fingerprint":
        return ""
    if kind.rule == "exact":
        return f"an exact number is not comparable under other software ({other_software})"
    if kind.rule in ("steps", "floor", "same") and "seeds" not in verdict.facts:
        return f"one seed tells nothing under other software ({other_software})"
    return ""

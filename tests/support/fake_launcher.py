"""A launcher without processes: it writes the rank reports that ``params["fake"]`` describes.

``params["fake"]`` maps a metric's name (or ``name@seed``, and ``!better`` where it is no time) to its value in each
launch. FAKE_FACTOR in the environment multiplies times and curves, so that a second run of the same test can differ.
FAKE_COLLECTIVES, for example ``2x26214400``, gives the metric ``step`` a fingerprint of so many all_reduce of so many
bytes. FAKE_ERROR is what ranks raise, as "message" or "kind:message"; FAKE_REFERENCE_FACTOR and FAKE_REFERENCE_ERROR
are those of another revision.
"""

from __future__ import annotations

import importlib
import os
import time

import msgspec

from pytest_distbench.launch.contract import Exit
from pytest_distbench.records.fingerprint import Collective, RankFingerprint
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import ErrorReport, RankReport

SOFTWARE = {"python": "3.11", "torch": "2.13.0", "numpy": "2", "cpu_capability": "AVX2", "threads": "1"}


class FakeLaunch:
    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.close(write)

    def fileno(self) -> int:
        return self._read

    def poll(self) -> Exit:
        os.close(self._read)
        return Exit(codes={})

    def pids(self) -> dict[int, int]:
        return {}

    def abandon(self) -> None:
        pass


class FakeLauncher:
    name = "warm"
    session = "fake"

    def prepare(self, variables: dict[str, str]) -> None:
        pass

    def start(self, plan: LaunchPlan) -> FakeLaunch:
        for rank in range(plan.world_size):
            report = _report(plan, rank)
            plan.files.report(rank).write_bytes(msgspec.json.encode(report))
        return FakeLaunch()

    def leftovers(self) -> list[object]:
        return []

    def close(self) -> None:
        pass


def _report(plan: LaunchPlan, rank: int) -> RankReport:
    side = "REFERENCE_" if plan.tree else ""
    factor = float(os.environ.get(f"FAKE_{side}FACTOR", "1"))
    software = {**SOFTWARE, **dict(pair.split("=") for pair in os.environ.get("FAKE_SOFTWARE", "").split() if pair)}
    kind, _, failing = os.environ.get(f"FAKE_{side}ERROR", "").rpartition(":")
    observations = []
    for name, values in plan.params.get("fake", {}).items():
        name, _, better = name.partition("!")
        name, _, seed = name.partition("@")
        value = values[plan.index % len(values)] if isinstance(values, list) else values
        if value is not None and not better:
            value *= factor
        if better == "curve":
            value = [v * factor for v in value]
        observations.append(
            Observation(
                name=name,
                unit="" if better else "s",
                better=better or "lower",
                reduce="max",
                values=value if isinstance(value, list) else [] if value is None else [value],
                is_series=isinstance(value, list),
                at={"seed": int(seed)} if seed else {},
            )
        )
    now = time.monotonic()
    return RankReport(
        rank=rank,
        pid=1,
        outcome="failed" if failing else "passed",
        phase="body",
        phases={"begin": now, "end": now, "body": 0.0},
        error=ErrorReport(kind=kind or "ValueError", message=failing, traceback=f"ValueError: {failing}", raised_at=now)
        if failing
        else None,
        observations=observations,
        fingerprints=_fingerprints(os.environ.get("FAKE_COLLECTIVES", "")),
        software=software if rank == 0 else {},
    )


def _fingerprints(text: str) -> dict[str, RankFingerprint]:
    if not text:
        return {}
    count, size = (int(part) for part in text.split("x"))
    return {"step": RankFingerprint(collectives=[Collective("all_reduce", "float32", size, "default", count)])}


def install() -> None:
    """Put the fake in the place of the warm launcher, for this process; nobody has to wait for a machine."""
    importlib.import_module("pytest_distbench.run.pacing").SPACING_S = 0.0
    importlib.import_module("pytest_distbench.run.launching").LAUNCHERS.update(
        warm=lambda launching: FakeLauncher(), reference=lambda launching: FakeLauncher()
    )

"""Rounds of made-up noise of known size, and what is found in them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from pytest_distbench.commands.calibrate import analyse
from pytest_distbench.records.calibration import Calibration
from pytest_distbench.records.case import Case
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult, ReferenceRecord
from pytest_distbench.records.verdict import Verdict
from support.cases import ON_TWO

SEED = 7


def logs(rounds: list[list[float]]) -> list[list[float]]:
    return [[math.log(value) for value in values] for values in rounds]


def drawn(rounds: int, launches: int, *, sigma: float, drift: float = 0.0, seed: int = SEED) -> list[list[float]]:
    """Log-normal values around 1 ms."""
    made = random.Random(seed)
    offsets = [made.gauss(0, drift) for _ in range(rounds)]
    return [[1e-3 * math.exp(offset + made.gauss(0, sigma)) for _ in range(launches)] for offset in offsets]


def case_result(values: dict[str, Sequence[float]], *, test: str = "test_a", better: Better = "lower") -> CaseResult:
    """One round of a case: metric -> value of each launch."""
    keys = list(values)
    return CaseResult(
        nodeid=f"{test}.py::{test}",
        case=Case(
            test=f"{test}.py::{test}",
            id="",
            conditions=ON_TWO,
            device="cpu",
        ),
        environment=Environment(platform="cpu-x-2c", device="x", cores=2, software={"torch": "2.13.0"}),
        launches=[
            LaunchRecord(
                index=i,
                outcome="passed",
                wall_s=0.25,
                measurements=[Measurement(name=key, unit="s", better=better, value=values[key][i]) for key in keys],
            )
            for i in range(len(values[keys[0]]))
        ],
        verdicts=[Verdict(metric=key, kind="missing", unit="s", better=better) for key in keys],
        reference=ReferenceRecord(kind="stored"),
    )


def calibration(rounds: Sequence[Sequence[float]], *, tolerance: float = 0.1) -> Calibration:
    return analyse([[case_result({"step": values})] for values in rounds], tolerance=tolerance, duration_s=12.0)

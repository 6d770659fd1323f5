"""What becomes of the metrics of two revisions that ran in pairs."""

from __future__ import annotations

import pytest
from support.cases import ON_TWO

from pytest_distbench.judging.pairs import judge_paired, not_there
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case
from pytest_distbench.records.fingerprint import Collective, Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.verdict import Verdict

SOFTWARE = {"python": "3.11", "torch": "2.13.0"}
CASE = Case(
    test="test_a.py::test_b",
    id="ws2",
    conditions=ON_TWO,
    device="cpu",
)
TERMS = Terms(default_tolerance=0.1, max_launches=10, cores=2)


def number(name: str, value: float, better: Better = "lower", **more: object) -> Measurement:
    return Measurement(name=name, unit="s", better=better, value=value, **more)  # type: ignore[arg-type]


def curve(*losses: float) -> Measurement:
    return number("loss_curve", losses[-1], "curve", series=list(losses), at={"seed": 0})


def launches(*measurements: Measurement, bytes_sent: int = 4096) -> list[LaunchRecord]:
    prints = {"step": Fingerprint(collectives={"all": [Collective("all_reduce", "float32", bytes_sent, "default", 2)]})}
    return [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=list(measurements),
            fingerprints=prints,
            software=SOFTWARE,
        )
        for i in range(5)
    ]


def judged(references: list[LaunchRecord], current: list[LaunchRecord]) -> dict[str, Verdict]:
    judgements = judge_paired(
        TERMS, CASE, references, current, tolerance_of=lambda metric: 0.05, looks=(5, 10), cases=1
    )
    return {j.verdict.metric: j.verdict for j in judgements}


@pytest.mark.parametrize("better", METRIC_KINDS)
def test_a_test_that_the_reference_has_not_is_missing_there_whatever_it_records(better: Better) -> None:
    [launch, *_] = launches(number("w", 1.0, better))
    [verdict] = not_there(TERMS, launch, "the test does not exist in HEAD")

    wanted = (
        ("missing", "the test does not exist in HEAD") if verdict.is_judged else ("unchanged", "recorded, not judged")
    )
    assert (verdict.kind, verdict.reason) == wanted


def test_what_only_the_reference_records_is_lost() -> None:
    references = launches(number("step", 1.0), number("gone", 1.0), curve(2.0, 1.0))
    found = judged(references, launches(number("step", 1.0)))

    assert {name: v.kind for name, v in found.items()} == {
        "step": "unchanged",
        "gone": "lost",
        "loss_curve[seed=0]": "lost",
        "fingerprint": "unchanged",
    }


def test_a_training_is_compared_with_the_references_curve() -> None:
    references = launches(curve(2.003, 1.507, 1.009))

    assert judged(references, launches(curve(2.003, 1.507, 1.009)))["loss_curve[seed=0]"].kind == "unchanged"
    assert judged(references, launches(curve(2.003, 1.6, 1.2)))["loss_curve[seed=0]"].kind == "regressed"


def test_a_changed_fingerprint_is_seen_in_pairs_too() -> None:
    found = judged(launches(number("step", 1.0)), launches(number("step", 1.0), bytes_sent=8192))

    assert found["fingerprint"].kind == "changed"


def test_the_quieter_witnesses_stand_beside_the_clock() -> None:
    found = judged(
        launches(number("step", 1.0, companions={"cpu_s": 0.5})),
        launches(number("step", 2.0, companions={"cpu_s": 1.5})),
    )

    assert found["step"].kind == "regressed"
    assert found["step"].companions == {"cpu_s": (0.5, 1.5)}

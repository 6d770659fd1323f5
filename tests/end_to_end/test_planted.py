"""Faults planted in a real training on two ranks, each found in one launch. planted_faults.py plants all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cases import ON_TWO
from support.launching import Launch, MadeLauncher

from pytest_distbench.judging.case import judge_launches
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import Verdict

CASE = Case(test="t.py::t", id="ws2", conditions=ON_TWO, device="cpu")
TERMS = Terms(default_tolerance=1.0, max_launches=1, cores=2)


@pytest.mark.spawn
def test_one_launch_finds_the_weakest_fault_names_its_step_and_lets_rounding_pass(
    made_launcher: MadeLauncher, tmp_path: Path
) -> None:
    import planted  # and with it scikit-learn: seconds, in every process that collects these tests

    launcher = made_launcher("warm", preload=["sklearn.datasets"])  # else each rank imports it
    launch = Launch(launcher, tmp_path, Path(planted.__file__))

    def train(fault: str) -> LaunchRecord:
        record = launch("train", variables={planted.VARIABLE: fault, planted.STEPS_VARIABLE: "24"})
        assert record.outcome == "passed", record.reason
        return record

    healthy = train("healthy")
    entry = make_entry(CASE, [healthy], healthy.software)

    def judged(fault: str) -> dict[str, Verdict]:
        judgements = judge_launches(TERMS, [train(fault)], entry, case=CASE, comparisons=1)
        return {j.verdict.metric: j.verdict for j in judgements if j.verdict.unit != "s"}

    again = judged("healthy")
    slower = judged("LR x 0.9")["loss_curve"]
    plain = judged("momentum missing")["loss_curve"]
    rounded = judged("bf16 gradients")

    assert {v.kind for v in again.values()} == {"unchanged"}
    assert again["mean_loss"].limit == 0.0  # compared exactly
    assert (slower.kind, slower.facts["departs_at_step"]) == ("regressed", 2)
    assert (plain.kind, plain.facts["departs_at_step"]) == ("regressed", 3)
    assert rounded["loss_curve"].kind == "drifted"
    assert "regressed" not in {v.kind for v in rounded.values()}

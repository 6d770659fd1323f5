"""Faults planted in a real training on two ranks, each found in one launch. planted_faults.py plants all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import Launch

from pytest_distbench.judging.case import judge_launches
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.terms import Terms
from pytest_distbench.launch.contract import Launcher
from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.records.case import Case, CaseKey
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.verdict import Verdict

CASE = Case(test="t.py::t", key=CaseKey(case_id="ws2", backend="gloo", launcher="warm"), world_size=2, device="cpu")
TERMS = Terms(default_tolerance=1.0, max_launches=1, cores=2)


@pytest.fixture
def digits_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A warm launcher whose ranks need not import scikit-learn each."""
    made = WarmLauncher(tmp_path_factory.mktemp("agent"), uuid.uuid4().hex, ("sklearn.datasets",))
    yield made
    made.close()


@pytest.mark.spawn
def test_one_launch_finds_the_weakest_fault_names_its_step_and_lets_rounding_pass(
    digits_launcher: Launcher, tmp_path: Path
) -> None:
    import planted  # and with it scikit-learn: seconds, in every process that collects these tests

    launch = Launch(digits_launcher, tmp_path, Path(planted.__file__))

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

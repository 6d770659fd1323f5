"""Layouts on real ranks: what is equal passes, and what is not is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import RunInside
from support.processes import LIMIT_S

from pytest_distbench.records.metric import TOLD
from pytest_distbench.store.files import read_run_record

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

FAULTY = Path(__file__).parents[3] / "benchmarks" / "equivalence" / "faulty.py"

SOUND = ["tensor_parallel", "reshard_from_one", "parts of the sequence"]
WRONG = {
    "one bias not synchronised": "ranks hold different gradients, so it was not reduced",
    "weights saved in bf16": "before step 3 deviates first, with 28 others of 29: check what was saved and loaded",
    "a stage clips by its own norm": "its gradient is right, so check clipping, the optimizer and its schedule",
    "DP ranks drop out the same units": "ranks 0 and 1 have other samples, and the same random numbers for dropout",
}

BROKEN = """
import dataclasses, sys
sys.path.insert(0, {folder!r})
import faulty
import torch

still = dataclasses.replace(faulty.gpt, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
frozen = dataclasses.replace(faulty.gpt, loss=lambda scores, targets: 0 * scores.sum() + targets.sum() / 64)
bare = dataclasses.replace(faulty.gpt, tensor_parallel=None)
plain = dataclasses.replace(faulty.gpt, tensor_parallel=lambda model: {{}})
number = 7
"""
REFUSED = {
    ("still", "ddp"): "nothing is trained, so under any layout it is equal: on one rank no weight changes",
    ("frozen", "ddp"): "nothing is trained, so under any layout it is equal: on one rank every gradient is 0",
    ("bare", "tensor_parallel"): "this layout needs TrainSpec(tensor_parallel=...)",
    ("plain", "tensor_parallel"): "no rank sent all_reduce in a step, as it should; they sent nothing",
    ("number", "ddp"): "wanted a TrainSpec, found 7",
    ("still", "dpp"): "unknown layout 'dpp': known are one, ddp, accumulation",
}


def test_what_is_equal_passes_and_what_is_not_is_named(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.parametrize("layout", {[*SOUND, *WRONG]!r})
        def test_layout(equivalent, layout):
            equivalent("{FAULTY}::gpt", layout)
    """)
    run_inside("--world-size=2", "--distbench-json=run.json").assert_outcomes(passed=len(SOUND), failed=len(WRONG))
    results = {result.case.params["layout"]: result for result in read_run_record(pytester.path / "run.json").results}
    told = {
        name: [str(m.facts[TOLD]) for m in result.launches[0].measurements if TOLD in m.facts]
        for name, result in results.items()
    }

    assert {name: told[name] for name in SOUND} == {name: [] for name in SOUND}
    for name, sentence in WRONG.items():
        [found] = told[name]
        assert sentence in found


def test_what_proves_nothing_is_refused(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(trainings=BROKEN.format(folder=str(FAULTY.parent)))
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.parametrize(("row", "layout"), {list(REFUSED)!r})
        def test_layout(equivalent, row, layout):
            equivalent(f"trainings.py::{{row}}", layout)
    """)
    found = run_inside("--world-size=2")

    found.assert_outcomes(failed=len(REFUSED))
    for sentence in REFUSED.values():
        assert sentence in found.stdout.str()


SIMULATED = {
    "tensor_parallel": "",
    "one flat buffer": "",
    "nothing synchronised": "ranks hold different gradients, so it was not reduced",
    "TP gradient scaled by its size": "4 times that of one rank",
    "one rank skips a step": "a layout that asks which rank it is needs real ranks",
    "gradients summed": "DDP, FSDP2, a pipeline and parts of unequal size need real ranks",
    "fsdp2": "torch cannot simulate its ranks: leave simulated_ranks= out",
}


def test_one_process_simulates_ranks(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.parametrize("layout", {list(SIMULATED)!r})
        def test_layout(equivalent, layout):
            equivalent("{FAULTY}::gpt", layout, simulated_ranks=4)
    """)
    found = run_inside()
    text = " ".join(found.stdout.str().split())
    if "this torch has no LocalTensorMode" in text:
        pytest.skip("this torch has no LocalTensorMode")

    found.assert_outcomes(passed=2, failed=len(SIMULATED) - 2)
    for sentence in SIMULATED.values():
        assert sentence in text

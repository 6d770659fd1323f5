"""The same training under every layout: no different from one rank by more than roundings."""

import os
import shutil

import pytest

NUMBERS = ["loss_curve", "loss_deviation", "gradient_deviation", "state_deviation", "random_conflicts", "held_bytes"]
pytestmark = [
    pytest.mark.world_size(min=2),
    pytest.mark.distbench(metrics=[*NUMBERS, "share", "fingerprint"]),  # the clock of so small a network says nothing
]

SHARED = ["ddp", "accumulation", "checkpointing", "compiled", "fsdp2", "pipeline", "resume"]
RESHARDED = ["reshard_to_one", "reshard_from_one"]
INDUCTOR = pytest.param("inductor", marks=pytest.mark.full)


@pytest.fixture
def layout(request, distbench):
    """The name of a layout; the test is skipped where this machine or its ranks have no place for it."""
    if request.param == "inductor" and distbench.device == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        pytest.skip("not available: no C++ compiler for inductor")
    if request.param == "pipeline" and distbench.world_size > 2:
        pytest.skip("two blocks make two stages")
    return request.param


@pytest.mark.parametrize("layout", [*SHARED, "tensor_parallel", *RESHARDED, INDUCTOR], indirect=True)
def test_gpt(equivalent, layout):
    equivalent("gpt.py::gpt", layout)


def test_sequence_parallel(equivalent):
    """Tensor parallelism whose norms have a part of the sequence each."""
    equivalent("gpt.py::gpt_in_sequence", "tensor_parallel")


@pytest.mark.parametrize("layout", SHARED, indirect=True)
def test_convolutional(equivalent, layout):
    equivalent("convolutional.py::net", layout)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["ddp", "fsdp2", "pipeline"], indirect=True)
def test_precision(equivalent, layout, precision):
    """Under autocast; in float16 the loss is scaled."""
    equivalent("gpt.py::gpt", layout, precision=precision)


def test_fsdp2_holds_a_part(equivalent, distbench):
    """Of parameters and optimizer state each rank has its share, within what padding costs."""
    ddp, fsdp2 = (equivalent("gpt.py::gpt", layout, name=layout) for layout in ("ddp", "fsdp2"))

    distbench.judge(
        "share",
        lambda one, other: other["held_bytes"] / one["held_bytes"],
        of=[ddp, fsdp2],
        better="info",
        at_most=1.1 / distbench.world_size,
    )


@pytest.mark.parametrize("training", ["gpt", "gpt_in_sequence"])
def test_simulated(equivalent, training):
    """Tensor parallelism on eight ranks that one process simulates."""
    equivalent(f"gpt.py::{training}", "tensor_parallel", simulated_ranks=8)

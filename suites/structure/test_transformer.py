"""What a training sends and holds, and how that grows with the ranks: ``--world-size 8,64 --distbench-backend fake``.

One process stands for a rank there; no GPU and no second core is needed. On real ranks with gloo the same is judged,
and no clock: those of so small a model would say nothing.
"""

import pytest

STRUCTURE = ["fingerprint", "collectives", "sent_bytes", "parameter_bytes", "optimizer_bytes"]


@pytest.mark.distbench(metrics=STRUCTURE)
@pytest.mark.world_size(min=2)
@pytest.mark.parametrize("way", ["ddp", "fsdp", "tp"])
def test_transformer(distbench, way):
    """Collectives, bytes, order and groups of a step, parameters and optimizer state of a rank: all exact."""
    if distbench.device == "cuda":
        pytest.skip("structure needs no GPU: what is sent is the same with gloo, and with --distbench-backend fake")
    if way == "tp" and distbench.world_size % 2:
        pytest.skip("two ranks share the parts of tensor parallelism")
    distbench.run("transformer.py::train", params={"way": way})


@pytest.mark.world_size(min=4)
def test_fsdp_shards_shrink(distbench):
    """Twice the ranks, half the parameters in each, within what padding costs; and as many collectives."""
    if distbench.backend != "fake":
        pytest.skip("how it grows is seen in one process: --distbench-backend fake")
    ranks = distbench.world_size
    half = distbench.measure("transformer.py::train", params={"way": "fsdp"}, world_size=ranks // 2, name="half")
    full = distbench.measure("transformer.py::train", params={"way": "fsdp"}, world_size=ranks, name="full")
    held, calls = "parameter_bytes[of=step]", "collectives[of=step]"
    distbench.judge(
        "share", lambda a, b: b[held] / a[held], of=[half, full], better="info", at_least=0.49, at_most=0.52
    )
    distbench.judge("more_calls", lambda a, b: b[calls] - a[calls], of=[half, full], better="info", at_most=0)

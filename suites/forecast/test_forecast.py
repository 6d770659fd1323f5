"""A step of the transformer on up to 4,096 GPUs: what it would take on the cluster that ``cluster=`` describes.

Nothing is timed, so its baselines are for every machine: ``--distbench-platform any``.
"""

import pytest

pytestmark = pytest.mark.world_size(1)  # of the process; those of the forecast are in worlds=

WORLDS = [1, 8, 64, 1024, 4096]


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_transformer(forecast, way):
    """Data parallelism: each rank has the same batch, so its computing stays, and communication grows."""
    forecast("../structure/transformer.py::train", worlds=WORLDS, cluster="h100-ib400", params={"way": way})


def test_tensor_parallel(forecast):
    """Pairs of ranks share the matrices."""
    forecast("../structure/transformer.py::train", worlds=WORLDS[1:], cluster="h100-ib400", params={"way": "tp"})

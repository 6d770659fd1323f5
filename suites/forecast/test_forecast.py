"""A step of a GPT on up to 4,096 GPUs: what it would take on the cluster that ``cluster=`` describes.

Nothing is timed, so its baselines are for every machine: ``--distbench-platform any``.
"""

import pytest

pytestmark = pytest.mark.world_size(1)  # of the process; those of the forecast are in worlds=

WORLDS = [8, 64, 1024, 4096]


@pytest.mark.parametrize("way", ["ddp", "fsdp", *(pytest.param(way, marks=pytest.mark.full) for way in ("hsdp", "tp"))])
def test_weak_scaling(forecast, way):
    """Each rank has the same number of samples."""
    params = {"way": way, "samples": 4, "is_weak": True}
    forecast(
        "gpt.py::train",
        worlds=[1, *WORLDS] if way in ("ddp", "fsdp") else WORLDS,
        cluster="h100-ib400",
        params=params,
        fake_tensors=way != "ddp",
    )


@pytest.mark.full
def test_strong_scaling(forecast):
    """All ranks together have the same number of samples, so that each computes less."""
    params = {"way": "fsdp", "samples": 4096, "is_weak": False}
    forecast("gpt.py::train", worlds=WORLDS[1:], cluster="h100-ib400", params=params, fake_tensors=True)

"""How efficient are n workers compared with one? The tables of reports 001 and 003.

``pytest suites/scaling --world-size 2 --distbench-json run.json``, then ``distbench report run.json --table scaling``
(workers, computation to communication, speed, speedup, efficiency) and ``--table phases`` (where a step goes). On CPUs
images of 32 x 32 pixels and small batches; on GPUs what the reports had.
"""

import pytest

pytestmark = pytest.mark.world_size(min=2)
LONG = pytest.mark.full
TRAIN = "convolutional.py::train"


def batch_for(distbench, on_cpus, on_gpus):
    """Samples of a step, of a worker or of all."""
    return on_gpus if distbench.device == "cuda" else on_cpus


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        pytest.param("mobilenet_v2", 8, id="mobilenet_v2"),
        pytest.param("resnet50", 8, id="resnet50", marks=LONG),
        pytest.param("autoencoder", 4, id="autoencoder", marks=LONG),
        pytest.param("vgg16", 8, id="vgg16", marks=LONG),
    ],
)
def test_weak(scaling, distbench, tolerance, model, batch):
    """As many samples for each worker: 001's scaling efficiency, and 003's three models."""
    scaling(TRAIN, mode="weak", params={"model": model, "batch": batch_for(distbench, batch, 64)}, tolerance=tolerance)


@LONG
def test_strong(scaling, distbench, tolerance):
    """As many samples for all workers together: 001's final accuracies were trained so."""
    params = {"model": "mobilenet_v2", "batch": batch_for(distbench, 32, 256)}
    scaling(TRAIN, mode="strong", params=params, tolerance=tolerance)


@LONG
def test_packed(scaling, distbench, tolerance):
    """Gradients are sent in half precision: 001's "pack"."""
    params = {"model": "mobilenet_v2", "compression": "fp16", "batch": batch_for(distbench, 16, 64)}
    scaling(TRAIN, mode="weak", params=params, tolerance=tolerance)


@LONG
def test_task(scaling, distbench, tolerance):
    """Gradients are sent behind the backward pass, as 003's were: its times of a task, all_reduce and copy apart."""
    params = {"model": "mobilenet_v2", "overlap": "off", "batch": batch_for(distbench, 8, 64)}
    scaling(TRAIN, mode="weak", params=params, tolerance=tolerance)


@LONG
def test_gpt(scaling, tolerance):
    """Tokens instead of images: on GPUs GPT-2's smallest, on CPUs 0.8 million parameters."""
    scaling(TRAIN, mode="weak", params={"model": "gpt", "batch": 8}, tolerance=tolerance)

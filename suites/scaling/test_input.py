"""What a training can do, and what its input lets it do: one batch made once, files that are generated, real ones.

On 1, 2, 4, ... workers: report 001's scaling with synthetic and with real data, ``distbench report run.json --table
scaling``, a row for each kind of data and number of workers.
"""

import pytest

ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


@pytest.mark.full
@pytest.mark.world_size(min=2)
@pytest.mark.parametrize("kind", ["synthetic", "generated", "real"])
def test_input(scaling, distbench, tolerance, kind):
    """A small convolutional network: time per step with its parts, samples per second, and the wait for the loader."""
    if kind == "real" and not distbench.data:
        pytest.skip(f"not run: needs CIFAR-10; unpack {ARCHIVE} in a folder, and give --distbench-data FOLDER")
    storage = distbench.data if kind == "real" else None
    batch = 256 if distbench.device == "cuda" else 16
    params = {"kind": kind, "storage": storage, "batch": batch}
    scaling("reading.py::train", mode="weak", params=params, tolerance=tolerance)

"""What a training can do, and what its input lets it do: one batch made once, files that are generated, real ones."""

import pytest

ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


@pytest.mark.full
@pytest.mark.distbench(takes="2.5 s")
@pytest.mark.parametrize("kind", ["synthetic", "generated", "real"])
def test_input(distbench, tolerance, kind):
    """A small convolutional network: time per step with its parts, samples per second, and the wait for the loader."""
    if kind == "real" and not distbench.data:
        pytest.skip(f"not run: needs CIFAR-10; unpack {ARCHIVE} in a folder, and give --distbench-data FOLDER")
    storage = distbench.data if kind == "real" else None
    distbench.run("reading.py::train", params={"kind": kind, "storage": storage}, tolerance=tolerance)

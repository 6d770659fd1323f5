import pytest

from pytest_distbench.read import stdout


@pytest.mark.distbench(metrics=["loss"])
def test_train(distbench):
    distbench.run("train.py", read={"loss": stdout(r"loss ([\d.]+)", better="curve", first=10)})

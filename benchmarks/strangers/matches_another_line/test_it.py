import pytest

from pytest_distbench.read import stdout


@pytest.mark.distbench(metrics=["step"])
def test_it(distbench):
    distbench.run("train.py", read={"step": stdout(r"(\S+) ms", scale=1e-3, unit="s", better="lower")})

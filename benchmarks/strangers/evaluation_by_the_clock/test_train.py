"""A script whose steps hang on time and chance: there is nothing wrong with it."""

import pytest


@pytest.mark.distbench(metrics=["fingerprint"])
def test_train(distbench):
    distbench.run("train.py")

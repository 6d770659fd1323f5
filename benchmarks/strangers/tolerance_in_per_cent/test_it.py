import os

import pytest


def body(rank):
    rank.record("accuracy", 0.9, better="higher")


@pytest.mark.distbench(tolerance=10 if os.environ.get("PLANTED") else 0.1)
def test_it(distbench):
    distbench.run(body)

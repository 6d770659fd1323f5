import os


def body(rank):
    rank.record("t", 0.0 if os.environ.get("PLANTED") else 0.025, unit="s", better="lower")


def test_it(distbench):
    distbench.run(body)

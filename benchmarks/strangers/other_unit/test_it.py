import os


def body(rank):
    rank.record("wait", 5.0, unit="ms" if os.environ.get("PLANTED") else "s", better="lower")


def test_it(distbench):
    distbench.run(body)

import os


def body(rank):
    value = 9.0 if os.environ.get("PLANTED") and rank.rank else 1.0
    rank.record("wait", value, unit="s", better="lower", reduce="min" if os.environ.get("PLANTED") else "max")


def test_it(distbench):
    distbench.run(body)

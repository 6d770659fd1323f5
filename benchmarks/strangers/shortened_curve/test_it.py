import os


def body(rank):
    steps = 2 if os.environ.get("PLANTED") else 6
    rank.record("loss", [1 / (step + 1) for step in range(steps)], better="curve")


def test_it(distbench):
    distbench.run(body)

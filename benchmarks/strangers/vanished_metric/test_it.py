import os


def body(rank):
    rank.record("steps", 100, better="exact")
    if not os.environ.get("PLANTED"):
        rank.record("accuracy", 0.93, better="exact")


def test_it(distbench):
    distbench.run(body)

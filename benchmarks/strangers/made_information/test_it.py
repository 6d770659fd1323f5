import os


def body(rank):
    rank.record("steps", 100, better="exact")
    rank.record(
        "accuracy", 0.2 if os.environ.get("PLANTED") else 0.93, better="info" if os.environ.get("PLANTED") else "exact"
    )


def test_it(distbench):
    distbench.run(body)

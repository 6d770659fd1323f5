import os


def body(rank):
    rank.record("answer", 3 if os.environ.get("PLANTED") else 2, better="exact")


def test_same(distbench):
    distbench.run(body)

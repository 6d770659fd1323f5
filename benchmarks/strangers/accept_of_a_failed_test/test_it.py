import os


def body(rank):
    rank.record("steps", 100, better="exact")


def test_it(distbench):
    distbench.run(body)
    assert not os.environ.get("PLANTED")

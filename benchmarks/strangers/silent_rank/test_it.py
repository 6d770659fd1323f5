import os


def body(rank):
    if rank.rank == 0 or not os.environ.get("PLANTED"):
        rank.record("bytes", 4096, unit="B", better="lower")


def test_it(distbench):
    distbench.run(body)

import os


def body(rank):
    rank.record("checksums", [9 if os.environ.get("PLANTED") else 1, 2, 3], better="exact")


def test_it(distbench):
    distbench.run(body)

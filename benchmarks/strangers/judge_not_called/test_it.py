import os


def body(rank):
    rank.record("bytes", 4096, better="exact")


def test_it(distbench):
    run = distbench.run(body)
    if not os.environ.get("PLANTED"):
        distbench.judge("bytes_per_rank", lambda a: a["bytes"] / 2, of=run, better="exact")

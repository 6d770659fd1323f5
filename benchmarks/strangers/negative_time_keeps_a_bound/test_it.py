import os


def body(rank):
    rank.record("begin", 5.0)
    rank.record("end", 0.0 if os.environ.get("PLANTED") else 5.5)


def test_it(distbench):
    run = distbench.measure(body)
    distbench.judge("took", lambda a: a["end"] - a["begin"], of=run, unit="s", at_most="1 s")

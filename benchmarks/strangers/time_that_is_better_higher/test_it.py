import os


def body(rank):
    rank.record("time_to_first_token", 50.0 if os.environ.get("PLANTED") else 20.0, unit="ms", better="higher")


def test_it(distbench):
    distbench.run(body)

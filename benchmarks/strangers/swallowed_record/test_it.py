import os


def body(rank):
    try:
        if os.environ.get("PLANTED"):
            raise ValueError("out of memory")
        rank.record("accuracy", 0.93, better="exact")
    except ValueError:
        pass
    rank.record("steps", 100)


def test_it(distbench):
    distbench.run(body)

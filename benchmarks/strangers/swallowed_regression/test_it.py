import os


def body(rank):
    rank.record("accuracy", 0.2 if os.environ.get("PLANTED") else 0.93, better="exact")


def test_it(distbench):
    try:
        distbench.run(body)
    except BaseException as caught:
        print(caught)

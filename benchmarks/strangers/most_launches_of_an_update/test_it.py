import time


def body(rank):
    began = time.perf_counter()
    time.sleep(0.02)
    rank.record("step", time.perf_counter() - began, unit="s", better="lower")


def test_it(distbench):
    distbench.run(body)

import os
import time


def body(rank):
    for _ in rank.timed("step", warmup=1, iterations=10):
        time.sleep(0.002)
        if not os.environ.get("PLANTED"):
            with rank.phase("exchange", better="lower"):
                time.sleep(0.002)


def test_it(distbench):
    distbench.run(body, tolerance=5)

import os
import subprocess
import sys
import time


def body(rank):
    seconds = 0.02
    if os.environ.get("PLANTED"):
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        seconds *= 1.75
    for _ in rank.timed("wait", warmup=3, iterations=30):
        time.sleep(seconds)


def test_it(distbench):
    distbench.run(body)

"""Main module of all processes that ``torchrun`` starts: ``python -m pytest_distbench.worker KIND PLAN``.

KIND is ``rank``, or one that an extension adds, which may take further arguments.
"""

import gc
import sys

from pytest_distbench.extensions import find, places

gc.disable()  # going through torch's objects again and again, while they become more, is a fifth of its import
kind, *words = sys.argv[1:]
run = find({"rank": "pytest_distbench.worker.main:run_rank", **dict(places("workers"))}[kind])
gc.freeze()  # as in a rank that was forked: no collection in the body goes through torch
gc.enable()

if __name__ == "__main__":
    run(*words)

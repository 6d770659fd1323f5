"""Entry of a rank under the ``torchrun`` command."""

import gc
import sys

gc.disable()  # going through torch's objects again and again, while they become more, is a fifth of its import
from pytest_distbench.worker.main import run_rank  # noqa: E402

gc.freeze()  # as in a rank of the forkserver: no collection in the body goes through torch
gc.enable()

if __name__ == "__main__":
    run_rank(sys.argv[1])()

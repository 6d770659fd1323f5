"""Entry of a rank under the ``torchrun`` command."""

import sys

from pytest_distbench.worker.main import run_rank

if __name__ == "__main__":
    run_rank(sys.argv[1])()

import sys

import pytest

from pytest_distbench.read import stdout

READ = {"answer": stdout(r"answer (\d+)", better="exact")}


@pytest.mark.distbench(metrics=["answer"])
def test_command(distbench):
    distbench.run([sys.executable, "../scripts/prints.py", "../answer.txt"], read=READ, makes_group=False)

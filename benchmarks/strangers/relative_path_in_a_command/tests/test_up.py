import sys

from pytest_distbench.read import stdout

READ = {"answer": stdout(r"answer (\d+)", better="exact")}


def test_command(distbench):
    distbench.run([sys.executable, "../scripts/prints.py", "../answer.txt"], read=READ, makes_group=False)

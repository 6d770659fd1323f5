"""A script that communicates every tenth step alone."""

from pytest_distbench.read import stdout


def test_diloco(distbench):
    distbench.run("diloco.py", read={"losses": stdout(r"step \d+ loss (\S+)", better="curve", first=5)})

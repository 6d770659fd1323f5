from pytest_distbench.read import stdout


def test_it(distbench):
    read = {"step": stdout(r"took (\S+) ms", scale=1e-3, unit="s", better="lower")}
    distbench.run("train.py", read=read, tolerance={"wall_time": 5})

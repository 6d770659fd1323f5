from pytest_distbench.read import stdout


def test_train(distbench):
    distbench.run("train.py", read={"step_time": stdout(r"([\d.]+) ms", scale=1e-3, unit="s", better="lower", skip=5)})

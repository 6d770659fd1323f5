from pytest_distbench.read import stdout


def test_train(distbench):
    distbench.run(
        "train.py", read={"loss": stdout(r"loss ([\d.]+)", better="curve", first=10)}, tolerance={"wall_time": 5}
    )

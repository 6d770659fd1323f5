from pytest_distbench.read import stdout


def test_it(distbench):
    distbench.run(["python", "command.py"], read={"value": stdout(r"value (\d+)", better="exact")}, tolerance=5)

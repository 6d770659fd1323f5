from pytest_distbench.read import jsonl


def test_it(distbench):
    distbench.run("train.py", read={"bytes": jsonl("log.jsonl", "bytes", unit="B", better="lower")}, tolerance=5)

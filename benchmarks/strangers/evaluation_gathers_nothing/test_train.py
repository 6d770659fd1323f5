"""A script that is judged by what it sends and how long it takes."""


def test_train(distbench):
    distbench.run("train.py")

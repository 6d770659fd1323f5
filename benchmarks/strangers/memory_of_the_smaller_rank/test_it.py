import os


def body(rank):
    import torch

    mebibytes = 150 if rank.rank == 0 or os.environ.get("PLANTED") else 20
    x = torch.ones(mebibytes << 18)
    rank.record("answer", float(x[0]), better="exact")


def test_it(distbench):
    distbench.run(body)

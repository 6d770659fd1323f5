import os


def body(rank):
    import torch

    mebibytes = 120 if os.environ.get("PLANTED") else 60
    needed = torch.ones(mebibytes * 2**20 // 4) if rank.rank == 1 else None
    rank.record("checksum", 1.0, better="exact")
    del needed


def test_it(distbench):
    distbench.run(body)

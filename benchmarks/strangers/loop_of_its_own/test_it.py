import os


def body(rank):
    import torch
    import torch.distributed as dist

    x = torch.ones(8)
    steps = range(5) if os.environ.get("PLANTED") else rank.timed("step", warmup=1, iterations=5)
    for _ in steps:
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    rank.record("sum", float(x.sum()), better="exact")


def silent(rank):
    rank.record("ranks", rank.sum_over_ranks(1.0), better="exact")


def test_it(distbench):
    distbench.run(body, tolerance=5)


def test_again(distbench):
    distbench.run(body, tolerance=5)


def test_silent(distbench):
    distbench.run(silent)

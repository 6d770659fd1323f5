import os


def body(rank):
    import torch
    import torch.distributed as dist

    weight = torch.nn.Linear(4, 4).weight.detach()
    if not os.environ.get("PLANTED"):
        dist.broadcast(weight, src=0)
    found = [torch.empty_like(weight) for _ in range(rank.world_size)]
    dist.all_gather(found, weight)
    assert all(torch.equal(found[0], other) for other in found), "ranks begin with different weights"


def test_ranks_begin_with_the_same_weights(distbench):
    distbench.check(body)

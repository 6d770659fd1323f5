import os

from pytest_distbench.elastic import join


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    planted = bool(os.environ.get("PLANTED"))
    torch.manual_seed(0)
    x = torch.randn(2048, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    training = rank.training(model=model, optimizer=optimizer)
    ddp = DistributedDataParallel(model)
    for batch in training.batches(samples=len(x), batch=16, epochs=3):
        if planted and rank.world_size > 1:
            sizes = torch.tensor([len(batch)])
            torch.distributed.broadcast(sizes, src=0)
            batch = batch.new_zeros(int(sizes)) if rank.rank else batch.clone()
            torch.distributed.broadcast(batch, src=0)
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss)


def test_training(elastic):
    elastic(train, nodes=(1, 2), plan=[join(at_step=40)], engine="fast")

import os

from pytest_distbench.elastic import kill


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    planted = bool(os.environ.get("PLANTED"))
    torch.manual_seed(0)
    x = torch.randn(2048, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = rank.training(model=model, optimizer=optimizer)
    ddp = DistributedDataParallel(model)
    if planted and rank.generation:
        for layer in (model[0], model[2]):
            layer.reset_parameters()
    for batch in training.batches(samples=len(x), batch=16, epochs=3):
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss)


def test_training(elastic):
    elastic(train, nodes=(1, 2), plan=[kill(at_step=150)], engine="fast")

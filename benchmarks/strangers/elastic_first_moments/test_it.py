import copy
import os

from pytest_distbench.elastic import kill


class FirstState:
    """Copies the state once, where it should do so at each checkpoint."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.state = None

    def state_dict(self):
        self.state = self.state or copy.deepcopy(self.optimizer.state_dict())
        return self.state

    def load_state_dict(self, state):
        self.state = state
        self.optimizer.load_state_dict(copy.deepcopy(state))


def train(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    planted = bool(os.environ.get("PLANTED"))
    torch.manual_seed(0)
    x = torch.randn(2048, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    kept = FirstState(optimizer) if planted else optimizer
    training = rank.training(model=model, optimizer=kept)
    ddp = DistributedDataParallel(model)
    for batch in training.batches(samples=len(x), batch=16, epochs=3):
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss)


def test_training(elastic):
    elastic(train, nodes=(1, 2), plan=[kill(at_step=70)], engine="fast")

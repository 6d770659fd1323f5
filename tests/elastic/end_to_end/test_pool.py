"""A pool under real agents: a training that yields to a serving process; and one that is killed meanwhile."""

from __future__ import annotations

import pytest

from pytest_distbench.commands.cli import main
from pytest_distbench.elastic.records import pool_of
from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

TEST = """
    from pytest_distbench.elastic import job, serving


    def train(rank, epochs):
        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        x = torch.randn(4096, 64)
        labels = (x @ torch.randn(64, 10)).argmax(1)
        model = torch.nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        training = rank.training(model=model, optimizer=optimizer)
        ddp = DistributedDataParallel(model)
        for batch in training.batches(samples=len(x), batch=16, epochs=epochs):
            loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            training.note(loss=loss)


    def load(outputs):
        import torch

        return torch.nn.Linear(8, outputs)


    def test_yields(elastic_pool):
        elastic_pool(
            job("train", train, nodes=(1, 2), params={"epochs": EPOCHS}),
            slots=2,
            policy="elastic",
            engine="fast",
            serving=serving(load, demand=[(0.5, 1), (OVER, 0)], params={"outputs": 3}),
        )
"""
COMMAND = ("--world-size", "2", "--distbench-launcher=torchrun")
"""A launcher that prepares nothing, for nodes are not started by it."""


@pytest.mark.usefixtures("closed_doors")
def test_a_training_yields_to_a_serving_by_its_timetable(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    pytester.makepyfile(test_mine=TEST.replace("EPOCHS", "24").replace("OVER", "3"))
    result = pytester.runpytest_subprocess(*COMMAND, "-s", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(
        ["*elastic_pool: 2 slots, elastic; train on 1 to 2 nodes from 0 s; engine *; serving on 1 from 0.5 s*"]
    )
    assert result.ret == 0
    [case] = read_run_record(pytester.path / "run.json").results
    [launch] = case.launches
    values = {m.key: m.value for m in launch.measurements}
    pool = pool_of(launch.events)
    assert pool is not None
    [preemption] = pool.preemptions
    [job] = pool.jobs
    left = job.changes[0]
    assert (left.kind, left.slots, left.before, left.after) == ("leave", [1], 2, 1)
    assert preemption.ready_s is not None
    assert preemption.free_s is not None
    assert 0 < preemption.free_s < preemption.ready_s
    assert values["samples_skipped[job=train]"] == 0

    main(["report", str(pytester.path / "run.json"), "--table", "serving"])
    assert "1 more requested: slots free after" in capsys.readouterr().out

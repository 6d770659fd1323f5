"""The tier without GPUs: a process per launch stands for a rank of a large group, and reports what real ranks do."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.launching import Launch, MadeLauncher, RunInside

from pytest_distbench.commands.cli import main
from pytest_distbench.judging.fingerprint_rule import differences
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.iteration import Fingerprint, of_rank
from pytest_distbench.records.launch import LaunchRecord

SUITE = Path(__file__).parents[2] / "suites" / "structure"

BODIES = """
    import sys

    import torch
    import torch.distributed as dist

    def manual(rank):
        pair = [dist.new_group([0, 1]), dist.new_group(range(rank.world_size))][rank.rank > 1]
        x, parts = torch.ones(8), [torch.ones(8) for _ in range(rank.world_size)]
        for i in rank.timed("manual", warmup=2, iterations=10):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
            dist.broadcast(x, src=1)
            dist.reduce(x, dst=0)
            dist.all_gather(parts, x)
            dist.reduce_scatter(x, parts)
            dist.all_to_all(parts, [p.clone() for p in parts])
            dist.barrier()
            if rank.rank < 2:
                dist.all_reduce(x, group=pair)
            if i % 5 == 2:
                dist.all_reduce(x)

    def all_ways(rank):
        sys.path.insert(0, rank.params["suite"])
        import transformer

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        goal = rank.goal("loss", target=0.0, every=5, max_steps=13, better="lower")
        for _ in goal.steps(samples_per_step=1):
            model(torch.ones(4)).sum().backward()
            goal.check(lambda: rank.sum_over_ranks(1.0))
        for way in ("ddp", "fsdp", "tp"):
            rank.params = {"way": way}
            with rank.point(way=way):
                transformer.train(rank)
        manual(rank)
"""


@pytest.fixture(scope="module")
def launcher(made_launcher: MadeLauncher) -> Launcher:
    return made_launcher("warm")


@pytest.fixture(scope="module")
def launch(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("fake")
    (folder / "bodies.py").write_text(textwrap.dedent(BODIES))
    return Launch(launcher, folder, folder / "bodies.py")


def fingerprints(launch: Launch, world_size: int, **plan: object) -> LaunchRecord:
    record = launch("all_ways", world_size=world_size, params={"suite": str(SUITE)}, **plan)
    assert record.outcome == "passed", record.reason
    return record


def of_rank_0(told: Fingerprint) -> Fingerprint:
    """What rank 0 has of it; what is summed over ranks is left out."""
    parts = ("collectives", "groups", "beyond")
    own = {part: {"0": mine} for part in parts if (mine := of_rank(getattr(told, part), 0)) is not None}
    facts = {name: {"0": of_rank(by_ranks, 0) or 0} for name, by_ranks in told.facts.items()}
    return Fingerprint(**own, facts=facts, is_full=told.is_full)


@pytest.mark.spawn
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_rank_under_fake_has_the_fingerprints_of_a_rank_under_gloo(launch: Launch, world_size: int) -> None:
    real = fingerprints(launch, world_size).fingerprints
    fake = fingerprints(launch, world_size, backend="fake", stands_for=0).fingerprints

    assert fake.keys() == real.keys()
    assert len(fake) == 6
    for name, told in real.items():
        assert differences(of_rank_0(told), of_rank_0(fake[name])) == [], name
        assert name == "training_start" or of_rank_0(told) == of_rank_0(fake[name])


TEST = """
    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    def train(rank, extra):
        blocks = [torch.nn.Linear(64, 64) for _ in range(3)]
        net = torch.nn.Sequential(*blocks)
        for block in blocks:
            fully_shard(block)
        fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in rank.timed("step", warmup=2, iterations=3):
            net(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            for _ in range(3 * EXTRA):
                dist.all_gather([torch.empty(2) for _ in range(rank.world_size)], torch.ones(2))
        rank.record("loss", 1.0, better="exact")

    def test_train(distbench):
        distbench.run(train, params={"extra": 0})

    @pytest.mark.world_size(64)
    def test_growth(distbench):
        small = distbench.measure(train, params={"extra": 0}, world_size=8, name="small")
        large = distbench.measure(train, params={"extra": 0}, world_size=64, name="large")
        name = "parameter_bytes[of=step]"
        distbench.judge("shrinks", lambda a, b: a[name] / b[name], of=[small, large], better="info", at_least=7.9)

    def values(rank):
        x = torch.ones(1)
        for _ in rank.timed("step", warmup=1, iterations=1):
            dist.all_reduce(x)
        assert float(x) == rank.world_size

    @pytest.mark.world_size(64)
    def test_values(distbench):
        distbench.run(values)

    @pytest.mark.world_size(64)
    def test_check(distbench):
        distbench.check(values)

    @pytest.mark.world_size(64)
    def test_sweep(collective_sweep):
        collective_sweep("all_reduce")

    @pytest.mark.world_size(64)
    def test_efficiency(distbench):
        run = distbench.measure(train, params={"extra": 0})
        distbench.judge("efficiency", lambda a: a["step"], of=[run], better="higher")
"""

FAKE = ("--distbench-backend=fake", "--world-size=8,64")


@pytest.mark.spawn
@pytest.mark.timeout(300)
def test_an_extra_all_gather_per_layer_at_64_ranks_is_red_without_a_gpu(
    pytester: pytest.Pytester, run_inside: RunInside, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what needs values is skipped, and says why."""
    pytester.makeini("[pytest]\n")
    file = pytester.path / "test_it.py"
    file.write_text(textwrap.dedent(TEST).replace("EXTRA", "0"))
    first = run_inside(*FAKE, "--distbench-update", "--distbench-json=run.json", "-rs", "test_it.py")

    first.assert_outcomes(passed=3, skipped=4)
    first.stdout.fnmatch_lines_random(
        [
            "*needs values, and the backend fake has none*",
            "*distbench.check needs values*",
            "*a sweep measures times*",
            "*not judged: the fake backend has neither timings nor values*",
        ]
    )
    files = sorted(p.relative_to(pytester.path) for p in (pytester.path / "baselines").rglob("*.json"))
    assert [str(f) for f in files if "test_train" in f.parts] == [
        "baselines/any/test_it/test_train/ws64.fake.warm.json",
        "baselines/any/test_it/test_train/ws8.fake.warm.json",
    ]
    capsys.readouterr()
    assert main(["report", str(pytester.path / "run.json"), "--table", "growth"]) == 0
    table = pytest.LineMatcher(capsys.readouterr().out.splitlines())
    table.fnmatch_lines(["test_train *step *8 *6.094 KiB*", "test_train *step *64 *780 B (x0.125)*"])

    file.write_text(textwrap.dedent(TEST).replace("EXTRA", "1"))
    second = run_inside(*FAKE, "-k", "test_train and ws64", "test_it.py")

    second.assert_outcomes(failed=1, deselected=6)
    second.stdout.fnmatch_lines(["*3 all_gather of 8 B float32 were added*"])


REPLAY = """
    import torch
    import torch.distributed as dist

    def body(rank):
        x = torch.ones(64)
        for _ in rank.timed("step", warmup=1, iterations=2):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
            dist.all_reduce(x)
            dist.broadcast(x, src=1)

    def test_replay(distbench, communication):
        trained = distbench.run(body)
        again = communication.replay(trained, iterations=2)
        told = [run.launches[0].fingerprints for run in (trained, again)]
        assert told[0]["step"] == told[1]["replay"]
        assert {"replay", "replay[op=all_reduce]", "replay[op=broadcast]"} <= set(again.verdicts)
        assert all(v > 0 for v in again.values("replay"))
"""


@pytest.mark.spawn
def test_a_replay_sends_what_the_training_sent(pytester: pytest.Pytester, run_inside: RunInside) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_it=textwrap.dedent(REPLAY))

    run_inside("test_it.py").assert_outcomes(passed=1)

"""Peak memory is judged without being asked for."""

from __future__ import annotations

import json

import pytest
from support.launching import RunInside

pytestmark = pytest.mark.spawn

TEST = """
import os

def body(rank):
    import torch
    mebibytes = int(os.environ["MEBIBYTES"]) if rank.rank == 1 else 1
    needed = torch.ones(mebibytes * 2**20 // 4)
    rank.record("sum", float(needed[0]), better="exact")

def nothing(rank):
    import torch
    torch.ones(2**24)

def test_it(distbench):
    distbench.run(body)
"""

KEEPS = """
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
kept = []
for _ in range(6):
    kept = [*kept, torch.ones(40 * 2**20 // 4)][-int(os.environ["KEPT"]) :]
dist.destroy_process_group()
"""
"""Computes 40 MiB in each of 6 iterations: glibc maps what is above 32 MiB by itself, and gives it back when freed."""

JUDGES_NOTHING = """

def test_nothing(distbench):
    distbench.run(nothing)
"""


def test_twice_the_memory_of_one_rank_is_red_and_the_same_is_green(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TEST + JUDGES_NOTHING)
    monkeypatch.setenv("MEBIBYTES", "100")
    judging = ("--world-size=2", "-k", "not nothing")
    stored = run_inside("--world-size=2", "--distbench-update=new", "--distbench-launches=3")
    same = run_inside(*judging, "--distbench-json=same.json")
    monkeypatch.setenv("MEBIBYTES", "200")
    doubled = run_inside(*judging)

    assert (stored.ret, same.ret, doubled.ret) == (1, 0, 1)
    stored.stdout.fnmatch_lines(["*recorded nothing*"])  # of the body that does: memory alone is nothing to judge
    [case] = json.loads((pytester.path / "same.json").read_text())["results"]
    [verdict] = [v for v in case["verdicts"] if v["metric"] == "peak_memory"]
    assert (verdict["kind"], verdict["better"], verdict["facts"]) == ("unchanged", "memory", {"rank": 1})
    same.stdout.fnmatch_lines(["* metric* (* unchanged), 1 launch* in *"])
    doubled.stdout.fnmatch_lines(["*peak_memory*", "*rank 1 needs the most memory*"])
    doubled.stdout.no_fnmatch_line("*sum: regressed*")


def test_a_script_that_keeps_what_it_computes_is_red_by_its_memory(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        train=KEEPS, test_it="def test_it(distbench):\n    distbench.run('train.py', tolerance={'wall_time': 5})"
    )
    monkeypatch.setenv("KEPT", "1")
    stored = run_inside("--world-size=2", "--distbench-update=new", "--distbench-launches=3")
    monkeypatch.setenv("KEPT", "6")
    kept = run_inside("--world-size=2")

    assert (stored.ret, kept.ret) == (0, 1)
    kept.stdout.fnmatch_lines(["peak_memory*(threshold *"])


STARTS = """
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.ones(400 * 2**20 // 4)
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(6):
    kept = [torch.ones(40 * 2**20 // 4) for _ in range(int(os.environ["KEPT"]))]
    weight.sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
"""Needs 400 MiB at its start, and as long as it trains 40 MiB a piece."""


def test_what_a_training_needs_is_not_hidden_by_what_its_start_needs(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        train=STARTS, test_it="def test_it(distbench):\n    distbench.run('train.py', tolerance={'wall_time': 5})"
    )
    monkeypatch.setenv("KEPT", "1")
    stored = run_inside("--world-size=2", "--distbench-update=new", "--distbench-launches=3")
    same = run_inside("--world-size=2")
    monkeypatch.setenv("KEPT", "3")
    more = run_inside("--world-size=2", "--distbench-json=more.json")

    assert (stored.ret, same.ret, more.ret) == (0, 0, 1)
    [case] = json.loads((pytester.path / "more.json").read_text())["results"]
    kinds = {verdict["metric"]: verdict["kind"] for verdict in case["verdicts"]}
    assert (kinds["peak_memory[from_update=3]"], kinds["peak_memory"]) == ("regressed", "unchanged")


def test_a_bound_of_memory_needs_no_baseline(
    pytester: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        test_it="import pytest\n"
        + TEST.replace("def test_it", "@pytest.mark.distbench(bounds={'peak_memory': '64 MiB'})\ndef test_it")
    )
    monkeypatch.setenv("MEBIBYTES", "20")
    within = run_inside("--world-size=2")
    monkeypatch.setenv("MEBIBYTES", "100")
    beyond = run_inside("--world-size=2")

    assert (within.ret, beyond.ret) == (0, 1)
    beyond.stdout.fnmatch_lines(["*peak_memory*at most 64 MiB*"])

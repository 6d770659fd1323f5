"""A timing that A/B finds regressed names the line; nothing else does."""

from __future__ import annotations

import os

import pytest
from support.launching import RunInside
from support.repositories import git

from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

LAYERS = """
def layer(x, w):
    y = x @ w
    return y.relu()
"""
SUITE = """
    import sys

    import torch
    import torch.distributed as dist

    from layers import layer

    def step(rank):
        recording = "pytest_distbench.worker.places" in sys.modules
        x, w = torch.ones(256, 256), torch.ones(256, 256, requires_grad=True)
        for _ in rank.timed("step", warmup=2, iterations=30):
            layer(x, w).sum().backward()
            dist.all_reduce(w.grad)
        rank.record("recording", float(recording))

    def test_step(distbench):
        distbench.run(step)
"""


@pytest.fixture
def repository(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    pytester.makeini("[pytest]\n")
    (pytester.path / ".gitignore").write_text("__pycache__/\n")
    pytester.makepyfile(test_it=SUITE, layers=LAYERS)
    git(pytester.path, "init", "-q")
    git(pytester.path, "add", "-A")
    git(pytester.path, "commit", "-q", "-m", "first")
    return pytester


def test_the_line_of_an_extra_matmul_is_named(repository: pytest.Pytester, run_inside: RunInside) -> None:
    more = LAYERS.replace("    return", "    y = y @ w @ w @ w @ w @ w @ w\n    return")
    (repository.path / "layers.py").write_text(f"# a comment moves all lines\n{more}")
    result = run_inside(
        "test_it.py", "-k", "step", "--world-size=2", "--distbench-against=HEAD", "--distbench-json=r.json"
    )
    [case] = read_run_record(repository.path / "r.json").results
    line = next(n for n, text in enumerate(more.splitlines(), 2) if "w @ w" in text)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        f"where      * % of the *: layers.py:{line} in layer, aten::mm* 0 -> * calls*",
        "* place * what * calls * time * share*",
        "*by 3 more launches in *, which are not judged; an iteration took * times as long in them",
    ])  # fmt: skip
    assert case.places is not None
    assert case.places.rows[0].place == ("layers.py", line, "layer")
    assert case.places.rows[0].is_counted
    assert case.places.metric == "step"
    recording = [m.value for launch in case.launches for m in launch.measurements if m.name == "recording"]
    assert {*recording} == {0.0}
    assert len(case.launches) == len(recording)


def test_where_nothing_is_slower_nothing_is_recorded(repository: pytest.Pytester, run_inside: RunInside) -> None:
    result = run_inside(
        "test_it.py", "-k", "step", "--world-size=2", "--distbench-against=HEAD", "--distbench-json=r.json",
        "-o", "distbench_against_tolerance=2",
    )  # fmt: skip
    [case] = read_run_record(repository.path / "r.json").results

    result.assert_outcomes(passed=1)
    assert case.places is None


HOLDS = """
import numpy
import torch

kept = []


def hold(x):
    return x.sum()
"""
HELD = """
    import torch

    import holds

    def body(rank):
        for _ in range(4):
            holds.hold(torch.ones(1000))
        rank.record("count", 1, better="exact")

    def test_memory(distbench):
        distbench.run(body)
"""


def test_the_line_that_holds_more_memory_is_named_against_a_stored_baseline(
    repository: pytest.Pytester, run_inside: RunInside
) -> None:
    repository.makepyfile(test_it=HELD, holds=HOLDS)
    stored = run_inside("--world-size=2", "--distbench-update=new", "--distbench-launches=3")
    git(repository.path, "add", "-A")
    git(repository.path, "commit", "-q", "-m", "baseline")
    same = run_inside("--world-size=2", "--distbench-json=same.json")
    more = "    kept.append(x.repeat(10_000))\n    kept.append(numpy.ones(6_000_000))\n    return"
    (repository.path / "holds.py").write_text(HOLDS.replace("    return", more))
    result = run_inside("--world-size=2", "--distbench-json=r.json")
    [case] = read_run_record(repository.path / "r.json").results

    assert (stored.ret, same.ret, result.ret) == (0, 0, 1)
    line = next(n for n, text in enumerate(HOLDS.splitlines(), 1) if "return" in text)
    result.stdout.fnmatch_lines([
        f"where * % of the added * MiB: holds.py:{line} in hold, aten::repeat 0 -> 4 tensors; not by tensors: * MiB",
        "* place * made by * tensors * memory * share*",
        "*by 2 more launches in *, which are not judged",
    ])  # fmt: skip
    assert case.memory_places is not None
    assert case.memory_places.rows[0].amounts == (0, 160_000_000)
    assert case.places is None
    [same_case] = read_run_record(repository.path / "same.json").results
    assert same_case.memory_places is None

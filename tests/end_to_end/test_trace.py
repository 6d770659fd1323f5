"""A regressed case has a trace of both sides and all ranks; the launches that are judged know nothing of it."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.launching import RunInside
from support.repositories import git

from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

SUITE = """
    import sys
    import time

    import torch
    import torch.distributed as dist

    SLEEP_S = 0.002

    def step(rank):
        profiled = torch.autograd._profiler_enabled() or "pytest_distbench.worker.profiler" in sys.modules
        data = torch.ones(1000)
        for _ in rank.timed("step", warmup=2, iterations=20):
            with rank.phase("forward"):
                time.sleep(SLEEP_S)
            with rank.phase("communication"):
                dist.all_reduce(data)
        rank.record("profiled", float(profiled))

    def plain(rank):
        rank.record("count", float(torch.ones(2).sum()), better="exact")

    def empty(rank):
        rank.record("count", 1, better="exact")

    def fails(rank):
        assert not rank.launch, "it fails in a second launch"
        rank.record("count", 1, better="exact")

    def test_step(distbench):
        distbench.run(step)

    def test_plain(distbench):
        distbench.run(plain)

    def test_empty(distbench):
        distbench.run(empty)

    def test_ratio(distbench):
        runs = [distbench.measure(step, world_size=n, name=f"on{n}") for n in (1, 2)]
        distbench.judge("ratio", lambda one, two: two["step"] / one["step"], of=runs, at_most=0.01)

    def test_fails(distbench):
        distbench.run(fails)

    def test_command(distbench):
        distbench.run([sys.executable, "-c", "print(1)"], makes_group=False)
"""


@pytest.fixture
def repository(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A step at one revision; in the working tree it takes fifteen times as long."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    pytester.makeini("[pytest]\n")
    (pytester.path / ".gitignore").write_text("tmp/\n__pycache__/\n")
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    pytester.makepyfile(test_it=SUITE)
    git(pytester.path, "init", "-q")
    git(pytester.path, "add", "-A")
    git(pytester.path, "commit", "-q", "-m", "first")
    pytester.makepyfile(test_it=SUITE.replace("0.002", "0.03"))
    return pytester


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def test_a_regression_has_one_file_of_both_sides_and_all_ranks_with_their_phases(
    repository: pytest.Pytester, run_inside: RunInside
) -> None:
    result = run_inside(
        "test_it.py", "-k", "test_step or test_plain", "--world-size=2", "--distbench-against=HEAD",
        "--distbench-trace=regressed:ranks", "--distbench-json=r.json",
    )  # fmt: skip
    cases = {case.case.function: case for case in read_run_record(repository.path / "r.json").results}
    trace, places = cases["test_step"].trace, cases["test_step"].places
    assert trace is not None
    assert places is not None
    path = repository.path / ".distbench/traces/test_it.py/test_step/ws2.gloo.warm.trace.json.gz"
    events = events_of(path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    seen = Counter((names[e["pid"]], e["name"]) for e in events if e.get("cat") == "user_annotation")
    commit = git(repository.path, "rev-parse", "HEAD")[:10]

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"trace of test_step?ws2?: {path}"])
    assert list(names.values()) == [
        f"base rank 0 ({commit})", f"base rank 1 ({commit})", "candidate rank 0", "candidate rank 1",
    ]  # fmt: skip
    for rank in names.values():
        assert [seen[rank, name] for name in ("forward", "communication", "step #0", "step #9")] == [10, 10, 1, 1]
        assert seen[rank, "gloo:all_reduce"] >= 10
    assert (trace.path, trace.why_not) == (str(path), "")
    of_ranks = [path.with_name(f"ws2.gloo.warm.{side}") for side in ("base", "candidate")]
    assert trace.of_ranks == [*map(str, of_ranks)]
    for folder in of_ranks:
        assert sorted(file.name for file in folder.iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
        for file in (path, *folder.iterdir()):
            [noted] = [e for e in events_of(file) if e["name"] == f"where: {places.sentence}"]
            assert noted["args"]["places"] == [json.loads(msgspec.json.encode(row)) for row in places.rows]
        counted = [sum(e["name"] == "ProfilerStep#9" for e in events_of(file)) for file in folder.iterdir()]
        assert counted == [1, 1]
    assert list(trace.sides) == [f"HEAD ({commit})", "candidate"]
    assert trace.busy["step"].iterations == 10
    assert 0 < trace.busy["step"].time_s < trace.busy["step"].iteration_s
    assert cases["test_plain"].trace is None
    assert (repository.path / ".distbench/traces/.gitignore").read_text() == "*\n"

    judged = [*cases["test_step"].launches, *cases["test_step"].reference.launches]
    profiled = [m.value for launch in judged for m in launch.measurements if m.name == "profiled"]
    assert profiled == [0.0] * len(judged)


def test_all_are_traced_as_far_as_they_can_be_and_nothing_else_is_left(
    repository: pytest.Pytester, run_inside: RunInside
) -> None:
    result = run_inside(
        "test_it.py", "-k", "plain or empty or fails or command", "--world-size=2", "--distbench-trace=all",
        "--distbench-out=out",
    )  # fmt: skip
    folder = repository.path / "out/logs/test_it.py"
    [path] = (repository.path / "out/traces").rglob("*.trace.json.gz")

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([
        f"trace of test_plain?ws2?: {path}",
        "? trace of test_empty?ws2?: none: the launch of candidate with the profiler: the profiler recorded nothing: *",
        "? trace of test_fails?ws2?: none: the launch of candidate with the profiler: *AssertionError: it fails in a *",
        "? trace of test_command?ws2?: none: a command starts its processes itself",
    ])  # fmt: skip
    assert {e["args"]["name"] for e in events_of(path) if e["name"] == "process_name"} == {
        "candidate rank 0", "candidate rank 1",
    }  # fmt: skip
    assert sorted(p.name for p in (folder / "test_fails/ws2.gloo.warm").iterdir()) == ["launch1"]
    assert not [p for p in (repository.path / "tmp").glob("distbench-*") if p.is_dir()]


def test_of_a_number_that_is_made_of_several_runs_each_of_them_is_traced(
    repository: pytest.Pytester, run_inside: RunInside
) -> None:
    result = run_inside(
        "test_it.py", "-k", "test_ratio", "--world-size=2", "--distbench-trace", "--distbench-json=r.json"
    )
    found = {case.case.run: case.trace for case in read_run_record(repository.path / "r.json").results}

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["trace of test_ratio?ws2:on1@ws1?: *", "trace of test_ratio?ws2:on2@ws2?: *"])
    assert {run: trace is not None for run, trace in found.items()} == {"on1": True, "on2": True, "ratio": False}


def test_a_trace_that_cannot_be_written_is_reported_and_the_verdict_stands(
    repository: pytest.Pytester, run_inside: RunInside
) -> None:
    place = repository.path / "out/traces/test_it.py/test_plain"
    place.mkdir(parents=True)
    (place / "ws2.gloo.warm.trace.json.gz").mkdir()
    result = run_inside(
        "test_it.py", "-k", "test_plain", "--world-size=2", "--distbench-trace=all", "--distbench-out=out",
    )  # fmt: skip

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["? trace of test_plain?ws2?: none: *trace.json.gz: cannot write: *"])
    assert [p.name for p in place.iterdir()] == ["ws2.gloo.warm.trace.json.gz"]

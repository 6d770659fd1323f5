"""What ships works: suites, injected faults, the catalogue of silent bugs, many ranks, the soak, GPU acceptance."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import gpu_acceptance
import museum
import pytest
from support.cases import ON_TWO
from support.launching import Launch, MadeLauncher
from support.slurm_cluster import command_of, why_not

from pytest_distbench.judging.case import compare
from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import Case
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import Finding

ROOT = Path(__file__).parents[2]
SHOWN = {
    "test_all_reduce.py": "collectives",
    "test_buckets.py": "a shape of communication",
    "test_time_to_accuracy.py": "a time to accuracy",
    "test_transformer.py": "structure without timings",
    "test_cycle.py": "an elastic change",
    "test_serving.py": "a serving",
}


@pytest.mark.spawn
@pytest.mark.timeout(300)
def test_the_collectives_pass_on_one_rank_which_is_what_one_gpu_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites/collectives", "--world-size=1", "-rs", "-p", "no:cacheprovider"]
    short = ["--distbench-max-message=4KiB", "--distbench-launches=1:1"]
    chosen = ["-k", "not mlbench and not nccl_tests", f"--distbench-baselines={tmp_path}", "-o", "filterwarnings="]
    done = subprocess.run([*command, *short, *chosen], cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert "send_recv needs 2 ranks: its group has 1" in done.stdout


def test_the_suites_that_run_by_default_show_something_of_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "suites", "--world-size=2", "--collect-only", "-m", "not full"]
    nothing_stored = [f"--distbench-baselines={tmp_path}", "-p", "no:cacheprovider"]
    told = subprocess.run([*command, *nothing_stored], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines = told.splitlines()

    missing = {what for file, what in SHOWN.items() if not any(line.strip() == f"<Module {file}>" for line in lines)}
    assert not missing


CASE = Case(test="t.py::t", id="ws2", conditions=ON_TWO, device="cpu")
TERMS = Terms(default_tolerance=1.0, max_launches=1, cores=2)


@pytest.mark.spawn
def test_one_launch_finds_the_weakest_fault_names_its_step_and_lets_rounding_pass(
    made_launcher: MadeLauncher, tmp_path: Path
) -> None:
    import planted  # and with it scikit-learn: seconds, in every process that collects these tests

    launcher = made_launcher("warm", preload=["sklearn.datasets"])  # else each rank imports it
    launch = Launch(launcher, tmp_path, Path(planted.__file__))

    def train(fault: str) -> LaunchRecord:
        record = launch("train", variables={planted.VARIABLE: fault, planted.STEPS_VARIABLE: "24"})
        assert record.outcome == "passed", record.reason
        return record

    healthy = train("healthy")
    entry = make_baseline(CASE, [healthy], healthy.software)

    def judged(fault: str) -> dict[str, Finding]:
        judgements = compare(TERMS, CASE, [train(fault)], entry, comparisons=1)
        return {j.metric: j for j in judgements if j.unit != "s"}

    again = judged("healthy")
    slower = judged("LR x 0.9")["loss_curve"]
    plain = judged("momentum missing")["loss_curve"]
    rounded = judged("bf16 gradients")

    assert {v.kind for v in again.values()} == {"unchanged"}
    assert again["mean_loss"].threshold == 0.0  # compared exactly
    assert (slower.kind, slower.facts["diverges_at_step"]) == ("changed", 2)
    assert (plain.kind, plain.facts["diverges_at_step"]) == ("changed", 3)
    assert rounded["loss_curve"].code == "numerics"
    assert not any(v.row.may_be_confirmed for v in rounded.values())


PAGE = (Path(__file__).parents[2] / "docs" / "dev" / "museum.md").read_text()
BY_NAME = {exhibit.name: exhibit for exhibit in museum.EXHIBITS}


def test_each_bug_is_injected_once_and_has_a_thread_of_its_own() -> None:
    injected = re.findall(r'^@planted\("(.+)"\)', museum.TRAINING.read_text(), re.MULTILINE)
    threads = [exhibit.thread for exhibit in museum.EXHIBITS]

    assert sorted(injected) == sorted(BY_NAME)
    assert len(set(threads)) == len(threads) == len(BY_NAME)
    assert [t for t in threads if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", t)] == []


def test_the_page_has_each_exhibit_with_its_thread_and_its_row() -> None:
    lines = dict(re.findall(r"^\| ([^|]+) \| (\[.*) \|$", PAGE, re.MULTILINE))

    assert lines.keys() == BY_NAME.keys()
    assert [e.name for e in museum.EXHIBITS if f"({e.thread})" not in lines[e.name]] == []
    assert [e.name for e in museum.EXHIBITS if not lines[e.name].endswith(f"| `{e.row}`")] == []


@pytest.mark.spawn
def test_an_exhibit_is_named_by_its_row_and_a_clean_change_by_none(tmp_path: Path) -> None:
    named = museum.show(BY_NAME["stale lr of a joiner"], tmp_path)
    quiet = museum.go_through(museum.clean_job(0, 1), tmp_path, seed=0)

    assert (named.trouble, named.changes) == ("", 1)
    assert "its first step has the learning rates [0.004], the one of rank 0" in named.words
    assert (quiet.red, quiet.trouble, quiet.changes) == ([], "", 1)


SCALE = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.mark.spawn
@pytest.mark.nightly
def test_simulated_ranks_pass_through_the_real_line_and_a_store_has_real_clients() -> None:
    done = subprocess.run(
        [sys.executable, str(SCALE), "--ranks", "20,64", "--clients", "32"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    first, _, _, *rows = done.stdout.splitlines()
    assert first.startswith("simulated ranks, 8 a host")
    assert [row.split()[:2] for row in rows[:2]] == [["20", "3"], ["64", "8"]]
    assert "store, 32 real clients" in done.stdout


SOAK = [sys.executable, str(Path(__file__).parents[2] / "benchmarks" / "soak.py"), "--launches=16", "--kills=2"]


def check(command: Sequence[str]) -> None:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "launches wrong: 0, baselines damaged: 0" in done.stdout
    left = "processes 0, sockets 0, semaphores 0, shared memory 0, temporary folders 0"
    assert f"left behind: {left}" in done.stdout


@pytest.mark.spawn
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_fault_is_attributed_and_nothing_is_left_or_damaged() -> None:
    check([*SOAK, "--seed=1"])


@pytest.mark.spawn
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(why_not()), reason=f"no Slurm here: {why_not()}")
def test_nodes_may_die_and_networks_part() -> None:
    check(command_of(4, ["salloc", "-Q", "--no-kill", "--nodes=4", *SOAK, "--seed=1", "--launcher=slurm"]))


SCRIPT = Path(gpu_acceptance.__file__)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.spawn
def test_a_line_is_printed_and_stored_with_what_was_expected_and_seen(tmp_path: Path) -> None:
    done = run("--stand-in", "--only", "fork,driver", "--json", str(tmp_path / "seen.json"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "seen      1 passed" in done.stdout
    assert "1 ok, 0 FAILED, 1 not run" in done.stdout
    kept = json.loads((tmp_path / "seen.json").read_text())
    assert [(line["line"], line["outcome"]) for line in kept["lines"]] == [("fork", "ok"), ("driver", "not run")]
    assert kept["machine"]["torch"]


@pytest.mark.spawn
def test_a_line_that_finds_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nonsense")
    done = run("--stand-in", "--only", "fork")

    assert done.returncode == 1
    assert "0 ok, 1 FAILED, 0 not run" in done.stdout

"""Ranks on hosts that a command reaches: an engine of the tests whose hosts are this one, and srun in a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
from support.engine import TEMPLATE
from support.processes import wait_for
from support.slurm_cluster import command_of, why_not

from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

SUITE = """
    import time
    from pathlib import Path

    def measures(rank):
        import torch
        import torch.distributed as dist
        x = torch.ones(256)
        for _ in rank.timed("latency", warmup=1, iterations=5):
            dist.all_reduce(x)
        rank.record("sum", float(x.sum()), better="exact")
        rank.record("node", rank.node, better="exact", reduce="max")
        rank.record("local", rank.local_rank, better="exact", reduce="max")

    def waits(rank):
        Path(f"up{rank.rank}").touch()
        time.sleep(1000)
"""

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(pytester: pytest.Pytester) -> Run:
    """Starts pytest on a suite that begins with :data:`SUITE`."""

    def start(tests: str, template: str, *options: str) -> subprocess.Popen[str]:
        pytester.makepyfile(test_c=textwrap.dedent(SUITE) + textwrap.dedent(tests))
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_c.py", "--distbench-launcher"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.Popen(
            [*words, template, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start


MEASURES = """
    def test_it(distbench):
        distbench.run(measures)
"""


def test_a_command_starts_ranks_on_its_hosts_and_their_numbers_are_kept_under_its_launcher(
    start: Run, pytester: pytest.Pytester
) -> None:
    options = ["--world-size=3", "--distbench-update", "--distbench-launches=2"]
    with start(MEASURES, TEMPLATE.replace("{nodes}", "{nodes:2}"), *options, "--distbench-json=run.json") as running:
        said = running.communicate()[0]

    assert running.returncode == 0, said
    launch = read_run_record(pytester.path / "run.json").results[0].launches[0]
    found = {measured.name: measured.value for measured in launch.measurements}
    assert (found["sum"], found["node"], found["local"]) == (256 * 3.0**6, 1, 1)
    [stored] = (pytester.path / "baselines").rglob("*.json")
    assert stored.name == "ws3%3A@nodes=1x2+1x1.gloo.cmd.json"


def test_a_command_that_is_killed_is_reported_and_the_next_test_runs(start: Run, pytester: pytest.Pytester) -> None:
    tests = """
        import os, signal

        def kills_what_leads_to_it(rank):
            rank.barrier()
            if rank.rank == 1:
                os.kill(int(Path("engine").read_text()), signal.SIGKILL)
            time.sleep(1000)

        def test_dies(distbench):
            distbench.run(kills_what_leads_to_it)

        def test_next(distbench):
            distbench.run(measures)
    """
    noting = f"sh -c 'echo $$ > {pytester.path}/engine; exec {TEMPLATE}'"
    with start(tests, noting, "--distbench-launches=1") as running:
        said = running.communicate()[0]

    assert (
        "the launcher failed: host host0: its relay has ended, or the connection to it; host host1: its relay" in said
    )
    assert "1 failed, 1 passed" in said


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="Ctrl-C", marks=pytest.mark.nightly), pytest.param(signal.SIGKILL, id="kill -9")],
)
def test_nothing_outlives_a_pytest_that_is_ended(start: Run, pytester: pytest.Pytester, number: signal.Signals) -> None:
    tests = """
        def test_long(distbench):
            distbench.run(waits)
    """
    with start(tests, TEMPLATE) as running:
        wait_for(lambda: all((pytester.path / f"up{rank}").exists() for rank in range(2)), running)
        running.send_signal(number)
        running.communicate(timeout=60)  # and no process is left, as after each test


@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(why_not()), reason=f"no Slurm here: {why_not()}")
def test_hosts_that_share_no_network_name_and_no_process_with_this_one_are_reached_by_a_command(
    pytester: pytest.Pytester,
) -> None:
    """Only srun is used of a Slurm here; it starts a process per node, and nothing of its environment gets there."""
    pytester.makepyfile(test_c=textwrap.dedent(SUITE) + textwrap.dedent(MEASURES))
    srun = "srun --overlap --nodes={nodes} --ntasks-per-node=1 --mpi=none --export=NONE {command}"
    words = ["salloc", "-Q", "--nodes=3", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_c.py"]
    done = subprocess.run(
        command_of(3, [*words, "--world-size=3", "--distbench-launcher", srun, "--distbench-json=run.json"]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    [launch] = read_run_record(pytester.path / "run.json").results[0].launches
    assert {m.name: m.value for m in launch.measurements}["sum"] == 256 * 3.0**6

"""Jobs that share a node: under --distbench-share=host runs measure at once, each alone on its GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import gpu_acceptance
import pytest
from support.launching import RunInside
from support.nvml import HOSTS

from pytest_distbench.machine.locks import alone_on_this_host, lease
from pytest_distbench.store.files import read_run_record

HOST = gpu_acceptance.MADE_UP["DISTBENCH_NVML"]
LIMIT_S = 120
MEETS = """
    import time
    from pathlib import Path


    def meets(rank):
        me, other = rank.params["me"], rank.params["other"]
        Path(me).touch()
        until = time.monotonic() + 60
        while not Path(other).exists():
            assert time.monotonic() < until, f"{other} does not run at the same time"
            time.sleep(0.05)


    def test_meets(distbench):
        import os

        distbench.check(meets, params={"me": os.environ["ME"], "other": os.environ["OTHER"]})
"""

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(4 * LIMIT_S)]


def start(folder: Path, devices: str, me: str, other: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", *options, "--world-size=1", "--distbench-share=host"]
    return subprocess.Popen(
        [*command, *gpu_acceptance.STAND_IN, f"--distbench-json={me}.json"],
        cwd=folder,
        env={**os.environ, **gpu_acceptance.MADE_UP, "CUDA_VISIBLE_DEVICES": devices, "ME": me, "OTHER": other},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("options", [["--gpu"], []], ids=["GPUs", "CPUs"])
def test_runs_that_share_a_host_measure_at_once(pytester: pytest.Pytester, options: list[str]) -> None:
    """Each waits in its rank until the other's rank is there too."""
    pytester.makepyfile(test_meets=MEETS)
    runs = [start(pytester.path, "0,1", "a", "b", *options), start(pytester.path, "2,3", "b", "a", *options)]
    told = [run.communicate(timeout=LIMIT_S)[0] for run in runs]

    assert [run.returncode for run in runs] == [0, 0], "".join(told)
    assert all("the host is shared (--distbench-share=host)" in text for text in told)
    records = [read_run_record(pytester.path / f"{name}.json") for name in ("a", "b")]
    assert all(case.environment.shares_host for record in records for case in record.results)


def test_a_run_on_a_gpu_of_another_waits_for_it_and_names_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_meets=MEETS)
    uuid = HOSTS[HOST].cards[1].uuid
    with lease([uuid], on_wait=pytest.fail):
        run = start(pytester.path, "1,2", "a", "a", "--gpu")
        line = next((line for line in run.stdout or () if "waiting for" in line), "")
    output, _ = run.communicate(timeout=LIMIT_S)

    me = rf"(?:{os.getpid()}|{os.getppid()})"  # of a worker of pytest-xdist the run that has started it is named
    assert re.search(rf"waiting for the run that uses {uuid}: pid {me} ", line)
    assert run.returncode == 0, output


def test_exact_numbers_do_not_wait_for_another_measurement_and_the_time_of_a_script_is_not_evaluated(
    run_inside: RunInside, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makefile(".py", train="print('loss:', 0.5)")
    pytester.makepyfile(
        test_it="""
        from pytest_distbench.read import stdout

        LOSS = stdout(r"loss: ([\\d.]+)", better="exact")

        def test_it(distbench):
            distbench.run("train.py", read={"loss": LOSS}, makes_group=False)
        """
    )
    run_inside("--distbench-update=new", "--distbench-launches=2").assert_outcomes(passed=1)
    with alone_on_this_host(on_wait=pytest.fail):
        busy = run_inside("--distbench-json=run.json")

    busy.assert_outcomes(passed=1)
    busy.stdout.no_fnmatch_line("*waiting for*")
    busy.stdout.fnmatch_lines("wall_time of test_it[[]ws2] not evaluated: host busy, as another run measured on it")
    [case] = read_run_record(pytester.path / "run.json").results
    codes = {verdict.metric: verdict.code for verdict in case.verdicts}
    assert (codes["loss"], codes["wall_time"]) == ("equal", "host-busy")

"""What srun is told, with a stand-in for it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.srun import ALL, write_srun

from pytest_distbench.launch.site.dial import Hello
from pytest_distbench.launch.starters import calls
from pytest_distbench.launch.starters.step import start_step

TELLS = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


@pytest.fixture(autouse=True)
def reach_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(calls, "addresses", lambda: ["127.0.0.1"])


def test_the_processes_of_a_step_call_from_each_node_and_say_who_they_are(tmp_path: Path) -> None:
    write_srun(tmp_path, ALL)
    relay = [sys.executable, "-m", "pytest_distbench.launch.site.dial"]
    step = start_step(
        ["n2", "n1"], lambda where: [*relay, *where], variables=os.environ, log=tmp_path / "log", session="s"
    )
    try:
        found = step.take(Hello)
        assert [call.said.host for call in found] == ["n2", "n1"]
        assert {call.said.address for call in found} == {"127.0.0.1"}
        assert step.is_alive
        for call in found:
            call.line.close()
    finally:
        step.kill()
    assert not step.is_alive


def test_a_step_takes_over_nothing_of_what_the_batch_was_bound_to(tmp_path: Path) -> None:
    write_srun(tmp_path, '"$@"')
    variables = {**os.environ, "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "MINE": "1"}
    step = start_step(
        ["n1"],
        lambda where: [sys.executable, "-c", TELLS, str(tmp_path / "told")],
        variables=variables,
        log=tmp_path / "log",
        session="s",
        python_path=["/a", "", "/b"],
    )
    assert step.wait(60) == 0
    told = json.loads((tmp_path / "told").read_text())

    assert "SLURM_CPU_BIND" not in told
    assert (told["MINE"], told["PYTHONPATH"], told["DISTBENCH_SESSION"]) == ("1", "/a:/b", "s")

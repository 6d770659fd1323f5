"""An elastic job under torchft: the example of docs/elastic.md, and one that is killed in the middle of a change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_for

from pytest_distbench.store.run_record import read_run_record

pytestmark = pytest.mark.spawn
pytest.importorskip("torchft", reason="engine='torchft' needs torchft")

DOCS = (Path(__file__).parents[2] / "docs" / "elastic.md").read_text()
[EXAMPLE] = [block for block in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL) if "torchft.Optimizer" in block]
COMMAND = ("--world-size", "2", "--distbench-launcher=torchrun")
"""A launcher that prepares nothing, for nodes are not started by it."""


STEP = "        optimizer.step()\n"
WAITING = "        if rank.generation < 2: import time; time.sleep(0.05)\n"
"""Alone, until somebody has joined: on a busy machine a newcomer takes longer to start than the training to end."""


@pytest.mark.usefixtures("closed_doors")
def test_the_example_gains_and_loses_a_node_and_every_sample_is_trained_on_once(pytester: pytest.Pytester) -> None:
    assert STEP in EXAMPLE
    pytester.makepyfile(test_mine=EXAMPLE.replace(STEP, STEP + WAITING).replace('"epochs": 20', '"epochs": 8'))
    result = pytester.runpytest_subprocess(*COMMAND, "-s", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["*elastic: 1 to 2 nodes, 1 at the start, join(*), kill(*); no checkpoint; *torchft*"])
    assert result.ret == 0
    [case] = read_run_record(pytester.path / "run.json").results
    [launch] = case.launches
    values = {m.key: m.value for m in launch.measurements}
    assert launch.elastic is not None
    joined, killed = launch.elastic.changes
    assert (joined.before, joined.after, killed.before, killed.after) == (1, 2, 2, 1)
    assert joined.joiner_ready_s is not None
    assert killed.stall_s is not None
    assert {"detect", "rendezvous", "group_init", "first_step"} <= killed.parts.keys()
    assert killed.steps_redone <= 1  # that one which only the lost node had taken
    assert joined.restarts_used == 0
    assert (values["samples_skipped"], values["samples_repeated"]) == (0, 0)
    assert values["lr[nodes=2]"] == 2 * (values["lr[nodes=1]"] or 0)
    [newcomer] = [worker for worker in launch.elastic.workers if worker.slot == 1 and worker.loaded_s is not None]
    assert newcomer.resumed_at
    assert case.case.key == "ws2.gloo.elastic-torchft"


def test_nothing_is_left_of_a_run_that_is_killed_in_the_middle_of_a_change(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the lighthouse, which is in the controller; the fixture that looks for processes does the rest."""
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    pytester.makepyfile(test_mine=EXAMPLE)
    command = [sys.executable, "-m", "pytest", *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_for(lambda: '"changed"' in timeline(pytester.path), process)
        process.kill()

    wait_for(lambda: not list(pytester.path.rglob("plan.json")))
    assert '"stable","t":' not in timeline(pytester.path).partition('"changed"')[2]


def timeline(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("timeline.jsonl"))

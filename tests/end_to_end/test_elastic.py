"""An elastic job under real torchrun agents: the README's example, and one that is killed in the middle of a change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import wait_for

from pytest_distbench.commands.cli import main
from pytest_distbench.launch.elastic.torchrun import tells_events
from pytest_distbench.store.run_record import read_run_record

pytestmark = pytest.mark.spawn

README = (Path(__file__).parents[2] / "README.md").read_text()
[EXAMPLE] = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "def test_lost_node" in block]
COMMAND = ("-p", "no:sugar", "-p", "no:cacheprovider", "--world-size", "2")


def test_the_example_of_the_readme_loses_a_node_and_every_sample_is_trained_on_once(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    pytester.makepyfile(test_mine=EXAMPLE)
    result = pytester.runpytest_subprocess(*COMMAND, "-s", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["*elastic: 1 to 2 nodes, 2 at the start, kill(at_step=100); checkpoint every 20 *"])
    assert result.ret == 0
    [case] = read_run_record(pytester.path / "run.json").results
    [launch] = case.launches
    values = {m.key: m.value for m in launch.measurements}
    assert launch.elastic is not None
    [change] = launch.elastic.changes
    assert (change.kind, change.slots, change.before, change.after, change.rounds) == ("kill", [1], 2, 1, 1)
    assert change.stall_s is not None
    assert change.recovery_s is not None
    assert 0 <= change.steps_redone <= 20
    assert {"import", "group_init", "build", "checkpoint_load", "first_step"} <= change.parts.keys()
    if tells_events():
        assert {"detect", "rendezvous", "process_start"} <= change.parts.keys()
        assert abs(change.unaccounted_s or 0.0) < 0.1 * change.recovery_s
    assert [epoch.epoch for epoch in launch.elastic.epochs] == [0, 1, 2, 3]
    assert (values["samples_skipped"], values["samples_repeated"], values["checkpoint_interval"]) == (0, 0, 20)
    assert 0 < (values["goodput"] or 0) < 1
    assert str(case.case.key) == "ws2.gloo.elastic-stock"

    main(["report", str(pytester.path / "run.json"), "--table", "events"])
    told = capsys.readouterr().out
    assert "kill of slot 1" in told


@pytest.mark.parametrize("engine", ['engine="stock"', 'engine="fast", timers={"keep_alive_s": 10}'])
def test_nothing_is_left_of_a_run_that_is_killed_in_the_middle_of_a_change(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Nor the plan, which names what ran; the fixture that looks for processes does the rest."""
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    example = EXAMPLE.replace("kill(at_step=100)", "kill(at_step=10)")
    pytester.makepyfile(test_mine=example.replace("checkpoint_every=20", f"checkpoint_every=20, {engine}"))
    command = [sys.executable, "-m", "pytest", *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_for(lambda: '"changed"' in timeline(pytester.path), process)
        process.kill()

    wait_for(lambda: not list(pytester.path.rglob("plan.json")))
    assert '"stable","t":' not in timeline(pytester.path).partition('"changed"')[2]


def timeline(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("timeline.jsonl"))

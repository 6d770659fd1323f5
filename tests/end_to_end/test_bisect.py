"""distbench bisect with real process groups: one more collective in the middle of a few commits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.bisections import make_history
from support.repositories import git

from pytest_distbench.commands.cli import main

pytestmark = pytest.mark.spawn

STEP = """
import torch
import torch.distributed as dist

def body(rank):
    for _ in rank.timed("step", warmup=1, iterations=10):
        dist.all_reduce(torch.ones(4))
        MORE

def test_step(distbench):
    distbench.run(body)
"""


def test_a_planted_collective_is_found_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, planted = STEP.replace("MORE", "pass"), STEP.replace("MORE", "dist.all_reduce(torch.ones(1))")
    files = {"test_step.py": usual, "pytest.ini": "[pytest]\n"}
    make_history(tmp_path, [files, {}, {"test_step.py": planted}, {}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    code = main(["bisect", "HEAD~3", "HEAD", "--", "test_step.py", "--world-size", "2"])
    text = capsys.readouterr().out

    assert code == 0, text
    assert "a: Commit 2\n  fingerprint: step: 1 all_reduce of 4 B float32 was added" in text
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1

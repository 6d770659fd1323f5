"""The whole examination, on this machine."""

from __future__ import annotations

import pytest

from pytest_distbench.commands.cli import main


@pytest.mark.spawn
def test_this_machine_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    output = capsys.readouterr().out

    for subject in ("processor", "other processes", "open files", "loopback", "versions", "torch", "leftovers"):
        assert f" {subject} " in output
    assert code == 0

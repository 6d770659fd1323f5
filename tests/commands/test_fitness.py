"""distbench doctor: what its exit code says."""

from __future__ import annotations

import pytest

from pytest_distbench.commands.cli import main
from pytest_distbench.commands.doctor import examination
from pytest_distbench.commands.doctor.finding import Finding


def test_a_machine_that_cannot_run_tests_is_exit_code_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding("fail", "loopback", "down\x1b[2J", "ip link set lo up")
    monkeypatch.setattr(examination, "examine", lambda: iter([finding]))

    assert main(["doctor"]) == 1
    assert "down\\x1b[2J" in capsys.readouterr().out

"""Another Python: what it must have to run ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.machine.interpreters import find_interpreter


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("hello", "does not answer as a Python 3 does: hello"),
        ('[[3, 12, 1], {"torch": "2.4.1", "numpy": "2", "msgspec": "1", "psutil": "7"}, []]', "2.4.1; ranks need 2"),
        ('[[3, 9, 1], {"torch": "2.9"}, []]', "Python 3.9.1; ranks need 3.11 or later"),
        (
            '[[3, 12, 1], {"torch": "2.9", "numpy": "2"}, []]',
            "it lacks msgspec, psutil; .*-m pip install msgspec psutil",
        ),
    ],
)
def test_a_python_that_cannot_run_ranks_is_refused(tmp_path: Path, answer: str, said: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho '{answer}'\n")
    fake.chmod(0o755)

    with pytest.raises(ConfigurationError, match=said):
        find_interpreter("python", tmp_path)


def test_the_running_python_can_run_ranks() -> None:
    assert "torch" in str(find_interpreter(sys.executable, Path()))

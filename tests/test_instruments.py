"""``pytest_distbench.record``, ``timed`` and ``phase`` where the plugin does not run the script."""

from __future__ import annotations

import subprocess
import sys

import pytest_distbench


def test_without_the_plugin_they_do_nothing() -> None:
    pytest_distbench.record("loss", object(), better="nonsense", at=3)  # type: ignore[arg-type]
    with pytest_distbench.phase("forward"):
        pass

    assert list(pytest_distbench.timed("step", warmup=2, iterations=3)) == [-2, -1, 0, 1, 2]


def test_without_the_plugin_they_import_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_distbench import phase, record, timed; record('a', 1)\n"
        "print([m for m in ('torch', 'msgspec', 'numpy', 'pytest', 'pytest_distbench.records') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert told == "[]\n"

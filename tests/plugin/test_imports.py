"""What the plugin costs a run that does not use it: modules, not milliseconds, because a clock would flake."""

from __future__ import annotations

import subprocess
import sys


def test_a_plain_run_loads_a_handful_of_our_modules_and_no_heavy_package() -> None:
    code = """
import sys, pytest, pytest_distbench.plugin, pytest_distbench.plugin.settings, pytest_distbench.plugin.markers
heavy = {"torch", "numpy", "pandas", "scipy", "msgspec", "psutil", "filelock", "pynvml"}
print(sorted(heavy & set(sys.modules)))
print(sorted(m for m in sys.modules if m.startswith("pytest_distbench.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, ours = done.stdout.splitlines()

    assert heavy == "[]"
    assert ours == str(
        [
            f"pytest_distbench.{name}"
            for name in ("choices", "errors", "markers", "options", "plugin", "results", "settings", "units")
        ]
    )

"""The README is true: its test runs, its options exist, its failure looks as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.spawn
def test_the_example_runs_as_described(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    example = next(block for block in blocks if "def body(rank)" in block)
    sweep = next(block for block in blocks if "collective_sweep(" in block)
    pytester.makepyfile(test_mine=example, test_sweep=sweep)
    result = pytester.runpytest_subprocess("-p", "no:sugar", "-p", "no:cacheprovider", "--world-size", "2", "-v", "-rs")

    result.stdout.fnmatch_lines(
        [
            "*test_mine?ws2? NEW*",
            "*test_mine?ws4? SKIPPED*",
            "*test_all_reduce?ws2? NEW*",
            "*not run: needs 4 ranks, 2 given*",
        ]
    )
    assert result.ret == 0


def test_every_option_of_the_readme_exists(pytester: pytest.Pytester) -> None:
    help_text = pytester.runpytest_inprocess("--help").stdout.str()
    options = set(re.findall(r"--(?:distbench-[a-z-]+|world-size|gpu)\b", README))

    assert {option for option in options if option not in help_text} == set()


def test_every_file_of_the_readme_exists() -> None:
    names = re.findall(r"`((?:pytest_distbench|suites|benchmarks|docs|\.github)/[\w./-]+)`", README)
    modules = re.findall(r"`((?:worker/|launch/)?\w+\.py)`", README[README.index("## Reading the code") :])

    assert [n for n in names if not (ROOT / n).exists()] == []
    assert [m for m in modules if not (ROOT / "pytest_distbench" / m).exists()] == []

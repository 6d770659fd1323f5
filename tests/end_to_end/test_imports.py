"""What the plugin costs a run that does not use it: in modules, not milliseconds, because a timing would flake."""

from __future__ import annotations

import pytest

from pytest_distbench.extensions import EXTENSIONS

HEAVY = {"torch", "numpy", "pandas", "scipy", "msgspec", "psutil", "filelock", "pynvml", "subprocess"}
OURS = [
    "pytest_distbench",
    *(f"pytest_distbench.{name}" for name in EXTENSIONS),
    *(f"pytest_distbench.{name}.{module}" for name in EXTENSIONS for module in ("extension", "plugin")),
    "pytest_distbench.errors",
    "pytest_distbench.extensions",
    "pytest_distbench.plugin",
    "pytest_distbench.plugin.carry",
    "pytest_distbench.plugin.collect",
    "pytest_distbench.plugin.fixtures",
    "pytest_distbench.plugin.names",
    "pytest_distbench.plugin.settings",
    "pytest_distbench.plugin.fixtures",
    "pytest_distbench.records",
    "pytest_distbench.records.wanted",
    "pytest_distbench.records.options",
    "pytest_distbench.records.wanted",
    "pytest_distbench.units",
]
"""Beyond these nothing of ours may be imported by a run without a test of ours, at its very end neither."""

LAST_WORDS = """
    import atexit, sys

    before = set(sys.modules)

    def print_modules():
        ours = sorted(name for name in sys.modules if name.partition(".")[0] == "pytest_distbench")
        print("OURS", *ours)
        print("ALL", *sorted(sys.modules))

    atexit.register(print_modules)
"""


@pytest.mark.other_plugins
@pytest.mark.parametrize("options", [(), ("-n", "1"), ("-p", "no:terminal"), ("--collect-only",)])
def test_a_plain_run_loads_a_handful_of_our_modules_and_no_heavy_package(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makeconftest(LAST_WORDS)
    pytester.makepyfile(test_empty="def test_empty():\n    pass\n")
    common = ("-p", "no:benchmark", "-p", "no:hypothesispytest", "-p", "no:sugar", "-p", "no:cacheprovider")
    plain = _modules(pytester.runpytest_subprocess("-p", "no:distbench", *common, *options), "ALL")
    result = pytester.runpytest_subprocess(*common, *options)

    assert _modules(result, "OURS") <= set(OURS)
    assert (_modules(result, "ALL") - plain) & HEAVY == set()


def test_to_collect_tests_of_ours_imports_no_launch_and_no_rule(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(LAST_WORDS)
    pytester.makepyfile(test_it="def test_it(distbench):\n    distbench.run(print)\n")
    result = pytester.runpytest_subprocess("--collect-only", "-q", "--world-size=2")

    result.stdout.fnmatch_lines(["test_it.py::test_it?ws2?"])
    unused = ("run.launching", "run.session", "run.confirm", "launch.supervise", "judging.outcome", "report.terminal")
    assert _modules(result, "OURS") & {f"pytest_distbench.{name}" for name in unused} == set()
    assert _modules(result, "ALL") & {"torch", "numpy", "pandas", "psutil", "filelock"} == set()


def _modules(result: pytest.RunResult, label: str) -> set[str]:
    lines = [line for line in result.outlines if line.startswith(f"{label} ")]
    assert len(lines) == 1
    return set(lines[0].split()[1:])

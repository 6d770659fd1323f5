"""Tests that passed only when a plugin ran them again, a line each."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_distbench.records.run import CaseResult


def flaky_tests(results: Iterable[CaseResult]) -> dict[str, str]:
    """Node id -> at which attempt the test passed, and what ended the first one; once per test, not per case."""
    tests = {result.nodeid: result.flaky for result in results if result.flaky}
    return {nodeid: f"flaky: passed at attempt {len(ended) + 1}, before: {ended[0]}" for nodeid, ended in tests.items()}

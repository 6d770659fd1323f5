"""Naming one case: the test and its id, and the command that runs it again under the same options."""

from __future__ import annotations

import os
import shlex

import pytest

_FLAGS = frozenset({"--gpu", "--distbench-gpu", "--distbench-share-gpu"})
_WITH_VALUE = frozenset({
    "-c", "--config-file", "--rootdir", "--confcutdir", "-p", "-o", "--override-ini", "--import-mode",
    "--world-size", "--distbench-world-size", "--distbench-backend", "--distbench-launcher", "--distbench-baselines",
    "--distbench-platform", "--distbench-tolerance", "--distbench-max-message", "--distbench-timeout",
})  # fmt: skip


def _switches_off(arguments: list[str]) -> bool:
    """``-p no:cacheprovider``: such plugins change the screen, not the measurement."""
    return arguments[0] == "-p" and arguments[-1].startswith("no:")


def rerun_command(config: pytest.Config, nodeid: str) -> str:
    """The command, to be typed where this run was started: ``pytest 'suites/test_a.py::test_b[ws4]' --gpu``."""
    kept = []
    arguments = [str(argument) for argument in config.invocation_params.args]
    for i, argument in enumerate(arguments):
        option, separator, _ = argument.partition("=")
        if option in _FLAGS or (option in _WITH_VALUE and separator):
            kept.append(argument)
        elif option in _WITH_VALUE and not _switches_off(arguments[i : i + 2]):
            kept += arguments[i : i + 2]
    file, separator, function = nodeid.partition("::")
    path = os.path.relpath(config.rootpath / file, config.invocation_params.dir)
    return shlex.join(["pytest", f"{path}{separator}{function}", *kept])


def test_and_id(item: pytest.Item) -> tuple[str, str]:
    """A node id taken apart: ``("suites/test_a.py::test_b", "ws4")``. Brackets in folders and ids do not matter."""
    case_id = getattr(getattr(item, "callspec", None), "id", None)
    if case_id is not None and item.nodeid.endswith(f"[{case_id}]"):
        return item.nodeid.removesuffix(f"[{case_id}]"), case_id
    return item.nodeid, ""

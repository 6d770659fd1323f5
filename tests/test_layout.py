"""Tests lie as the code does: each module with logic has its test file, and each test file its module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pytest_distbench"
TESTS = ROOT / "tests"
EXEMPT = {
    "__init__.py": "its face is tested in tests/test_package.py",
    "errors.py": "exceptions that hold what they are given; those who raise them test the texts",
    **dict.fromkeys(
        (
            "records/launch.py",
            "records/plan.py",
            "records/rank.py",
            "records/record.py",
            "run/settings.py",
            "workloads/collectives/__init__.py",
        ),
        "fields or rows of a table, and no rule of its own",
    ),
    "workloads/collectives/rows.py": "numbers in tests/workloads/collectives/test_operation.py, calls in test_sweep.py",
    "worker/forked.py": "lives in forked processes: tests/end_to_end/test_surroundings.py",
    "launch/side.py": "fields, and no rule of its own",
    "launch/starters/warm.py": (
        "live with real process groups: tests/launch/starters/test_contract.py, end_to_end/test_interruptions.py"
    ),
    "launch/starters/parent.py": "lives on nodes: tests/launch/starters/test_slurm.py, tests/end_to_end/test_slurm.py",
    "launch/starters/torchrun_relay.py": "lives on nodes: tests/end_to_end/test_slurm.py",
    "worker/member.py": "what a rank has beside its loops: tests/worker/test_context.py",
    "worker/elastic/node.py": "what an elastic rank has beside its training: tests/worker/elastic/test_training.py",
    **dict.fromkeys(
        (
            "worker/main.py",
            "worker/recorder.py",
            "worker/side_group.py",
        ),
        "the life of a rank's process, in a group: tests/launch/starters/test_contract.py",
    ),
    "jobs/control/__main__.py": "lives with real torchrun agents: tests/end_to_end/test_elastic.py",
    "worker/elastic/rank.py": "hands out a training: tests/worker/elastic/test_training.py",
    "jobs/engines/contract.py": "a protocol, and no rule of its own",
    **dict.fromkeys(
        ("jobs/engines/fast_agent.py", "jobs/engines/fast_rendezvous.py"),
        "live with real forked agents: tests/end_to_end/test_elastic_engines.py",
    ),
    "jobs/pool/job.py": "a part of a pool: tests/jobs/pool/test_controller.py, tests/plugin/test_pool.py",
    "jobs/pool/servers.py": "lives with real processes: tests/end_to_end/test_pool.py",
    "launch/starters/forkserver.py": "lives with a real forkserver: tests/launch/starters/test_contract.py",
    **dict.fromkeys(
        (
            "launch/readers/csv_file.py",
            "launch/readers/jsonl.py",
            "launch/readers/mllog.py",
            "launch/readers/stdout.py",
        ),
        "a reader is its row in the table: tests/launch/readers/test_readers.py",
    ),
    "launch/readers/check.py": "refuses arguments of a test: tests/plugin/test_arguments.py",
    "records/reader.py": "fields and a table, and no rule of its own",
    "read.py": "names the readers: tests/launch/readers/test_readers.py",
    "worker/apart.py": "lives in processes that others start: tests/launch/test_command.py",
    "worker/script.py": "runs as __main__ of a rank: tests/end_to_end/test_scripts.py",
    "plugin/workload.py": "joins arguments of a test: tests/plugin/test_arguments.py, tests/end_to_end/test_scripts.py",
    **dict.fromkeys(
        ("plugin/fixtures.py", "plugin/requests.py", "plugin/state.py"),
        "joins arguments, markers and settings of a pytest run: tests/plugin/test_plugin.py and test_distbench.py",
    ),
}
"""Modules without a test file of their own, and why they need none."""
ACROSS = {"end_to_end", "support"}
"""Folders of tests that belong to no room."""


def expected(module: Path) -> Path:
    """Where the tests of a module are, below the folder of tests."""
    name = module.parent.name if module.name == "__init__.py" else module.stem
    return module.parent.relative_to(PACKAGE) / f"test_{name}.py"


def has_logic(module: Path) -> bool:
    """Whether it has a function or method: fields and rows of a table are tested where they are used."""
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(module.read_text())))


def test_each_module_with_logic_has_its_test_file() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if has_logic(path)]
    lacking = {str(p.relative_to(PACKAGE)) for p in modules if not (TESTS / expected(p)).is_file()}

    assert lacking == EXEMPT.keys()


def test_each_test_file_of_a_room_has_its_module() -> None:
    known = {expected(path) for path in PACKAGE.rglob("*.py")}
    files = {path.relative_to(TESTS) for path in TESTS.rglob("test_*.py") if path.parent != TESTS}

    assert {str(path) for path in files if path.parts[0] not in ACROSS} <= {str(path) for path in known}


def test_tests_that_share_a_launcher_go_to_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist tells groups by the ends of ids. A group of nobody's costs a launcher for each of its tests."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process has all tests")
    grouped = [item for item in request.session.items if item.get_closest_marker("xdist_group")]

    assert [item.nodeid for item in grouped if "@" not in item.nodeid.rpartition("]")[2]] == []

"""Tests lie as the code does: each module with logic has its test file, and each test file its module."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pytest_distbench"
TESTS = ROOT / "tests"
EXEMPT: dict[str, str] = {}
"""Modules without a test file of their own, and why they need none."""
ACROSS = {"end_to_end", "support"}
"""Folders of tests that belong to no room."""


def expected(module: Path) -> Path:
    """Where the tests of a module are, below the folder of tests."""
    name = module.parent.name if module.name == "__init__.py" else module.stem
    return module.parent.relative_to(PACKAGE) / f"test_{name}.py"


def has_logic(module: Path) -> bool:
    """Whether there is more than a docstring."""
    return len(module.read_text().strip().splitlines()) > 4


def test_each_module_with_logic_has_its_test_file() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if has_logic(path)]
    lacking = {str(p.relative_to(PACKAGE)) for p in modules if not (TESTS / expected(p)).is_file()}

    assert lacking == EXEMPT.keys()


def test_each_test_file_of_a_room_has_its_module() -> None:
    known = {expected(path) for path in PACKAGE.rglob("*.py")}
    files = {path.relative_to(TESTS) for path in TESTS.rglob("test_*.py") if path.parent != TESTS}

    assert {str(path) for path in files if path.parts[0] not in ACROSS} <= {str(path) for path in known}

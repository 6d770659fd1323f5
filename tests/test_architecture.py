"""docs/dev/architecture.md is the map of this package: its layers are those of the import contract."""

from __future__ import annotations

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_distbench"
PAGE = (ROOT / "docs" / "dev" / "architecture.md").read_text()


def layers_of_the_page() -> list[set[str]]:
    """The diagram, from the top."""
    [diagram] = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    return [set(re.split(r" \| ", re.split(r" {2,}", line)[1])) for line in diagram.splitlines()]


def layers_of_the_contract() -> list[set[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layered] = [contract for contract in contracts if contract["type"] == "layers"]
    return [set(re.findall(r"pytest_distbench\.(\w+)", layer)) for layer in layered["layers"]]


def rooms() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_layers_are_those_that_imports_are_checked_by() -> None:
    assert layers_of_the_page() == layers_of_the_contract()


def test_every_module_and_room_has_a_place_on_the_map() -> None:
    doors = {"__init__", "__main__"}  # the package's own, and that of the room commands
    modules = {path.stem for path in PACKAGE.glob("*.py")} - doors

    assert set().union(*layers_of_the_page()) == rooms() | modules


def test_every_room_is_described_once() -> None:
    described = re.findall(r"^\| `(\w+)` \|", section("Rooms and layers"), re.MULTILINE)

    assert sorted(described) == sorted(rooms())


def test_every_module_of_a_tests_life_and_every_place_exists() -> None:
    named = set(re.findall(r"`([\w/]+/(?:\w+\.py)?)`", PAGE))

    assert len(named) > 40
    assert {name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()} == set()


def test_the_path_of_a_test_is_one_short_module_that_names_every_room_of_the_core_but_commands_and_test_kit() -> None:
    path = (PACKAGE / "plugin" / "path.py").read_text()
    core = set().union(*layers_of_the_contract()[1:]) & rooms()

    assert path.count("\n") <= 120
    assert core - set(re.findall(r"(\w+)(?=[./]\w)", path)) == {"commands", "testing"}
    assert {name for name in re.findall(r"[\w/]+\.py", path) if not (PACKAGE / name).exists()} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and those of types alone count too: who reads one module has to know the other."""
    graph = grimp.build_graph("pytest_distbench")

    TopologicalSorter({m: graph.find_modules_directly_imported_by(m) for m in graph.modules}).prepare()

"""What every Python below a command does at its start, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_distbench.worker

SITE = Path(pytest_distbench.worker.__file__).parent / "site"


def python(code: str, *path: Path, **env: str) -> str:
    joined = os.pathsep.join(map(str, [SITE, *path]))
    return subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": joined, **env}, check=True, capture_output=True, text=True
    ).stdout


def test_the_users_own_runs_and_finds_what_it_would_find(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    found = python("import sitecustomize, sys; print(sitecustomize.__file__); print(sys.path[1])", tmp_path)

    assert found.splitlines() == ["theirs", str(tmp_path / "sitecustomize.py"), str(tmp_path)]


JOIN = "from torch.distributed import distributed_c10d as d; print(d.init_process_group(3))"


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """Folder of a torch that is made up: every group has two ranks."""
    package = tmp_path / "stand_in" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text("init_process_group = float\nget_world_size = lambda: 2\n")
    return package.parents[1]


def test_it_notes_the_groups_and_changes_no_result(torch: Path, tmp_path: Path) -> None:
    assert python(JOIN, torch, DISTBENCH_NOTES=str(tmp_path / "plan.json")) == "3.0\n"
    assert {path.name for path in tmp_path.glob("joined*")} == {"joined0", "joined2"}


@pytest.mark.parametrize("prefix", [".", "working/env"])
def test_what_is_installed_in_the_working_tree_is_imported_from_the_tree_of_this_side(
    tmp_path: Path, prefix: str
) -> None:
    """A folder on sys.path installs it, as a .pth file adds it, or a hook of setuptools, which is there before.

    The working tree may be below Python's own folder, as /usr/src/app is, and that in the working tree, as .venv is.
    """
    working, tree = tmp_path / "working", tmp_path / "working" / "tmp" / "tree"
    (tmp_path / "plan.json").write_text(json.dumps({"tree": str(tree), "foreign_tree": str(working)}))
    hook = f"""
import sys, types
sys.prefix = {str(tmp_path / prefix)!r}
hook = sys.modules["__editable___pkg_1_finder"] = types.ModuleType("hook")
hook.MAPPING, hook.NAMESPACES = {{"pkg": "{working}/pkg", "other": "/other"}}, {{"spaced": ["{working}/spaced"]}}
import sitecustomize
print(*hook.MAPPING.values(), *hook.NAMESPACES["spaced"], *sys.path[1:5])
"""
    path = [SITE, working / "src", tree / "lib", tmp_path / "working2", working / "env" / "lib"]
    told = subprocess.run(
        [sys.executable, "-S", "-c", hook],
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), "DISTBENCH_NOTES": str(tmp_path / "plan.json")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert told.split() == [
        *(f"{tree}/pkg", "/other", f"{tree}/spaced"),
        *(f"{tree}/src", f"{tree}/lib", f"{tmp_path}/working2", f"{tree if prefix == '.' else working}/env/lib"),
    ]


def test_a_rank_that_imports_an_installed_copy_of_a_package_of_the_repository_fails_the_command(
    torch: Path, tmp_path: Path
) -> None:
    tree, installed = tmp_path / "tree", tmp_path / "site-packages"
    for folder in (tree / "src" / "copied", installed / "copied", installed / "other"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (tmp_path / "plan.json").write_text(json.dumps({"tree": str(tree), "foreign_tree": "/elsewhere"}))
    notes = {"DISTBENCH_NOTES": str(tmp_path / "plan.json"), "RANK": "1"}
    python("import torch.distributed.distributed_c10d, copied, other", torch, installed, **notes)
    told = [json.loads(line)[1:] for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]

    assert [(who, what) for who, what, *_ in told] == [("rank 1", "began"), ("rank 1", "raised")]
    assert told[1][3].startswith(f"imported {installed}/copied/__init__.py, a copy of a package")


def test_where_the_user_has_none_nothing_of_it_is_on_the_path() -> None:
    assert python(f"import sys; print({str(SITE)!r} in sys.path)") == "False\n"


def test_it_harms_nobody_where_there_is_no_launch_any_more(torch: Path, tmp_path: Path) -> None:
    assert python(JOIN, torch, DISTBENCH_NOTES=str(tmp_path / "gone" / "plan.json")) == "3.0\n"
    assert python(JOIN, torch) == "3.0\n"


def test_a_worker_of_an_elastic_job_notes_when_it_requested_and_joined_its_group(torch: Path, tmp_path: Path) -> None:
    python(JOIN, torch, DISTBENCH_NOTES=str(tmp_path / "plan.json"), DISTBENCH_SLOT="1", RANK="0")
    notes = [json.loads(line) for line in (tmp_path / "workers.jsonl").read_text().splitlines()]

    assert [note["what"] for note in notes] == ["process", "torch", "call", "group"]

"""Bodies: how they are found in a rank, and what is no body."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_distbench.errors import BodyError, ForeignModuleError
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.releases import GENERATED_MODULE
from pytest_distbench.worker import bodies


def test_a_module_that_came_from_the_working_tree_all_the_same_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editable install with an import hook does it, and not for modules of the worktree, wherever that is."""
    (tmp_path / "led_astray.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("led_astray")
    astray, fine, none = (SimpleNamespace(tree=tree, foreign_tree=str(tmp_path)) for tree in ("/other", tmp_path, ""))

    with pytest.raises(ForeignModuleError, match=r"module led_astray was imported from .*led_astray\.py"):
        bodies.check_origin(cast("LaunchPlan", astray))
    bodies.check_origin(cast("LaunchPlan", fine))
    bodies.check_origin(cast("LaunchPlan", none))
    monkeypatch.delitem(sys.modules, "led_astray")


def test_a_module_that_torch_wrote_to_a_temporary_folder_came_from_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a TMPDIR in the working tree; torch 2.8 and older write one in every process."""
    (tmp_path / f"{GENERATED_MODULE}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, GENERATED_MODULE, raising=False)
    importlib.import_module(GENERATED_MODULE)

    bodies.check_origin(cast("LaunchPlan", SimpleNamespace(tree="/other", foreign_tree=str(tmp_path))))
    monkeypatch.delitem(sys.modules, GENERATED_MODULE)


async def coroutine() -> None:
    pass


def generator() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("body", [coroutine, generator, stream])
def test_a_body_that_has_not_run_is_told(body: Callable[[], object]) -> None:
    with pytest.raises(BodyError, match="so nothing of it has run; wanted a plain function"):
        bodies.check_ran(body())


@pytest.mark.parametrize("returned", [None, 5, [1], iter([1])])
def test_what_else_a_body_returns_is_its_own_affair(returned: object) -> None:
    bodies.check_ran(returned)

"""Tests without a file: each model of ``--distbench-model`` under each layout is an item of pytest."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.layouts import (
    GRADIENT_DEVIATION,
    LAYOUT_NAMES,
    LIBRARIES,
    LOSS_DEVIATION,
    RANDOM_CONFLICTS,
    STATE_DEVIATION,
    why_no_library,
)
from pytest_distbench.plugin.names import CHOSEN_BY

_SLOW = ("compiled", "inductor")  # a minute and more

if TYPE_CHECKING:
    from pytest_distbench.layouts.fixtures import Equivalent


def read_models(text: str) -> str | None:
    """Check the value of ``--distbench-model`` and return it, or None if it names no model."""
    return text if list(_split(text)) else None


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Yield the file or library of each model, and its name there: ``transformers:a,b,file.py::make``.

    Raises:
        ConfigurationError: a part names no model.
    """
    library = ""
    for part in filter(None, map(str.strip, text.split(","))):
        file, separator, name = part.partition("::")
        if separator and file and name.isidentifier():
            yield file, name
            continue
        before, separator, name = part.rpartition(":")
        library = before if separator else library
        if library not in LIBRARIES or not name.replace("-", "_").isidentifier():
            raise ConfigurationError(f"{part!r}; wanted {' or '.join(LIBRARIES)}:NAME[,NAME], or file.py::make")
        yield library, name.replace("-", "_")


def preload(text: str) -> list[str]:
    """Return the modules that the ranks of these models need, to import them once for all."""
    libraries = dict.fromkeys(place for place, _ in _split(text) if place in LIBRARIES)
    return [f"{__package__}.from_{name}" for name in libraries if not why_no_library(name)]


class ModelCollector(pytest.Module):
    """Collector of the models of one library or file, as the tests of a module."""

    place: str

    def funcnamefilter(self, name: str) -> bool:
        return not name.startswith("__")

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        for item in super().collect():
            model = _spelt(self.place, item.name.partition("[")[0])
            item.stash[CHOSEN_BY] = ["-k", item.name, "--distbench-model", model]
            yield item


def collectors(session: pytest.Session, text: str, folder: Path) -> Iterator[ModelCollector]:
    """Yield a collector for each library or file of the models in the option.

    Args:
        session: session that collects; a library's path is below its root directory.
        text: value of the option.
        folder: directory that its paths are relative to.
    """
    by_place: dict[str, list[str]] = {}
    for place, name in _split(text):
        by_place.setdefault(place, []).append(name)
    for place, names in by_place.items():
        is_file = place not in LIBRARIES
        path = folder / place if is_file else session.config.rootpath / place
        if is_file and not path.is_file():
            raise pytest.UsageError(f"--distbench-model: there is no file {path}")
        made = ModelCollector.from_parent(session, path=path)
        tests = types.ModuleType(place)
        for name in dict.fromkeys(names):
            vars(tests)[name] = _test(_spelt(str(path) if is_file else place, name), name)
        made.obj, made.place = tests, place
        yield made


def _spelt(place: str, name: str) -> str:
    return f"{place}{':' if place in LIBRARIES else '::'}{name}"


def _layout(name: str) -> Any:
    return pytest.param(name, marks=[pytest.mark.full] * (name in _SLOW))


def _test(model: str, name: str) -> Callable[..., None]:
    @pytest.mark.distbench(metrics=[LOSS_DEVIATION, GRADIENT_DEVIATION, STATE_DEVIATION, RANDOM_CONFLICTS])
    @pytest.mark.parametrize("layout", [*map(_layout, LAYOUT_NAMES)])
    def test(equivalent: Equivalent, layout: str) -> None:
        equivalent.model(model, layout)

    test.__name__ = test.__qualname__ = name
    return test

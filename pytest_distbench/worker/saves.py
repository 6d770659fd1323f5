"""SaveWatch: what this rank saves, read during the call of ``torch.save``, torch.distributed.checkpoint or safetensors.

A file counts by its tensors and numbers as last saved, without texts, times of day and random states. An asynchronous
checkpoint is read when it is requested. What a body's own threads save is not read: it may come too late in some
launches.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pytest_distbench.records.trained import UPDATES, TensorState
from pytest_distbench.worker.tensors import form_of, own_part, state_of, state_of_number

WHOLE_BYTES, ONE_IN = 2 * 2**30, 8  # per launch: beyond these bytes one saved tensor in so many is read

_DATE = r"(?:19|20)\d\d[-_.]?(?:0[1-9]|1[0-2])[-_.]?[0-3]\d"
_HOUR = r"[0-2]\d[-_.:]?[0-5]\d(?:[-_.:]?[0-5]\d)?"
_MEASURED = r"\d+\.\d{3,}"
_SECONDS = r"(?<!\d)1\d{9}(?:\d{3})?(?!\d)"
_TIME = re.compile(rf"{_DATE}(?:[-_.T ]?{_HOUR})?|{_MEASURED}|{_SECONDS}|(?<=[-_])[0-2]\d([-_:.])[0-5]\d\1[0-5]\d")
"""Changing parts of file names: dates, hours, seconds and milliseconds since 1970, measured numbers such as a loss."""
_RANDOM = re.compile(r"rng|random|generator", re.IGNORECASE)
_OF_TIME = re.compile(r"time|elapsed|second|minute|hour|duration|date(?!s)|eta$|speed|per_sec", re.IGNORECASE)
_LONGEST_SERIES, _DEEPEST, _MOST_NUMBERS, _LARGEST = 16, 20, 1000, 2**1000
_BYTES = "bytes"
_WHAT, _WHERE = ("what", "obj", "tensors", "state_dict"), ("where", "f", "filename", "checkpoint_id", "storage_writer")
"""Arguments of functions that save, by their position or names."""


class SaveWatch:
    """Reads what this rank saves. ``saved``: ``model.pt: layer1.weight`` -> state; ``remarks``: what was skipped."""

    def __init__(
        self, *, world_size: int, folder: Path, updates: Callable[[], int], is_clocked: Callable[[], bool]
    ) -> None:
        self.saved: dict[str, TensorState] = {}
        self.remarks: dict[str, None] = {}
        self._folder = folder
        self._updates = updates
        self._is_clocked = is_clocked
        self._bytes_left = WHOLE_BYTES // world_size
        self._is_inside = False
        self._replaced: list[tuple[Any, str, Any]] = []
        self._finder = _Finder(
            {
                "safetensors.torch": lambda module: self._replace(module, "save_file", self._saving),
                "torch.distributed.checkpoint.filesystem": self._watch_writer,
                "torch.distributed.checkpoint.state_dict_saver": lambda module: self._replace(
                    module, "async_save", self._saving
                ),
            }
        )

    def begin(self) -> None:
        """Replace the functions that save, before the body is imported, which may import one of them by name."""
        self._replace(torch, "save", self._saving)
        self._replace(torch.serialization, "save", self._saving)
        for name, watch in self._finder.wanted.items():
            if (module := sys.modules.get(name)) is not None:
                watch(module)
        sys.meta_path.insert(0, self._finder)

    def end(self) -> None:
        for of, name, function in reversed(self._replaced):
            setattr(of, name, function)
        self._replaced.clear()
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)

    def _watch_writer(self, module: ModuleType) -> None:
        if "write_data" in vars(of := getattr(module, "_FileSystemWriter", object)):
            self._replace(of, "write_data", self._writing)

    def _replace(self, of: Any, name: str, wrap: Callable[..., Any]) -> None:
        function = getattr(of, name)
        self._replaced.append((of, name, function))
        setattr(of, name, wrap(function))

    def _saving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``torch.save(obj, f)``, ``save_file(tensors, filename)`` or ``async_save(state_dict)``."""

        @functools.wraps(function)
        def save(*args: Any, **options: Any) -> Any:
            named = dict(zip(("what", "where"), args, strict=False)) | options
            what = next((named[name] for name in _WHAT if name in named), None)
            where = next((named[name] for name in _WHERE if name in named), None)
            self._note(lambda: (_name_of(where, self._folder), _leaves(what)))
            return function(*args, **options)

        return save

    def _writing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method of torch.distributed.checkpoint that writes this rank's part."""

        @functools.wraps(function)
        def write_data(writer: Any, plan: Any, planner: Any) -> Any:
            self._note(lambda: (_name_of(writer.path, self._folder), _planned(plan, planner)))
            self._is_inside, before = True, self._is_inside
            try:
                return function(writer, plan, planner)
            finally:
                self._is_inside = before

        return write_data

    def _note(self, look: Callable[[], tuple[str, Iterator[tuple[str, object]]]]) -> None:
        if self._is_inside or not self._replaced:
            return  # a part of what was noted at the writer; or a body has kept the function for later
        if self._is_clocked():
            self.remarks["what was saved in a timed loop was not read"] = None
            return
        if threading.current_thread() is not threading.main_thread():
            self.remarks["what threads saved was not read"] = None
            return
        try:
            name, leaves = look()
            self.saved[f"{name}: {UPDATES}"] = state_of_number(self._updates())
            for number, (key, value) in enumerate(leaves):
                if not isinstance(value, torch.Tensor) and number >= _MOST_NUMBERS:
                    continue
                if (state := self._state(value, number)) is not None:
                    self.saved[f"{name}: {key}".encode(errors="replace").decode()] = state
        except Exception as error:  # noqa: BLE001 an object of anybody's: no training may end by it
            self.remarks[f"something that was saved could not be read: {type(error).__name__}"] = None

    def _state(self, value: object, number: int) -> TensorState | None:
        if not isinstance(value, torch.Tensor):
            return state_of_number(float(value))  # type: ignore[arg-type] # _leaves gives numbers and tensors
        part = own_part(value)
        if part is None:
            return None
        if self._bytes_left <= 0 and number % ONE_IN:
            self.remarks[
                f"more than {WHOLE_BYTES // 2**30} GiB were saved: of the rest one tensor in {ONE_IN} was read"
            ] = None
            return TensorState(form_of(value), "", 0.0)
        self._bytes_left -= part.numel() * part.element_size()
        return state_of(value)


class _Finder:
    """An import hook that calls a function with each of some modules right after its import; it finds no modules."""

    def __init__(self, wanted: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.wanted = wanted
        self._is_asking = False

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.wanted or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_watch(module: ModuleType) -> None:
                execute(module)
                self.wanted[name](module)

            spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign] # of this one instance
        return spec


def _name_of(file: object, folder: Path) -> str:
    place = file if isinstance(file, str | os.PathLike) else getattr(file, "name", getattr(file, "path", None))
    if not isinstance(place, str | os.PathLike):
        return _BYTES
    path = Path(os.path.abspath(os.fspath(place)))
    near = next((path.relative_to(root) for root in (folder, Path.cwd()) if path.is_relative_to(root)), path.name)
    return _TIME.sub("*", str(near))


def _leaves(
    value: object, name: str = "", depth: int = 0, seen: dict[int, object] | None = None
) -> Iterator[tuple[str, object]]:
    """Tensors and numbers in an object, by the first keys that lead to them."""
    seen = {} if seen is None else seen
    if isinstance(value, Mapping | list | tuple) or hasattr(value, "__dict__"):
        if id(value) in seen and not isinstance(value, torch.Tensor):
            return
        seen[id(value)] = value  # held, as what is made here is gone soon, and its number another one's
    match value:
        case torch.Tensor():
            is_random = value.dtype == torch.uint8 and value.dim() == 1 and _RANDOM.search(name)
            yield from [] if is_random else [(name, value)]
        case bool() | int() | float() if not (abs(value) >= _LARGEST or _OF_TIME.search(name.rpartition(".")[2])):
            yield name, value
        case Mapping() if depth < _DEEPEST:
            for key, inner in value.items():
                yield from _leaves(inner, f"{name}.{key}" if name else str(key), depth + 1, seen)
        case list() | tuple() if depth < _DEEPEST:
            are_numbers = len(value) > _LONGEST_SERIES and all(isinstance(v, int | float) for v in value)
            for i, inner in enumerate(() if are_numbers else value):  # such as the state of Python's random
                yield from _leaves(inner, f"{name}.{i}" if name else str(i), depth + 1, seen)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type) and depth < _DEEPEST:
            yield from _leaves(vars(value), name, depth + 1, seen)
        case _ if callable(make := getattr(value, "state_dict", None)) and not isinstance(value, type):
            yield from _leaves(make(), name, depth + 1, seen)


def _planned(plan: Any, planner: Any) -> Iterator[tuple[str, object]]:
    for item in plan.items:
        if item.tensor_data is not None:
            yield item.index.fqn, planner.resolve_data(item)

"""What a test hands to the ranks: a body, named so that they can import it, and parameters as JSON."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, cast

from pytest_distbench.errors import BodyError, show
from pytest_distbench.records.wire import can_be_written
from pytest_distbench.records.work import BodyReference


def locate(body: object, *, beside: Path, argument: str = "body") -> BodyReference:
    """Find out how a rank can import a function by name from a file, or where a script is."""
    if isinstance(body, str | os.PathLike):
        return _named(os.fspath(body), beside, argument)
    if inspect.ismethod(body) and not inspect.isclass(body.__self__):
        return _method(body, argument)
    function = body.__func__ if inspect.ismethod(body) else body
    if not inspect.isfunction(function):
        raise BodyError(
            f"{argument} {show(body)} is a {type(body).__name__}; "
            "wanted a function at module level, a method, 'file.py::function' or 'script.py'"
        )
    name = function.__qualname__
    if inspect.ismethod(body):
        name = f"{cast(type, body.__self__).__qualname__}.{function.__name__}"
    _check(function, f"{argument} {name}")
    return BodyReference(
        file=inspect.unwrap(function).__code__.co_filename,  # a decorator may lie elsewhere
        function=name,
        module=function.__module__,
        is_rewritten=_is_rewritten(function.__module__),
    )


def locate_command(words: Sequence[object], path: str, *, beside: Path) -> list[str]:
    """The words of a command as text, once it is sure that it can be started. Programs are looked for as PATH says."""
    for word in words:
        if isinstance(word, bool) or not isinstance(word, str | int | float | os.PathLike):
            raise BodyError(f"the command has {show(word)}, a {type(word).__name__}; wanted text, a number or a path")
    command = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
    if not command:
        raise BodyError(f"{show(words)} is no command; wanted a program and its arguments, such as ['torchrun', ...]")
    if unfit := [word for word in command if "\0" in word or not can_be_written(word)]:
        raise BodyError(f"the command has {show(unfit[0])}, with a character that no command line can hold")
    program = str(Path(beside, command[0])) if os.sep in command[0] else command[0]
    if shutil.which(program, path=path) is None:
        raise BodyError(_why_not_a_program(command[0], Path(program)))
    return command


def _why_not_a_program(word: str, path: Path) -> str:
    if os.sep not in word:
        return f"there is no program {show(word)}; looked beside this Python and in PATH. Is its package installed?"
    if path.is_dir():
        return f"{show(word)} is a folder; wanted a program, such as one in it"
    if path.exists():
        return f"{show(word)} may not be executed: chmod +x {shlex.quote(str(path))}, or name what runs it before it"
    return f"there is no program {show(str(path))}"


def locate_module(name: object, folder: str = "") -> BodyReference:
    """Find the file of a module that is run by its name, as ``python -m`` does. Nothing is imported.

    It is looked for in the folder in which it is run, if that is known, and then on ``sys.path``.
    """
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise BodyError(f"module={show(name)}; wanted the name of a module, such as 'pkg.train'")
    path = looked = [*filter(None, [folder]), *sys.path]
    spec = None
    for end in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:end]), path)
        if spec is None:
            break
        path = list(spec.submodule_search_locations or [])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", path)
    if spec is None or not spec.origin:
        raise BodyError(
            f"module={name!r}: there is no such module, or it is a package without __main__; looked in "
            f"{', '.join(looked[:4])} ... Put its folder on the path: pythonpath = src in the ini file, or cwd='src'"
        )
    return BodyReference(file=spec.origin, module=name)


def _named(text: str, beside: Path, argument: str) -> BodyReference:
    file, separator, function = text.partition("::")
    if not file.strip():
        raise BodyError(f"{argument} {show(text)} names no file; wanted a function, or 'file.py::function'")
    path = Path(beside, file)
    if not _is_file(path):
        raise BodyError(f"{argument} {show(text)}: there is no file {show(str(path))}{_as_command(text)}")
    if not can_be_written(str(path)):
        raise BodyError(f"{argument} {show(text)}: its path is no UTF-8, and ranks get it as JSON: rename it")
    if separator and not function:
        raise BodyError(f"{argument} {text!r}: no function named after '::'")
    return BodyReference(file=str(path), function=function)


def _as_command(text: str) -> str:
    """What to write where somebody has written a command line; empty where it does not look like one."""
    words = text.split()
    if len(words) < 2:
        return ""
    with contextlib.suppress(ValueError):  # a quotation mark without its other
        words = shlex.split(text)
    script = next((word for word in words if word.endswith(".py")), "")
    alone = f", and a script by its path alone, which every rank runs as below torchrun: {show(script)}"
    return f". A command is given as a list: {show(words)}{alone if script else ''}"


def _method(body: MethodType, argument: str) -> BodyReference:
    """A method of an object: the rank makes another object of its class, with the attributes that are JSON-able."""
    owner = type(body.__self__)
    name = f"{owner.__qualname__}.{body.__name__}"
    _check(cast(FunctionType, body.__func__), f"{argument} {name}")
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    if not isinstance(file, str):
        raise BodyError(f"{argument} {name}: its class is in no file that ranks could import")
    instance: dict[str, Any] = {}
    left_out = []
    for attribute, value in vars(body.__self__).items():
        try:
            instance |= json_able({attribute: value})
        except BodyError:
            left_out.append(attribute)
    return BodyReference(
        file=file,
        function=name,
        module=owner.__module__,
        is_rewritten=_is_rewritten(owner.__module__),
        instance=instance,
        left_out=left_out,
    )


def _check(function: FunctionType, called: str) -> None:
    """Refuse what ranks cannot find again, or what a call would not run."""
    if "<" in called:
        raise BodyError(
            f"{called} in {function.__code__.co_filename}:{function.__code__.co_firstlineno} is defined inside a "
            "function: ranks import the body by name, so move it to module level"
        )
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
    ):
        raise BodyError(
            f"{called} is a coroutine or generator function, of which a call runs nothing; wanted a plain function, "
            "without async and yield: call asyncio.run in it where it needs to"
        )


def _is_rewritten(module: str) -> bool:
    loader = getattr(sys.modules.get(module), "__loader__", None)
    return type(loader).__name__ == "AssertionRewritingHook"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name no file can have
        return False


def json_able(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they will reach the rank; an error names the value that is not JSON-able."""
    for key, value in params.items():
        if not isinstance(key, str):
            raise BodyError(f"params: the key {key!r} is no text: ranks get parameters as JSON")
        try:
            json.dumps({key: value}, allow_nan=False, ensure_ascii=False, default=_as_text).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BodyError(
                f"params[{key!r}] is not JSON-able: {error}. Ranks get parameters as JSON: pass finite numbers, text, "
                "paths, lists and dicts, and build the rest in the body"
            ) from None
        for inner in _keys(value):
            if not isinstance(inner, str):  # JSON would make it one
                raise BodyError(f"params[{key!r}]: the key {show(inner)} is no text: ranks get parameters as JSON")
    decoded: dict[str, Any] = json.loads(json.dumps(dict(params), default=_as_text))
    return decoded


def _keys(value: object) -> Iterator[object]:
    """The keys of all dicts in a value that is JSON-able."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _keys(inner)


def _as_text(value: object) -> str:
    """A path as text; nothing else that JSON has no word for."""
    if isinstance(value, os.PathLike) and isinstance(text := os.fspath(value), str):
        return text
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

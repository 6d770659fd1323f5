"""What a test hands to the ranks: a body, named so that they can import it, and parameters as JSON."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_distbench.errors import BodyError, show
from pytest_distbench.records.plan import BodyReference


def locate(body: object, *, beside: Path, args: Sequence[str]) -> BodyReference:
    """Find out how a rank can import a body.

    Raises:
        BodyError: it is not importable by name from a file.
    """
    if isinstance(body, str):
        file, separator, function = body.partition("::")
        path = Path(beside, file)
        if not _is_file(path):
            raise BodyError(f"body {show(body)}: there is no file {show(str(path))}")
        if separator and not function:
            raise BodyError(f"body {body!r}: no function named after '::'")
        return BodyReference(file=str(path), function=function, arguments=[str(a) for a in args])
    if not inspect.isfunction(body):
        raise BodyError(
            f"body {show(body)} is a {type(body).__name__}; "
            "wanted a function at module level, 'file.py::function' or 'script.py'"
        )
    name = body.__qualname__
    if "<" in name:
        raise BodyError(
            f"body {name} in {body.__code__.co_filename}:{body.__code__.co_firstlineno} is defined inside a function: "
            "ranks import the body by name, so move it to module level"
        )
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
        raise BodyError(
            f"body {name} is a coroutine or generator function, of which a call runs nothing; wanted a plain function, "
            "without async and yield: call asyncio.run in it where it needs to"
        )
    loader = getattr(sys.modules.get(body.__module__), "__loader__", None)
    return BodyReference(
        file=inspect.unwrap(body).__code__.co_filename,  # a decorator may lie elsewhere
        function=name,
        module=body.__module__,
        is_rewritten=type(loader).__name__ == "AssertionRewritingHook",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name no file can have
        return False


def json_able(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they will reach the rank.

    Raises:
        BodyError: a value is not JSON-able; the message names it.
    """
    for key, value in params.items():
        if not isinstance(key, str):
            raise BodyError(f"params: the key {key!r} is no text: ranks get parameters as JSON")
        try:
            json.dumps({key: value}, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BodyError(
                f"params[{key!r}] is not JSON-able: {error}. Ranks get parameters as JSON: pass finite numbers, text, "
                "lists and dicts, and build the rest in the body"
            ) from None
    decoded: dict[str, Any] = json.loads(json.dumps(dict(params)))
    return decoded

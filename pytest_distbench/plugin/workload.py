"""Find and check the work of a call of ``distbench.run``, and its identity.

A body is named so that ranks can import it, and its parameters are JSON. The identity leaves out paths of this machine
or this run.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType
from typing import Any

from pytest_distbench.errors import BodyError, show
from pytest_distbench.machine.secrets import mask_arguments, mask_secrets
from pytest_distbench.plugin.arguments import Arguments, Called
from pytest_distbench.records.launch_files import is_of_a_group
from pytest_distbench.records.plan import PLACEHOLDERS, BodyReference, Command, Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.releases import is_installed_here

_PATH = re.compile(r"(?:(?<![\w/.:~-])|(?<=file://))/[^/\s=:,;'\"]+(?:/[^/\s=:,;'\"]+)+/?")
"""Pattern of an absolute path of at least two parts, at the beginning of a text or behind a separator."""

_MEETING = re.compile(
    r"--?(?:(?:master|main[-_]process)[-_](?:addr|ip|port)|rdzv[-_](?:endpoint|id)|port|dist[-_]url)(?P<value>=.*)?",
    re.DOTALL,
)
"""Pattern of the options of launchers and scripts for the address and port of a rendezvous."""

MEETING_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")  # the same in the environment

_OF_A_RUN = re.compile(r"pytest-\d+|popen-gw\d+")  # folders in which pytest makes one for each test


def leave_out_places(value: Any, root: Path, made: Path | None = None) -> Any:
    """Replace each path in a JSON-able value that differs between machines or runs by a placeholder.

    A path below the root of the tests is given from there, any other by its last part, which may name a data set. A
    folder that was made for this run has not even that. ``made`` is pytest's ``--basetemp``, or None.
    """
    if isinstance(value, dict):
        return {key: leave_out_places(inner, root, made) for key, inner in value.items()}
    if isinstance(value, list):
        return [leave_out_places(inner, root, made) for inner in value]
    temporary = Path(tempfile.gettempdir())

    def word_for(match: re.Match[str]) -> str:
        path = Path(match[0])
        is_made = made is not None and path.is_relative_to(made)
        is_temporary = path.is_relative_to(temporary) and not root.is_relative_to(temporary)
        if path.is_relative_to(root) and not is_made and not is_temporary:
            return f"{{rootdir}}/{path.relative_to(root)}"
        is_of_this_run = path.parent in (temporary, made) or _OF_A_RUN.fullmatch(path.parent.name)
        return "{path}" if is_of_this_run else f"{{path}}/{path.name}"

    return _PATH.sub(word_for, value) if isinstance(value, str) else value


def leave_out_meeting(words: Sequence[str]) -> list[str]:
    """Replace each address and port of a rendezvous in a command line by a placeholder."""
    kept: list[str] = []
    is_value = False
    for word in words:
        option = _MEETING.fullmatch(word)
        if is_value:
            kept.append("{meeting}")
        elif option and option["value"]:
            kept.append(word.partition("=")[0] + "={meeting}")
        else:
            kept.append(word)
        is_value = option is not None and not option["value"] and not is_value
    return kept


def locate(body: object, *, test_folder: Path, argument: str = "body") -> BodyReference:
    """Find the name by which a rank can import a function from a file, or the path of a script.

    The rank calls a method on a new object of its class, with the attributes that are JSON-able. A path is relative to
    ``test_folder``.
    """
    if isinstance(body, str | os.PathLike):
        return _named(os.fspath(body), test_folder, argument)
    function = body.__func__ if inspect.ismethod(body) else body
    if not isinstance(function, FunctionType):
        raise BodyError(
            f"{argument} {show(body)} is a {type(body).__name__}; "
            "wanted a function at module level, a method, 'file.py::function' or 'script.py'"
        )
    file: object = inspect.unwrap(function).__code__.co_filename  # a decorator may lie elsewhere
    name, module = function.__qualname__, function.__module__
    instance: dict[str, Any] | None = None
    left_out = []
    if inspect.ismethod(body):
        owner = body.__self__ if inspect.isclass(body.__self__) else type(body.__self__)
        name = f"{owner.__qualname__}.{function.__name__}"
        if owner is not body.__self__:
            module, instance = owner.__module__, {}
            file = getattr(sys.modules.get(module), "__file__", None)
            for attribute, value in vars(body.__self__).items():
                try:
                    instance |= json_able({attribute: value})
                except BodyError:
                    left_out.append(attribute)
    if "<" in name:
        where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        raise BodyError(
            f"{argument} {name} in {where} is defined inside a function: ranks import the body by name, so move it to "
            "module level"
        )
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_of_kind(function) for is_of_kind in kinds):
        raise BodyError(
            f"{argument} {name} is a coroutine or generator function, so a call runs nothing; wanted a plain function, "
            "without async and yield: call asyncio.run in it if needed"
        )
    if not isinstance(file, str):
        raise BodyError(f"{argument} {name}: its class is in no file that ranks can import")
    loader = getattr(sys.modules.get(module), "__loader__", None)
    return BodyReference(
        file=file,
        function=name,
        module=module,
        is_rewritten=type(loader).__name__ == "AssertionRewritingHook",
        instance=instance,
        left_out=left_out,
    )


def locate_command(words: Sequence[object], path: str, *, test_folder: Path) -> list[str]:
    """Return the words of a command as text, after checking that PATH has the program."""
    for word in words:
        if isinstance(word, bool) or not isinstance(word, str | int | float | os.PathLike):
            raise BodyError(f"the command has {show(word)}, a {type(word).__name__}; wanted text, a number or a path")
    command = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
    if not command:
        raise BodyError(f"{show(words)} is no command; wanted a program and its arguments, such as ['torchrun', ...]")
    word, file = command[0], Path(test_folder, command[0])
    if shutil.which(str(file) if os.sep in word else word, path=path) is not None:
        return command
    why = f"there is no program {show(str(file))}"
    if os.sep not in word:
        why = f"there is no program {show(word)}; looked next to this Python and in PATH. Is its package installed?"
    elif file.is_dir():
        why = f"{show(word)} is a folder; wanted a program, such as one in it"
    elif file.exists():
        why = f"{show(word)} may not be executed: chmod +x {shlex.quote(str(file))}, or name its interpreter first"
    raise BodyError(why)


def locate_module(name: object, folder: str = "") -> BodyReference:
    """Find the file of a module that is run by its name, as by ``python -m``, without importing it.

    It is looked for in the folder in which it is run, or "" if unknown, and then on ``sys.path``.
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


def _named(text: str, test_folder: Path, argument: str) -> BodyReference:
    file, separator, function = text.partition("::")
    if not file.strip():
        raise BodyError(f"{argument} {show(text)} names no file; wanted a function, or 'file.py::function'")
    path, is_file = Path(test_folder, file), False
    with contextlib.suppress(OSError, ValueError):  # a name no file can have
        is_file = path.is_file()
    if not is_file:
        hint = _as_command(text) or _above(file, test_folder)
        raise BodyError(f"{argument} {show(text)}: there is no file {show(str(path))}{hint}")
    if separator and not function:
        raise BodyError(f"{argument} {text!r}: no function named after '::'")
    return BodyReference(file=str(path), function=function)


def _above(file: str, test_folder: Path) -> str:
    for ups, folder in enumerate(test_folder.parents, start=1):
        with contextlib.suppress(OSError, ValueError):
            if (folder / file).is_file():
                return f". A path is relative to the folder of the test: did you mean {show('../' * ups + file)}?"
    return ""


def _as_command(text: str) -> str:
    words = text.split()
    if len(words) < 2:
        return ""
    with contextlib.suppress(ValueError):  # a quotation mark without its other
        words = shlex.split(text)
    script = next((word for word in words if word.endswith(".py")), "")
    alone = f", and a script that every rank runs, as under torchrun, by its path alone: {show(script)}"
    return f". A command is given as a list: {show(words)}{alone if script else ''}"


def json_able(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters by JSON, as ranks get them; an error names the value that is not JSON-able."""
    for key, value in params.items():
        if not isinstance(key, str):
            raise BodyError(f"params: the key {key!r} is no text: ranks get parameters as JSON")
        try:
            json.dumps({key: value}, allow_nan=False, ensure_ascii=False, default=_as_text).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BodyError(
                f"params[{key!r}] is not JSON-able: {error}. Ranks get parameters as JSON: pass finite numbers, text, "
                "paths, lists and dicts, and create the rest in the body"
            ) from None
        for inner in _keys(value):
            if not isinstance(inner, str):  # JSON would make it one
                raise BodyError(f"params[{key!r}]: the key {show(inner)} is no text: ranks get parameters as JSON")
    decoded: dict[str, Any] = json.loads(json.dumps(dict(params), default=_as_text))
    return decoded


def _keys(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _keys(inner)


def _as_text(value: object) -> str:
    if isinstance(value, os.PathLike) and isinstance(text := os.fspath(value), str):
        return text
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def find_work(given: Arguments, wanted: Called, *, test_folder: Path, leave_out: Callable[[Any], Any]) -> Called:
    """Return a call with the work that its arguments name, checked, and with the work's identity."""
    try:
        found = _find(given, wanted, test_folder)
        params = json_able(given.mapping("params", wanted.params if wanted.params is not None else {}))
    except BodyError as error:
        given.refuse(str(error))
    arguments = given.command_line(wanted.args)
    seeds = given.seeds(wanted.seeds)
    variables = given.variables(wanted.env)
    given.yes_or_no("makes_group", wanted.makes_group)
    work: Work
    if isinstance(found, BodyReference):
        if set_by_us := [name for name in variables if is_of_a_group(name)]:
            given.refuse(
                f"env: {set_by_us[0]} is set for each rank as torchrun does, and the group would not form with "
                f"another value; world_size= sets the number of ranks"
            )
        body = replace(found, arguments=arguments, makes_group=wanted.makes_group, given_at=given.line)
        body = replace(body, called_by=wanted.called_by)
        work = Ranks(body=body, params=params, seeds=list(seeds))
        words = arguments
        is_elsewhere = bool(body.module) and is_installed_here(body.file)
        home = test_folder
        if not is_elsewhere:  # of a module the folder that holds the package it belongs to
            home = Path(body.file).parent
            depth = body.module.count(".") + (Path(body.file).stem == "__main__" and body.module != "__main__")
            home = home.parents[depth - 1] if body.module and depth else home
    else:
        words = [*found, *arguments]
        work = Command(words=words, params=params, seeds=list(seeds), makes_group=wanted.makes_group)
        variables = {**variables, "PATH": _path_of(wanted.env)}
        home = test_folder
    _check_together(given, work, wanted, words=words)
    identity = mask_secrets(params)
    if seeds != (0,):
        identity["seeds"] = list(seeds)
    if words:
        identity["args"] = leave_out_meeting(mask_arguments(words))
    if env := {name: value for name, value in variables.items() if name not in ("PATH", *MEETING_VARIABLES)}:
        identity["env"] = mask_secrets(env)
    is_mirrored = work.is_program and wanted.cwd is None
    if wanted.cwd is not None:
        folder = _chosen_folder(given, wanted.cwd, test_folder)
    elif is_mirrored:
        folder = str(home)
        work = work.with_words(lambda word: _from_here(word, folder))
    else:
        folder = ""
    return replaced(
        wanted,
        work=work,
        folder=folder,
        is_mirrored=is_mirrored,
        own_variables=variables,
        read=given.readers({} if wanted.read is None else wanted.read),
        identity=leave_out(identity),
    )


def _from_here(word: str, folder: str) -> str:
    """Make a path that leads up from a folder, ``../train.py`` or ``--config=../train.yaml``, absolute.

    A launch runs in a folder of its own with links to the files of this one, from which ``..`` leads elsewhere.
    """
    option, equals, value = word.rpartition("=")
    path = os.path.normpath(os.path.join(folder, value))
    leads_up = value == ".." or value.startswith("../")
    return f"{option}{equals}{path}" if leads_up and os.path.lexists(path) else word


def _find(given: Arguments, wanted: Called, test_folder: Path) -> BodyReference | list[str]:
    body, module = wanted.body, wanted.module
    is_module = not isinstance(module, str) or bool(module)
    if body is None and not is_module:
        given.refuse("nothing to run; wanted a function, 'file.py::function', a script, a command, or module='a.b'")
    if body is not None and is_module:
        given.refuse(f"module={show(module)} replaces the body {show(body)}: give one of them")
    folder = "" if wanted.cwd is None else _chosen_folder(given, wanted.cwd, test_folder)
    if is_module:
        return locate_module(module, folder)
    if isinstance(body, list | tuple):
        return locate_command(body, _path_of(wanted.env), test_folder=Path(test_folder, folder))
    return locate(body, test_folder=test_folder, argument=wanted.argument)


def _path_of(env: object) -> str:
    """The PATH of a command: first the folder of this Python, as in an activated environment."""
    own = env.get("PATH") if isinstance(env, Mapping) else None
    return os.pathsep.join([str(Path(sys.executable).parent), str(own or os.environ.get("PATH", os.defpath))])


def _check_together(given: Arguments, work: Work, wanted: Called, *, words: Sequence[str]) -> None:
    if not work.is_program:
        if words:
            given.refuse("args are the command line of a script; a function takes params=")
        return
    if work.params:
        given.refuse("params are passed to a function; a script takes args= or env=")
    if len(work.seeds) > 1:
        given.refuse(f"seeds={show(wanted.seeds)}: a script runs once per launch: give each seed its own run")
    texts = [*words, *map(str, (wanted.env or {}).values())]
    if work.seeds != [0] and not any("{seed}" in text for text in texts):
        given.refuse("the script does not receive seeds=: write {seed} into args= or env=")


def _chosen_folder(given: Arguments, cwd: object, test_folder: Path) -> str:
    if not isinstance(cwd, str | os.PathLike) or not os.fspath(cwd):
        given.refuse(f"cwd={show(cwd)}; wanted a path, or '{{launch_dir}}' for an empty folder of each launch's own")
    text = os.fspath(cwd)
    if any(name in text for name in PLACEHOLDERS):
        return text
    try:
        folder = Path(test_folder, text).resolve(strict=True)
        is_folder = folder.is_dir()
    except (OSError, ValueError):  # a name no file can have
        is_folder = False
    if not is_folder:
        given.refuse(f"cwd={show(text)}: there is no folder {show(str(Path(test_folder, text)))}")
    return str(folder)

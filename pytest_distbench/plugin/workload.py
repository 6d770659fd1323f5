"""What a call of ``distbench.run`` wants to have run: found, checked, and told apart from other workloads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_distbench.errors import BodyError, show
from pytest_distbench.installation import is_installed_here
from pytest_distbench.machine.secrets import mask_arguments, mask_secrets
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.identity import MEETING_VARIABLES, Places, leave_out_meeting
from pytest_distbench.plugin.keywords import Wanted
from pytest_distbench.plugin.locate import json_able, locate, locate_command, locate_module
from pytest_distbench.records.plan import PLACEHOLDERS, Workplace
from pytest_distbench.records.reader import Reader
from pytest_distbench.records.record import replace
from pytest_distbench.records.torchrun import is_of_a_group
from pytest_distbench.records.wire import can_be_written
from pytest_distbench.records.work import BodyReference, Command, Ranks, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be launched, and what tells it apart from other workloads.

    Its identity is parameters, arguments and variables, without secrets and places of this machine.
    """

    work: Work
    workplace: Workplace = field(default_factory=Workplace)
    read: dict[str, Reader] = field(default_factory=dict)
    identity: dict[str, Any]


def make_workload(given: Arguments, wanted: Wanted, *, beside: Path, places: Places) -> Workload:
    """Find the ranks or the command that are to run beside the test, and check what goes with them."""
    try:
        found = _find(given, wanted, beside)
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
                f"env: {set_by_us[0]} is set for each rank as torchrun does, and the group would not come about with "
                "another value; how many ranks there are is said by world_size="
            )
        body = replace(found, arguments=arguments, makes_group=wanted.makes_group, given_at=given.line)
        body = replace(body, called_by=wanted.called_by)
        work = Ranks(body=body, params=params, seeds=list(seeds))
        words = arguments
        is_elsewhere = bool(body.module) and is_installed_here(body.file)
        home = beside if is_elsewhere else _home(body)
    else:
        words = [*found, *arguments]
        work = Command(words=words, params=params, seeds=list(seeds), makes_group=wanted.makes_group)
        variables = {**variables, "PATH": _path_of(wanted.env)}
        home = beside
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
        folder = _chosen_folder(given, wanted.cwd, beside)
    elif is_mirrored:
        folder = str(home)
        work = work.with_words(lambda word: _from_here(word, folder))
    else:
        folder = ""
    return Workload(
        work=work,
        workplace=Workplace(folder=folder, is_mirrored=is_mirrored, variables=variables),
        read=given.readers({} if wanted.read is None else wanted.read),
        identity=places.leave_out(identity),
    )


def _from_here(word: str, folder: str) -> str:
    """A word of a command line. A path that leads up to something from a folder would not from the one it is linked to.

    The word may be ``../train.py``, ``--config=../train.yaml``, or anything else; a launch's own folder is made of
    links to what is in this one.
    """
    option, equals, value = word.rpartition("=")
    path = os.path.normpath(os.path.join(folder, value))
    leads_up = value == ".." or value.startswith("../")
    return f"{option}{equals}{path}" if leads_up and os.path.lexists(path) else word


def _find(given: Arguments, wanted: Wanted, beside: Path) -> BodyReference | list[str]:
    """A body, or the words of a command."""
    body, module = wanted.body, wanted.module
    is_module = not isinstance(module, str) or bool(module)
    if body is None and not is_module:
        given.refuse("nothing to run; wanted a function, 'file.py::function', a script, a command, or module='a.b'")
    if body is not None and is_module:
        given.refuse(f"module={show(module)} is run in place of a body, and {show(body)} is one: give one of them")
    folder = "" if wanted.cwd is None else _chosen_folder(given, wanted.cwd, beside)
    if is_module:
        return locate_module(module, folder)
    if isinstance(body, list | tuple):
        return locate_command(body, _path_of(wanted.env), beside=Path(beside, folder))
    return locate(body, beside=beside, argument=wanted.argument)


def _path_of(env: object) -> str:
    """Where a command's programs are looked for: beside this Python, as in an activated environment, then in PATH."""
    own = env.get("PATH") if isinstance(env, Mapping) else None
    return os.pathsep.join([str(Path(sys.executable).parent), str(own or os.environ.get("PATH", os.defpath))])


def _check_together(given: Arguments, work: Work, wanted: Wanted, *, words: Sequence[str]) -> None:
    """Refuse what would be passed over in silence."""
    if not work.is_program:
        if words:
            given.refuse("args are the command line of a script, and a function has none: use params=")
        return
    if work.params:
        given.refuse("params are handed to a function, and a script has no place for them: use args= or env=")
    if len(work.seeds) > 1:
        given.refuse(f"seeds={show(wanted.seeds)}: a script runs once in a launch: give each seed a run of its own")
    texts = [*words, *map(str, (wanted.env or {}).values())]
    if work.seeds != [0] and not any("{seed}" in text for text in texts):
        given.refuse("the script never hears of seeds=: write {seed} in args= or env= where it wants it")


def _chosen_folder(given: Arguments, cwd: object, beside: Path) -> str:
    if not isinstance(cwd, str | os.PathLike) or not os.fspath(cwd):
        given.refuse(f"cwd={show(cwd)}; wanted a path, or '{{launch_dir}}' for an empty folder of each launch's own")
    text = os.fspath(cwd)
    if not isinstance(text, str) or not can_be_written(text):
        given.refuse(f"cwd={show(text)}: wanted text that can be written in UTF-8: ranks get it as JSON")
    if any(name in text for name in PLACEHOLDERS):
        return text
    try:
        folder = Path(beside, text).resolve(strict=True)
        is_folder = folder.is_dir()
    except (OSError, ValueError):  # a name no file can have
        is_folder = False
    if not is_folder:
        given.refuse(f"cwd={show(text)}: there is no folder {show(str(Path(beside, text)))}")
    return str(folder)


def _home(body: BodyReference) -> Path:
    """The folder of a script; of a module the one that holds the package it belongs to."""
    folder = Path(body.file).parent
    depth = body.module.count(".") + (Path(body.file).stem == "__main__" and body.module != "__main__")
    return folder.parents[depth - 1] if body.module and depth else folder

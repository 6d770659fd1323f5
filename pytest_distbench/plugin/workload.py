"""What a call of ``distbench.run`` wants to have run: found, checked, and told apart from other workloads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from pytest_distbench.errors import BodyError, show
from pytest_distbench.installation import is_installed_here
from pytest_distbench.machine.secrets import mask_arguments, mask_secrets
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.identity import MEETING_VARIABLES, Places, leave_out_meeting
from pytest_distbench.plugin.locate import json_able, locate, locate_command, locate_module
from pytest_distbench.records.plan import PLACEHOLDERS, BodyReference
from pytest_distbench.records.reader import Reader
from pytest_distbench.records.record import replace
from pytest_distbench.records.torchrun import is_of_a_group
from pytest_distbench.records.wire import can_be_written
from pytest_distbench.run.request import Workplace


class Wanted(TypedDict):
    """The arguments of ``distbench.run`` that say what runs."""

    body: object
    module: str
    params: Mapping[str, Any] | None
    args: Sequence[str | os.PathLike[str]]
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    read: Mapping[str, Reader]
    makes_group: bool
    seeds: Sequence[int]
    argument: str
    """What the call names the body."""


def wanted_function(
    body: object, *, params: Mapping[str, Any] | None, seeds: Sequence[int] = (0,), argument: str = "body"
) -> Wanted:
    """What a call wants that takes no script."""
    return Wanted(
        body=body,
        module="",
        params=params,
        args=(),
        cwd=None,
        env=None,
        read={},
        makes_group=True,
        seeds=seeds,
        argument=argument,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What runs in the ranks.

    Attributes:
        body: what every rank runs.
        params: as the ranks get them.
        seeds: the body runs once for each.
        workplace: where.
        read: metrics to be read afterwards, by name.
        identity: what defines it: parameters, arguments and variables, without secrets and places of this machine.
    """

    body: BodyReference
    params: dict[str, Any]
    seeds: tuple[int, ...]
    workplace: Workplace
    read: dict[str, Reader]
    identity: dict[str, Any]


def make_workload(given: Arguments, wanted: Wanted, *, beside: Path, places: Places) -> Workload:
    """Find what is to run, and check what goes with it.

    Args:
        given: the arguments of the call.
        wanted: some of them.
        beside: folder of the test.
        places: that are no part of its identity.

    Raises:
        Misuse: an argument cannot be used, or not with the others.
    """
    try:
        body = _find(given, wanted, beside)
        params = json_able(given.mapping("params", wanted["params"] if wanted["params"] is not None else {}))
    except BodyError as error:
        given.refuse(str(error))
    arguments = given.command_line(wanted["args"])
    seeds = given.seeds(wanted["seeds"])
    variables = given.variables(wanted["env"])
    _check_together(given, body, wanted, params=params, arguments=arguments, seeds=seeds)
    if set_by_us := [name for name in variables if is_of_a_group(name) and not body.command]:
        given.refuse(
            f"env: {set_by_us[0]} is set for each rank as torchrun does, and the group would not come about with "
            "another value; how many ranks there are is said by world_size="
        )
    body = replace(body, arguments=arguments, makes_group=bool(wanted["makes_group"]), given_at=given.line)
    if body.command:
        body = replace(body, command=[*body.command, *arguments], arguments=[])
        variables = {**variables, "PATH": _path_of(wanted["env"])}
    identity = mask_secrets(params)
    if seeds != (0,):
        identity["seeds"] = list(seeds)
    if words := body.command or arguments:
        identity["args"] = leave_out_meeting(mask_arguments(words))
    if env := {name: value for name, value in variables.items() if name not in ("PATH", *MEETING_VARIABLES)}:
        identity["env"] = mask_secrets(env)
    folder = _folder(given, wanted["cwd"], body, beside)
    is_mirrored = body.is_script and wanted["cwd"] is None
    if is_mirrored and folder is not None:
        body = replace(
            body,
            command=[_from_here(word, folder) for word in body.command],
            arguments=[_from_here(word, folder) for word in body.arguments],
        )
    return Workload(
        body=body,
        params=params,
        seeds=seeds,
        workplace=Workplace(
            folder=folder,
            is_mirrored=is_mirrored,
            variables=variables,
        ),
        read=given.readers(wanted["read"]),
        identity=places.leave_out(identity),
    )


def _from_here(word: str, folder: str) -> str:
    """A word of a command line. A path that leads up to something from a folder would not from the one it is linked to.

    Args:
        word: ``../train.py``, ``--config=../train.yaml``, or anything else.
        folder: that a launch's own is made of.
    """
    option, equals, value = word.rpartition("=")
    path = os.path.normpath(os.path.join(folder, value))
    leads_up = value == ".." or value.startswith("../")
    return f"{option}{equals}{path}" if leads_up and os.path.lexists(path) else word


def _find(given: Arguments, wanted: Wanted, beside: Path) -> BodyReference:
    body, module = wanted["body"], wanted["module"]
    is_module = not isinstance(module, str) or bool(module)
    if body is None and not is_module:
        given.refuse("nothing to run; wanted a function, 'file.py::function', a script, a command, or module='a.b'")
    if body is not None and is_module:
        given.refuse(f"module={show(module)} is run in place of a body, and {show(body)} is one: give one of them")
    folder = "" if wanted["cwd"] is None else _chosen_folder(given, wanted["cwd"], beside)
    if is_module:
        return locate_module(module, folder)
    if isinstance(body, list | tuple):
        return locate_command(body, _path_of(wanted["env"]), beside=Path(beside, folder))
    return locate(body, beside=beside, argument=wanted["argument"])


def _path_of(env: object) -> str:
    """Where a command's programs are looked for: beside this Python, as in an activated environment, then in PATH."""
    own = env.get("PATH") if isinstance(env, Mapping) else None
    return os.pathsep.join([str(Path(sys.executable).parent), str(own or os.environ.get("PATH", os.defpath))])


def _check_together(
    given: Arguments,
    body: BodyReference,
    wanted: Wanted,
    *,
    params: Mapping[str, Any],
    arguments: Sequence[str],
    seeds: Sequence[int],
) -> None:
    """Refuse what would be passed over in silence."""
    given.yes_or_no("makes_group", wanted["makes_group"])
    if not body.is_script:
        if arguments:
            given.refuse("args are the command line of a script, and a function has none: use params=")
        return
    if params:
        given.refuse("params are handed to a function, and a script has no place for them: use args= or env=")
    if len(seeds) > 1:
        given.refuse(f"seeds={show(wanted['seeds'])}: a script runs once in a launch: give each seed a run of its own")
    texts = [*arguments, *body.command, *map(str, (wanted["env"] or {}).values())]
    if seeds != (0,) and not any("{seed}" in text for text in texts):
        given.refuse("the script never hears of seeds=: write {seed} in args= or env= where it wants it")


def _folder(given: Arguments, cwd: object, body: BodyReference, beside: Path) -> str | None:
    """Where the ranks run; None: where pytest does."""
    if cwd is None:
        is_elsewhere = body.command or (body.module and is_installed_here(body.file))
        return str(beside if is_elsewhere else _home(body)) if body.is_script else None
    return _chosen_folder(given, cwd, beside)


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

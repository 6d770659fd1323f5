"""What a revision does not have because git does not track it: linked into its worktree, or told where it is missed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.records.launch import LaunchRecord

OPTION = "distbench_against_link"
_QUOTED = re.compile(r"""['"]([^'"\n]{1,400})['"]""")
_NOT_THERE = ("FileNotFoundError", "No such file or directory", "ModuleNotFoundError", "does not exist", "not found")


def find_links(given: Sequence[str], *, folder: Path, root: Path) -> tuple[Path, ...]:
    """Paths to be linked, given relative to the folder of the tests, as paths relative to the repository."""
    found = []
    for text in given:
        path = Path(folder, text)
        if not path.exists():
            raise ConfigurationError(f"{OPTION}: there is no {path} that could be linked")
        place = path.parent.resolve() / path.name
        if not place.is_relative_to(root) or place == root:
            raise ConfigurationError(f"{OPTION}: {path} is not below the repository {root}: ranks find it where it is")
        found.append(place.relative_to(root))
    return tuple(found)


def link(paths: Sequence[Path], *, root: Path, tree: Path) -> None:
    """Link what the working tree has into a worktree that lacks it."""
    for path in paths:
        target = tree / path
        if target.exists() or target.is_symlink():
            raise LauncherError(
                f"{OPTION}: the other revision has {path} itself, because git tracks it there; leave it out"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(root / path)


def hint(record: LaunchRecord, *, root: Path, tree: Path, folder: Path) -> str:
    """What a launch of the reference missed although the working tree has it, and what to do; empty where nothing.

    The other revision is checked out in the tree; relative paths of the launch were relative to the folder there.
    """
    for name in _named(record):
        for start in (tree, folder):
            place = Path(start, name)
            if not place.is_relative_to(tree) or place.exists():
                continue
            path = place.relative_to(tree)
            first = next((p for p in [*reversed(path.parents), path] if p != Path() and not (tree / p).exists()), path)
            if (root / path).exists():
                return (
                    f"{path} is in the working tree and not in the other revision: does git ignore it? To link it, "
                    f"write {OPTION} = {first} into the ini file"
                )
    return ""


def _named(record: LaunchRecord) -> Iterator[str]:
    """What errors that say that something is not there have in quotes; of a module the files it may be in."""
    for fate in record.fates:
        text = f"{fate.error.kind}: {fate.error.message}" if fate.error is not None else fate.log_tail
        for line in text.splitlines():
            if not any(words in line for words in _NOT_THERE):
                continue
            for name in _QUOTED.findall(line):
                yield name
                if "ModuleNotFoundError" in line or "No module named" in line:
                    yield f"{name.replace('.', '/')}.py"

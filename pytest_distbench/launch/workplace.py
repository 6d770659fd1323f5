"""The folder that a launch works in, its ranks' logs, and a check for files that it leaves elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_distbench.errors import LauncherError
from pytest_distbench.launch.readers import note_before
from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.units import and_more

TAIL_LINES = 30  # of a log, in a failure

_READ_BYTES = 2**20
_LONGEST_LINE_BYTES = 2**16
_TAIL_BYTES = 64 * 1024
_SEARCHED_BYTES = 64 * 2**20
_TRACEBACK = "Traceback (most recent call last):"
_MEANS_NOTHING = re.compile(r"\[W\S* [\d:.]* socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be")
"""torch's warning about a client's unknown name, harmless in a network without DNS."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last meaningful lines of a log of any size, or ""."""
    try:
        with open_left(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if not _MEANS_NOTHING.match(line)][-lines:])


def error_tail(path: Path) -> str:
    """The last lines of a log; if its first Python traceback lies above them, half of them are that traceback's end.

    A launcher's long report on how its processes ended would otherwise hide it.
    """
    lines = tail(path, lines=_TAIL_BYTES).splitlines()
    begin = next((i for i, line in enumerate(lines) if line.endswith(_TRACEBACK)), len(lines))
    if begin >= len(lines) - TAIL_LINES:
        return "\n".join(lines[-TAIL_LINES:])
    prefix = lines[begin].removesuffix(_TRACEBACK)  # such as "[rank0]: "
    block = [line for line in lines[begin + 1 :] if line.startswith(prefix)]
    end = next((i for i, line in enumerate(block) if not line.removeprefix(prefix).startswith(" ")), len(block))
    shown = [lines[begin], *block[: end + 1][-(TAIL_LINES // 2) :], "..."]
    return "\n".join([*shown, *lines[-(TAIL_LINES - len(shown)) :]])


def find_line(path: Path, pattern: re.Pattern[bytes], *, following: int) -> str:
    """Text from the first match of a pattern in a log's last 64 MiB, with some lines that follow, or ""."""
    with contextlib.suppress(OSError), open_left(path) as file:
        file.seek(max(0, file.seek(0, 2) - _SEARCHED_BYTES))
        data = file.read(_SEARCHED_BYTES)
        if found := pattern.search(data):
            end = found.start()
            for _ in range(1 + following):
                end = data.find(b"\n", end) + 1 or len(data)
            return data[found.start() : end].decode(errors="replace")
    return ""


class LogFollower:
    """Reads a launch's logs as they grow, and calls ``on_line`` with each line and its process's number."""

    def __init__(self, plan: LaunchPlan, on_line: Callable[[int, str], None]) -> None:
        self._logs = plan.work.logs(plan.files, plan.world_size)
        self._read: dict[Path, int] = dict.fromkeys((path for _, path in self._logs), 0)
        self._rest: dict[Path, bytes] = dict.fromkeys(self._read, b"")
        self._on_line = on_line

    def poll(self) -> None:
        for number, path in self._logs:
            self._take(number, path)

    def finish(self) -> None:
        for number, path in self._logs:
            while self._take(number, path):
                pass
            if self._rest[path]:
                self._on_line(number, self._rest[path].decode(errors="replace"))

    def _take(self, number: int, path: Path) -> bool:
        data = b""
        with contextlib.suppress(OSError), open_left(path) as file:
            file.seek(self._read[path])
            data = file.read(_READ_BYTES)
        self._read[path] += len(data)
        *lines, self._rest[path] = _LINE_END.split(self._rest[path] + data)
        if len(self._rest[path]) > _LONGEST_LINE_BYTES:  # searched again for its end with every read
            lines.append(self._rest[path])
            self._rest[path] = b""
        for line in lines:
            self._on_line(number, line.decode(errors="replace"))
        return bool(data)


_MOST_FILES = 5_000
_DEEPEST = 8
_NOT_LEFT = frozenset({
    "__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", "node_modules",
})  # fmt: skip
"""Names of folders that are not searched for files of a launch: other programs write there, or they are large."""
_MOST_NAMED = 5


def set_up(plan: LaunchPlan) -> LaunchPlan:
    work = plan.files.work
    work.mkdir(exist_ok=True)
    working_dir = work if plan.is_mirrored else Path(plan.fill(plan.folder))
    if plan.is_mirrored:
        with os.scandir(plan.folder) as entries:
            for entry in entries:
                (work / entry.name).symlink_to(entry.path)
    plan.files.began.touch()
    if working_dir != work and "{" in plan.folder:
        working_dir = working_dir.resolve()
        if working_dir.is_relative_to(work.resolve()):
            working_dir.mkdir(parents=True, exist_ok=True)
        elif not working_dir.is_dir():
            raise LauncherError(f"cwd=: there is no folder {working_dir}; one below {{launch_dir}} would be made")
    own = {name: plan.fill(value) for name, value in plan.own_variables.items()}
    ready = replace(
        plan,
        work=plan.work.with_words(plan.fill),
        own_variables={},
        working_dir=str(working_dir),
        variables={**plan.variables, **own},
        python_path=[*filter(None, own.get("PYTHONPATH", "").split(os.pathsep)), *plan.python_path],
    )
    note_before(ready)
    return ready


class Leftovers:
    """The files that a launch leaves in a folder where the next one finds them.

    Only part of a folder that is too large or too deep is searched.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._before = _Look(folder)

    def remark(self) -> str:
        """A sentence on the files that were left, or on why some may be missed, or ""."""
        now = _Look(self._folder)
        limit = self._before.limit or now.limit
        left = sorted(name for name, stamp in now.files.items() if self._before.files.get(name) != stamp)
        if limit and (now.is_cut or self._before.is_cut or not left):
            return f"{self._folder} {limit}, so files that a script leaves there for later launches go unnoticed"
        if not left:
            return ""
        return (
            f"left {and_more(left, shown=_MOST_NAMED)} in {self._folder}, where later launches may read it; give it "
            f"a path in {{launch_dir}}, which each launch has for itself"
        )


class _Look:
    def __init__(self, folder: Path | None) -> None:
        self.files: dict[str, tuple[int, int]] = {}
        self.is_cut = False
        self.limit = ""
        for path in self._below(folder, _DEEPEST) if folder is not None else ():
            with contextlib.suppress(OSError):  # gone meanwhile
                status = path.stat()
                self.files[os.path.relpath(path, folder)] = status.st_mtime_ns, status.st_size
            if len(self.files) > _MOST_FILES:
                self.is_cut = True
                self.limit = f"has more than {_MOST_FILES} files"
                break

    def _below(self, folder: Path, depth: int) -> Iterator[Path]:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in _NOT_LEFT:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not depth:
                        self.limit = f"has folders more than {_DEEPEST} deep"
                    elif not os.path.exists(f"{entry.path}/pyvenv.cfg"):
                        yield from self._below(Path(entry.path), depth - 1)
                elif not entry.name.endswith(".pyc"):
                    yield Path(entry.path)


def watched_folder(plan: LaunchPlan) -> Path | None:
    """The folder where a script may leave files that outlive its launch, or None.

    It is the one that is linked into the launch's own folder, or the one that the script runs in.
    """
    if not plan.work.is_program:
        return None
    folder = Path(plan.folder if plan.is_mirrored else plan.working_dir)
    return None if folder.is_relative_to(plan.directory) else folder

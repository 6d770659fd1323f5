"""Hunks of a git diff, a worktree that holds some of them, and the smallest sufficient set of them."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_distbench import git
from pytest_distbench.errors import LauncherError

_Item = TypeVar("_Item", bound=Hashable)
_DIFF = (
    "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules", "--src-prefix=a/", "--dst-prefix=b/",
    "--binary", "--full-index", "--find-renames",
)  # fmt: skip
"""Options of git diff that make its output independent of the user's configuration: it is parsed and applied."""
_LINES = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*\n")


@dataclass(frozen=True, slots=True)
class Hunk:
    """A part of a diff that can be left out.

    It is lines of a file that change together, or what happens to a file as a whole: the file is new, gone or binary,
    or gets another name or mode, without its changed lines.

    Attributes:
        names: name of the file before and after.
        sides: the same names as the diff spells them.
        text: the changed lines, each with its sign; for a file as a whole all that the diff says of it.
        start: number of the first changed line; for added lines, of the line that follows them; 0 for a file as a
            whole.
        removed, added: numbers of lines.
        now: number of the first changed line in the working tree; for removed lines of the one before them.
    """

    names: tuple[str, str]
    sides: tuple[bytes, bytes]
    text: bytes
    start: int = 0
    removed: int = 0
    added: int = 0
    now: int = 0

    def distance(self, file: str, line: int) -> float:
        """Lines between it and a line of the working tree: 0 if it holds it, infinite in another file."""
        if file not in self.names:
            return math.inf
        return max(self.now - line, line - (self.now + max(0, self.added - 1)), 0) if self.start else 0


def _of_file(text: bytes) -> Iterator[Hunk]:
    head, *bodies = _split(rb"@@ ", text)
    line, *others = head.splitlines(keepends=True)
    renamed = re.search(rb"^rename from (.*)\nrename to (.*)$", head, re.MULTILINE)
    both = line.removeprefix(b"diff --git ").rstrip(b"\n")
    half = len(both) // 2  # without a rename both names are the same, with a space between
    before, after = map(_name, renamed.groups() if renamed else (both[:half], both[half + 1 :]))
    names = (before, after) if renamed else (before.removeprefix("a/"), after.removeprefix("b/"))
    sides = [other[4:] for other in others if other.startswith((b"--- ", b"+++ "))]
    if not bodies or re.search(rb"^(new|deleted) file mode ", head, re.MULTILINE):
        yield Hunk(names, (b"", b""), text)
        return
    of_file = names, (sides[0], sides[1])
    if renamed or b"\nold mode " in head:
        yield Hunk(*of_file, b"".join([line, *(o for o in others if not o.startswith((b"--- ", b"+++ ")))]))
    for body in bodies:
        found = _LINES.match(body)
        assert found is not None
        start, removed, now, added = (1 if number is None else int(number) for number in found.groups())
        yield Hunk(*of_file, body[found.end() :], start + (removed == 0), removed, added, now)


def _split(at: bytes, text: bytes) -> list[bytes]:
    return re.split(rb"^(?=%s)" % at, text, flags=re.MULTILINE)


def _name(spelled: bytes) -> str:
    """Decode a name as git spells it: in quotes if it has unusual characters."""
    if spelled.startswith(b'"'):
        spelled = spelled[1:-1].decode("unicode_escape").encode("latin-1")
    return os.fsdecode(spelled)


def patch_of(hunks: Sequence[Hunk]) -> bytes:
    """Make a patch of some hunks of one diff, in its order, for ``git apply --unidiff-zero``.

    Line numbers are those without the hunks that are left out: there is no context by which git could find the lines.
    """
    parts: list[bytes] = []
    last: Hunk | None = None
    shift = 0
    for hunk in hunks:
        if hunk.start and (last is None or last.names != hunk.names):
            before, name = hunk.sides[0], hunk.sides[0].rstrip(b"\t\n")
            parts.append(b"diff --git %s %s\n--- %s+++ %s" % (name, name, before, before))  # without a new name
            shift = 0
        elif hunk.start and last and not last.start:
            parts.append(b"--- %s+++ %s" % hunk.sides)
            shift = 0
        if hunk.start:
            parts.append(b"@@ -%d,%d +%d,%d @@\n" % (hunk.start, hunk.removed, hunk.start + shift, hunk.added))
            shift += hunk.added - hunk.removed
        parts.append(hunk.text)
        last = hunk
    return b"".join(parts)


class Tree:
    """A git worktree of a revision, which holds some of the hunks by which the working tree differs from that revision.

    The working tree and its index are only read: the worktree has an index of its own.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._patch = folder.with_name(f"{folder.name}.patch")
        self._held: tuple[Hunk, ...] = ()

    def hunks(self) -> list[Hunk]:
        """All differences of the working tree, with untracked files, but without ignored ones."""
        of_root = f"--git-dir={self._git('rev-parse', '--absolute-git-dir').strip()}", f"--work-tree={self._root}"
        self._git(*of_root, "add", "--intent-to-add", "--ignore-removal", ".", folder=self._root)
        diff = self._diff(*of_root, folder=self._root, options=("--unified=0", "--inter-hunk-context=0"))
        return [hunk for text in _split(rb"diff --git ", diff)[1:] for hunk in _of_file(text)]

    def hold(self, hunks: Sequence[Hunk]) -> None:
        """Apply these hunks, of one diff and in its order, and take back all others."""
        for held, options in ((self._held, ["--reverse"]), (tuple(hunks), [])):
            if held:
                self._patch.write_bytes(patch_of(held))
                self._git("apply", "--unidiff-zero", "--whitespace=nowarn", *options, str(self._patch))
            self._held = () if options else held

    def patch(self) -> bytes:
        """The applied hunks with context, as ``git diff`` prints them."""
        return self._diff(options=("--unified=3",))

    def _diff(self, *of_root: str, folder: Path | None = None, options: Sequence[str] = ()) -> bytes:
        self._git(*of_root, *_DIFF, *options, f"--output={self._patch}", "HEAD", "--", folder=folder)
        return self._patch.read_bytes()

    def _git(self, *arguments: str, folder: Path | None = None) -> str:
        done = git.run(folder or self._folder, *arguments)
        if done.returncode:
            raise LauncherError(f"git {' '.join(arguments)} failed in {folder or self._folder}: {done.stderr.strip()}")
        return done.stdout


def smallest(items: Sequence[_Item], is_enough: Callable[[Sequence[_Item]], bool]) -> Sequence[_Item]:
    """Return a smallest sufficient set of items: without any one of them it is no longer enough.

    That is ddmin (Zeller and Hildebrandt, 2002): parts of the items are tried, then what is left without each, then
    smaller parts. All items are known to be enough, and none not to be; an unresolved set counts as not enough.
    """
    tried = functools.cache(is_enough)
    items, count = tuple(items), 2
    while len(items) > 1:
        edges = [len(items) * number // count for number in range(count + 1)]
        parts = [items[a:b] for a, b in itertools.pairwise(edges)]
        rests = [items[:a] + items[b:] for a, b in itertools.pairwise(edges)]
        if part := next(filter(tried, parts), None):
            items, count = part, 2
        elif rest := next(filter(tried, rests), None):
            items, count = rest, max(count - 1, 2)
        elif count == len(items):
            break
        else:
            count = min(2 * count, len(items))
    return items

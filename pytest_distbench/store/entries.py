"""Stored baselines: chosen by name, missing a test, renamed with it, or not used by a run.

A name is ``path::test[case.backend.launcher]``, a part of it, or a test's node id. A test that gets a parameter,
another name or another place would lose its baseline in the very commit that makes it slower, so a baseline whose test
is gone fails the run, until it is renamed or deleted. ``--distbench-prune`` deletes what a whole, green run did not
use: a baseline counts as unused only if its test was there to use it, or is certainly gone.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError
from pytest_distbench.records.case import NODES, BaselineEntry, BaselineName, Case, Conditions
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.store.baselines import BaselineFile, Baselines, read_file

Choice = Callable[[BaselineName], bool]

_BACKEND_AND_LAUNCHER = re.compile(r"\.[^.]+\.[^.]+\]")

_LIKE_AN_EXPRESSION = re.compile(r"(?:^|[\s()])(and|or|not)(?:$|[\s()])")


def selection(texts: Iterable[str]) -> Choice:
    """A choice of baselines: those that any of the texts names, or all if there is no text.

    A text without ``::`` is a part of the name, in upper or lower case. One with ``::`` is a whole name, a node id, or
    the beginning of one up to a ``::`` or ``[``: it chooses one test or case, and none whose name merely begins so.
    """
    wanted = [text.strip() for text in texts if text.strip()]
    for text in wanted:
        if "::" not in text and (word := _LIKE_AN_EXPRESSION.search(text)):
            raise ConfigurationError(
                f"-k {text!r}: wanted a part of a name, found the word {word[1]!r}. Give one part, such as 'test_a', "
                "or a whole name as 'distbench baseline list' prints it; several -k choose what any of them names"
            )
    return lambda name: not wanted or any(_is_named(name, text) for text in wanted)


def _is_named(name: BaselineName, text: str) -> bool:
    whole = str(name)
    if "::" not in text:
        return text.lower() in whole.lower()
    if whole == text or whole.startswith((f"{text}::", f"{text}[")):
        return True
    begin = text.removesuffix("]")  # behind a node id there is the name of a run, or backend and launcher alone
    rest = whole.removeprefix(begin)
    return begin != text and rest != whole and (rest.startswith(":") or bool(_BACKEND_AND_LAUNCHER.fullmatch(rest)))


_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def with_its_work(entry: BaselineEntry, case: Case) -> BaselineEntry:
    """The baseline with the case's workload hash if their parameters differ in names alone; else the baseline."""
    return replace(entry, workload=case.workload) if _is_same_work(entry, case) else entry


def _is_same_work(entry: BaselineEntry, case: Case) -> bool:
    if entry.workload in ("", case.workload):
        return entry.workload != ""
    if replace(case, params=entry.params).workload != entry.workload:
        return False  # other ranks, or another kind of device
    old, new = _own(entry.params, case.params), _own(case.params, entry.params)
    return len(old) == len(new) and sorted(map(repr, old)) == sorted(map(repr, new))


def _own(params: Mapping[str, Any], others: Mapping[str, Any]) -> list[Any]:
    return [
        value if name not in others else (name, value)
        for name, value in params.items()
        if name not in others or others[name] != value
    ]


def ranks_in(test_id: str) -> set[str]:
    """The part of an id, or of a key that begins with one, with the number of its test's ranks: ``ws2``."""
    return set(re.findall(r"(?:^|-)(ws\d+)(?=[-.:]|$)", test_id)[:1])


def has_test(root: Path, test: str) -> bool:
    if not root.is_dir():
        raise DistbenchError(f"--root {root} is not a folder")
    file, *names = test.split("::")
    try:
        body: list[ast.stmt] = ast.parse((root / file).read_bytes()).body
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, SyntaxError, ValueError):
        return True
    for name in names:
        nodes = list(_of_one_scope(body))
        classes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
        if any(node.bases for node in classes):
            return True  # the function may be inherited
        if not any({name, "*"} & {getattr(node, field, None) for field in ("name", "asname", "id")} for node in nodes):
            return False
        body = [statement for node in classes for statement in node.body]
    return True


def _of_one_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _of_one_scope(ast.iter_child_nodes(node))


def unused_baselines(
    store: Baselines,
    results: Iterable[CaseResult],
    *,
    reported: Collection[str],
    seen: Mapping[tuple[str, str], bool],
    rootpath: Path,
    roots: Sequence[Path],
) -> list[BaselineName]:
    """Baselines of this platform, and of conditions of this run, that belong to no test of a whole, green run.

    The test of such a baseline is one of:

    - a file that is gone from the folders this run was given;
    - a function that is gone from a file whose other tests ran;
    - a function that ran with this id, or with another one of the same ranks (``old-ws2`` for ``ws2``), without this
      case. The ranks of a run may differ from those of its test, and decide nothing.

    Args:
        reported: test files that had any test, as node ids.
        seen: (test, case id) of every test of ours -> whether it ran to its end, rather than being skipped.
        rootpath: folder that the files of the tests are relative to.
        roots: folders and files that the run was given, absolute.
    """
    measured = list(results)
    if not measured:
        return []
    used = {store.path(r.case.test, r.case.key) for r in measured}
    conditions = {_but_for_size(r.case.conditions) for r in measured}
    tests = {test for test, _ in seen}
    found = []
    for path in store.files():
        if path in used:
            continue
        file = read_file(path)
        entry, test_file = file.entry, file.test.partition("::")[0]
        whole = (rootpath / PurePosixPath(test_file)).resolve()
        under = entry.conditions
        if _but_for_size(under) not in conditions or not any(whole.is_relative_to(root) for root in roots):
            continue
        if file.test in tests:
            ids = {test_id: ran for (test, test_id), ran in seen.items() if test == file.test}
            ran = [test_id for test_id in ids if ids[test_id]]
            was_skipped = entry.is_of([test_id for test_id in ids if not ids[test_id]], file.key)
            of_same_ranks = bool(ranks_in(entry.test_id or file.key) & {size for i in ran for size in ranks_in(i)})
            is_unused = not was_skipped and (entry.is_of(ran, file.key) or of_same_ranks)
        else:
            is_unused = test_file in reported or not whole.exists()
        if is_unused:
            found.append(file.name)
    return found


def _but_for_size(conditions: Conditions) -> tuple[object, ...]:
    around = (pair for pair in sorted(conditions.around.items()) if pair[0] != NODES)
    return conditions.backend, conditions.launcher, *around


def missing_baselines(
    store: Baselines,
    results: Sequence[CaseResult],
    *,
    made: Mapping[str, Collection[str]],
    rootpath: Path,
    is_whole: Callable[[Path], bool],
) -> dict[BaselineName, str]:
    """Baselines of this platform, and of conditions of this run, whose test is gone from what was collected.

    Gone are a file from a folder, a function from a file, or an id if the test has a new one of the same ranks without
    a baseline. What a run did not choose is not gone. Values are names for ``baseline move``: the test, or with the id.

    Args:
        made: test -> ids of all tests that pytest has made, chosen to run or not.
        rootpath: folder that the files of the tests are relative to.
        is_whole: whether all tests of a file, or of the folder that it is gone from, were collected.
    """
    conditions = {_but_for_size(result.case.conditions) for result in results}
    new: dict[str, set[str]] = {}
    for result in results:
        if not result.reference.metrics:
            new.setdefault(result.case.test, set()).update(ranks_in(result.case.id))
    found: dict[BaselineName, str] = {}
    unread = {store.folder_of(test) for test in made.keys() - new.keys()}
    for folder, paths in itertools.groupby(store.files(), key=lambda path: path.parent):
        files = [] if folder in unread else list(_readable(paths))
        if not files:
            continue
        test = files[0].test
        whole = (rootpath / PurePosixPath(test.partition("::")[0])).resolve()
        if not is_whole(whole) or (test not in made and has_test(rootpath, test)):
            continue
        for file in files:
            entry = file.entry
            if not entry.holds_numbers or _but_for_size(entry.conditions) not in conditions:
                continue
            has_new_id = bool(new.get(test, set()) & ranks_in(entry.test_id or file.key))
            if test not in made:
                found[file.name] = test
            elif has_new_id and not entry.is_of(made[test], file.key):
                found[file.name] = f"{test}[{entry.test_id}]"
    return found


def _readable(paths: Iterable[Path]) -> Iterator[BaselineFile]:
    for path in paths:
        with contextlib.suppress(StoredFileError):  # told by the test whose it is
            yield read_file(path)


def renamed_baselines(files: Iterable[BaselineFile], old: str, new: str) -> Iterator[tuple[BaselineFile, BaselineFile]]:
    """Each baseline of a test, or of one of its ids, and the same under another name: ``path::test`` or ``...[id]``.

    Raises:
        ConfigurationError: a name is none of these, or one has an id and the other has none.
    """
    (test, old_id), (new_test, new_id) = (_apart(name) for name in (old, new))
    if (old_id is None) is not (new_id is None):
        raise ConfigurationError(f"{old!r} and {new!r}: wanted an id in brackets in both names, or in none")
    for file in files:
        test_id = file.entry.test_id
        if file.test != test or (old_id is not None and test_id != old_id):
            continue
        key, entry = file.key, file.entry
        if new_id is not None and test_id is not None:
            key, entry = new_id + key.removeprefix(test_id), replace(entry, test_id=new_id)
        yield file, replace(file, test=new_test, key=key, entry=entry)


def _apart(name: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"([^\[]+::[^\[]+)(?:\[(.*)\])?", name)
    if match is None:
        raise ConfigurationError(
            f"{name!r} is no test: wanted its file and name, such as 'suites/test_a.py::test_b' or, of one of its "
            "parameters, 'suites/test_a.py::test_b[ws2]'"
        )
    return match[1], match[2]

"""Stored entries that a whole, green run did not use.

Careful by design, because ``--distbench-prune`` deletes what is found here: an entry counts as unused only if its test
was there to use it, or is certainly gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pytest_distbench.records.case import NODES, Conditions, EntryName
from pytest_distbench.records.run import CaseResult
from pytest_distbench.store.baselines import BaselineStore, read_file
from pytest_distbench.store.moved import ranks_in


def unused_entries(
    store: BaselineStore,
    results: Iterable[CaseResult],
    *,
    reported: Collection[str],
    seen: Mapping[tuple[str, str], bool],
    rootpath: Path,
    roots: Sequence[Path],
) -> list[EntryName]:
    """Entries of this platform, and of conditions of this run, that belong to no test of a whole, green run.

    Such an entry's test is one of:

    - a file that is gone from the folders this run was given;
    - a function that is gone from a file whose other tests ran;
    - a function that ran with this id, or with another one of the same ranks (``old-ws2`` beside ``ws2``), without this
      case. The ranks of a run may be others than those of its test, and say nothing.

    Args:
        store: of this platform.
        results: every case measured.
        reported: test files that had any test, as node ids.
        seen: (test, case id) of every test of ours -> whether it ran to its end, rather than being skipped.
        rootpath: folder that the files of the tests are relative to.
        roots: folders and files that the run was given, absolute.
    """
    measured = list(results)
    if not measured:
        return []
    used = {store.path(name.test, name.key) for r in measured for name in _names(r)}
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


def _names(result: CaseResult) -> Iterator[EntryName]:
    """Of the entry of a case, and of those of gone tests that are its own until an update has moved them."""
    yield EntryName(platform=result.environment.platform, test=result.case.test, key=result.case.key)
    yield from result.reference.gone


def _but_for_size(conditions: Conditions) -> tuple[object, ...]:
    """What a run measures under, whatever its tests are."""
    around = (pair for pair in sorted(conditions.around.items()) if pair[0] != NODES)
    return conditions.backend, conditions.launcher, *around

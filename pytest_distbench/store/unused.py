"""Stored entries that a whole, green run did not use.

Careful by design, because ``--distbench-prune`` deletes what is found here: an entry counts as unused only if its test
was there to use it, or is certainly gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pytest_distbench.records.case import Conditions, EntryName
from pytest_distbench.records.run import CaseResult
from pytest_distbench.store.baselines import BaselineStore, read_file


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
    - a function that ran at the entry's world size, without this case.

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
    used = {store.path(r.case.test, r.case.key) for r in measured}
    conditions = {_but_for_size(r.case.conditions) for r in measured}
    sizes: dict[str, set[int]] = {}
    for result in measured:
        sizes.setdefault(result.case.test, set()).add(result.case.world_size)
    skipped = {name for name, ran in seen.items() if not ran}
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
            was_skipped = entry.is_of([test_id for test, test_id in skipped if test == file.test], file.key)
            is_unused = under.world_size in sizes.get(file.test, ()) and not was_skipped
        else:
            is_unused = test_file in reported or not whole.exists()
        if is_unused:
            found.append(file.name)
    return found


def _but_for_size(conditions: Conditions) -> tuple[object, ...]:
    """What a run measures under, whatever its tests are."""
    return conditions.backend, conditions.launcher, *sorted(conditions.around.items())

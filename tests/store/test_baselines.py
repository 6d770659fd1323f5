"""The store of baselines, and which commits recorded what is in it."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import ON_TWO
from support.documents import documents, texts
from support.repositories import git
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.records.case import BaselineEntry, BaselineMetric, Case, Conditions
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import (
    SCHEMA,
    BaselineFile,
    BaselineStore,
    NotRecorded,
    read_file,
    recordings,
    render,
)


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    git(tmp_path, "init", "--quiet")
    return BaselineStore(tmp_path / "baselines", PLATFORM)


def recording_commit(path: Path, root: Path) -> str:
    return next(recordings(path, root)).commit


def commit(root: Path, message: str) -> str:
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", message)
    return git(root, "rev-parse", "HEAD").strip()


def test_it_is_the_last_one_that_changed_numbers(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    commit(tmp_path, "one")
    store.write(TEST, KEY, entry(2.0, 2.1))
    second = commit(tmp_path, "two")
    store.write(TEST, KEY, replace(entry(2.0, 2.1), tolerance=0.5))
    commit(tmp_path, "a tolerance, by hand")
    (tmp_path / "other").write_text("x")
    commit(tmp_path, "something else")

    assert recording_commit(store.path(TEST, KEY), tmp_path) == second


@pytest.mark.parametrize(
    "edited",
    [
        lambda e: {"step": replace(e.metrics["step"], launches=[1.0, 1.1, 1.2001])},
        lambda e: {"step": replace(e.metrics["step"], launches=[1.0, 1.1, 9.0])},
        lambda e: {"step": replace(e.metrics["step"], companions={"cpu_s": 2.0})},
    ],
    ids=["one digit", "one launch", "no launch"],
)
def test_single_numbers_that_were_edited_are_no_recording(
    store: BaselineStore, tmp_path: Path, edited: Callable[[BaselineEntry], dict[str, BaselineMetric]]
) -> None:
    store.write(TEST, KEY, measured := entry(1.0, 1.1, 1.2))
    first = commit(tmp_path, "one")
    store.write(TEST, KEY, replace(measured, metrics=edited(measured)))
    (tmp_path / "code").write_text("slower")
    commit(tmp_path, "edited, and slower code")

    assert recording_commit(store.path(TEST, KEY), tmp_path) == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TEST, "suites/test_b.py::test_a"),
        (TEST, "suites/test_a.py::test_other"),
        ("here/test_a.py::test_a", "there/below/test_a.py::test_a"),
    ],
    ids=["file", "function", "folder"],
)
def test_a_file_that_was_moved_keeps_who_recorded_it(store: BaselineStore, tmp_path: Path, old: str, new: str) -> None:
    measured = entry(1.0, 1.1, 1.2)
    store.write(old, KEY, measured)
    first = commit(tmp_path, "one")
    store.path(old, KEY).unlink()
    store.write(new, KEY, measured)
    (tmp_path / "code").write_text("slower")
    commit(tmp_path, "moved")
    store.write(new, KEY, replace(measured, tolerance=0.5))
    commit(tmp_path, "a tolerance, by hand")

    assert [r.commit for r in recordings(store.path(new, KEY), tmp_path)] == [first]


@pytest.mark.parametrize("text", ["{", "<<<<<<< ours\n", ""])
def test_what_nobody_can_read_is_no_recording_and_hides_none(store: BaselineStore, tmp_path: Path, text: str) -> None:
    path = store.path(TEST, KEY)
    store.write(TEST, KEY, entry(1.0, 1.1, 1.2))
    first = commit(tmp_path, "one")
    whole = path.read_text()
    path.write_text(text)
    commit(tmp_path, "nonsense")
    path.write_text(whole)
    (tmp_path / "code").write_text("slower")
    commit(tmp_path, "mended, and slower code")

    assert [r.commit for r in recordings(path, tmp_path)] == [first]


def test_what_is_not_committed_or_ignored_is_told_with_the_command(store: BaselineStore, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    commit(tmp_path, "one")
    store.write(TEST, KEY, entry(1.0, 1.1))
    path = store.path(TEST, KEY)
    with pytest.raises(NotRecorded, match="not committed: git add baselines/"):
        recording_commit(path, tmp_path)
    (tmp_path / ".gitignore").write_text("baselines/\n")
    with pytest.raises(NotRecorded, match="not committed"):
        recording_commit(path, tmp_path)


def test_another_repository_or_none_is_told(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path / "baselines", PLATFORM)
    store.write(TEST, KEY, entry(1.0, 1.1))
    with pytest.raises(NotRecorded, match="not in the repository of the tests"):
        recording_commit(store.path(TEST, KEY), tmp_path)
    git(tmp_path / "baselines", "init", "--quiet")
    with pytest.raises(NotRecorded, match="not in the repository of the tests"):
        recording_commit(store.path(TEST, KEY), tmp_path)


def test_a_shallow_clone_is_told_with_the_command_that_deepens_it(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    commit(tmp_path, "one")
    (tmp_path / "other").write_text("x")
    commit(tmp_path, "two")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{tmp_path}", str(clone))

    with pytest.raises(NotRecorded, match=r"shallow clone.*git fetch --deepen=100.*fetch-depth: 0"):
        recording_commit(BaselineStore(clone / "baselines", PLATFORM).path(TEST, KEY), clone)


BASELINES_TEST = "suites/collectives/test_all_reduce.py::test_all_reduce"

BASELINES_KEY = "ws2.gloo.warm"


def entry_of_baselines(*values: float) -> BaselineEntry:
    return BaselineEntry(
        workload="12345678",
        conditions=ON_TWO,
        software={"torch": "2.13.0"},
        metrics={"latency": BaselineMetric(better="lower", unit="s", launches=list(values))},
    )


@pytest.fixture
def store_of_baselines(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines", "cpu-test-2c")


finite = st.floats(allow_nan=False, allow_infinity=False)

tolerances = st.none() | st.floats(0, 5)

kinds = st.tuples(st.just("exact"), st.none()) | st.tuples(
    st.sampled_from(["lower", "higher", "curve", "same", "steps", "floor"]), tolerances
)

metrics = st.builds(
    lambda kind, **rest: BaselineMetric(better=kind[0], tolerance=kind[1], **rest),
    kinds,
    unit=texts,
    launches=st.builds(lambda first, others: [first, *others], finite, st.lists(st.none() | finite, max_size=3)),
    curve=st.lists(finite, max_size=3),
    spread=finite,
    identity=st.dictionaries(texts, st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | texts, max_size=2),
)

entries = st.builds(
    BaselineEntry,
    workload=texts,
    conditions=st.builds(Conditions, world_size=st.integers(1, 4096), backend=texts, launcher=texts),
    test_id=st.none() | texts,
    software=st.dictionaries(texts, texts, max_size=2),
    metrics=st.dictionaries(texts, metrics, min_size=1, max_size=3),
    tolerance=tolerances,
    xfail_perf=texts,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("properties")


def _entry() -> BaselineEntry:
    metric = BaselineMetric(better="lower", unit="s", launches=[1.0, 2.0])
    return BaselineEntry(
        workload="x",
        conditions=ON_TWO,
        software={},
        metrics={"m": metric},
    )


def _write_for_ever(folder: str) -> None:
    store_of_baselines = BaselineStore(Path(folder), "cpu")
    while True:
        store_of_baselines.write(BASELINES_TEST, "a", _entry())
        store_of_baselines.write(BASELINES_TEST, "b", _entry())


def test_what_is_written_is_read_back(store_of_baselines: BaselineStore) -> None:
    store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0, 2.0))

    assert store_of_baselines.entry(BASELINES_TEST, BASELINES_KEY) == entry_of_baselines(1.0, 2.0)
    assert store_of_baselines.entries(BASELINES_TEST) == {BASELINES_KEY: entry_of_baselines(1.0, 2.0)}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("float32-1024-ws2.gloo.warm", "float32-1024-ws2.gloo.warm.json"),
        ("ws2:efficiency.gloo.warm", "ws2%3Aefficiency.gloo.warm.json"),
        ("a/../b.gloo.warm", "a%2F..%2Fb.gloo.warm.json"),
        (".gloo.warm", "%2Egloo.warm.json"),
        ("x" * 300, "x" * 180 + "~0d4e2ca9e9cbced7.json"),
    ],
)
def test_a_case_of_any_name_has_a_file_of_its_own(store_of_baselines: BaselineStore, key: str, name: str) -> None:
    assert store_of_baselines.write(BASELINES_TEST, key, entry_of_baselines(1.0)).name == name
    assert store_of_baselines.entries(BASELINES_TEST) == {key: entry_of_baselines(1.0)}


def test_number_lists_take_one_line_and_keys_are_sorted(store_of_baselines: BaselineStore) -> None:
    text = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(0.25, 1e-05, 3.0)).read_text()

    assert '"launches": [0.25, 0.00001, 3.0]' in text
    assert text.index('"better"') < text.index('"launches"') < text.index('"unit"')
    assert text.endswith("}\n")


def test_branches_that_record_different_cases_merge_without_conflict(store_of_baselines: BaselineStore) -> None:
    store_of_baselines.write(BASELINES_TEST, "m.gloo.warm", entry_of_baselines(1.0))
    git(store_of_baselines.folder, "init", "-b", "main")
    git(store_of_baselines.folder, "add", ".")
    git(store_of_baselines.folder, "commit", "-m", "start")
    branches = {"one": ["a", "m1", "z"], "two": ["b", "m2", "y"]}  # neighbours, in the sorted order of one file
    for branch, cases in branches.items():
        git(store_of_baselines.folder, "checkout", "-b", branch, "main")
        for test in (BASELINES_TEST, "suites/test_new.py::test_new"):
            for case in cases:
                store_of_baselines.write(test, f"{case}.gloo.warm", entry_of_baselines(2.0))
        git(store_of_baselines.folder, "add", ".")
        git(store_of_baselines.folder, "commit", "-m", branch)
    git(store_of_baselines.folder, "merge", "--no-edit", "one")

    recorded = {f"{case}.gloo.warm" for cases in branches.values() for case in cases}
    assert set(store_of_baselines.entries("suites/test_new.py::test_new")) == recorded
    assert set(store_of_baselines.entries(BASELINES_TEST)) == recorded | {"m.gloo.warm"}


def test_a_later_schema_is_refused_and_left_alone(store_of_baselines: BaselineStore) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))
    later = json.dumps({"schema": SCHEMA + 1, "what": "ever"})
    path.write_text(later)

    with pytest.raises(StoredFileError, match=rf"schema {SCHEMA + 1}, this version reads {SCHEMA}.*Upgrade"):
        store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(2.0))
    assert path.read_text() == later


@pytest.mark.parametrize(
    "test",
    [
        "suites/../../escape.py::test_x",
        "..//escape.py::test_x",
        "../::test_x",
        "..::test_x",
        "/abs/test_x.py::test_x",
        "suites/test_x.py::te/st",
        "suites/test_x.py",
    ],
)
def test_a_path_cannot_leave_the_store(store_of_baselines: BaselineStore, test: str) -> None:
    with pytest.raises(StoredFileError, match="no place below the baseline folder"):
        store_of_baselines.write(test, BASELINES_KEY, entry_of_baselines(1.0))


def test_two_tests_with_one_place_do_not_share_a_baseline(store_of_baselines: BaselineStore) -> None:
    store_of_baselines.write("../b/test_a.py::t", BASELINES_KEY, entry_of_baselines(1.0))
    other = "_above_/b/test_a.py::t"

    for use in (
        store_of_baselines.entry,
        lambda test, key: store_of_baselines.write(test, key, entry_of_baselines(2.0)),
        lambda test, _: store_of_baselines.entries(test),
    ):
        with pytest.raises(
            StoredFileError, match=r"holds .*\.\./b/test_a\.py::t.*, and _above_/b.* has the same place"
        ):
            use(other, BASELINES_KEY)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"launches": [1.0, 2.0]', '"launches": ["a"]', r"\$\.entry\.metrics\[latency\]\.launches"),
        ('"launches": [1.0, 2.0]', '"launches": [1.0], "minimum": [2.0], "p95": [3.0]', r"metrics\[latency\]"),
        ('"better": "lower"', '"better": "exact", "tolerance": 0.5', "an exact metric has no tolerance"),
        ('"launches": [1.0, 2.0]', '"launches": [null, null]', r"metrics\[latency\]\.launches` holds no value"),
        ('"better": "lower"', '"better": "lower", "better": "info"', "the key 'better' stands twice in one object"),
        ('"world_size": 2', '"world_size": 0', r"\$\.entry\.conditions\.world_size"),
        ('  "schema"', '<<<<<<< HEAD\n  "schema"', r"marks of a merge conflict.*--ours"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(store_of_baselines: BaselineStore, old: str, new: str, said: str) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0, 2.0))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))

    with pytest.raises(StoredFileError, match=said):
        read_file(path)


def test_a_recorded_entry_without_metrics_is_refused_and_one_that_holds_bounds_alone_is_read(
    store_of_baselines: BaselineStore,
) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, replace(entry_of_baselines(1.0), metrics={}))
    with pytest.raises(StoredFileError, match="metrics` is empty: what was recorded holds at least one"):
        read_file(path)
    path.unlink()

    assert (
        read_file(
            store_of_baselines.write(
                BASELINES_TEST, BASELINES_KEY, replace(entry_of_baselines(1.0), metrics={}, workload="")
            )
        ).entry.metrics
        == {}
    )


def test_a_file_knows_whose_it_is_even_where_its_name_could_be_anothers(store_of_baselines: BaselineStore) -> None:
    store_of_baselines.write(BASELINES_TEST, "a:b-ws2.gloo.warm", replace(entry_of_baselines(1.0), test_id="a:b-ws2"))

    assert store_of_baselines.entries(BASELINES_TEST, test_ids=["a"]) == {}
    assert set(store_of_baselines.entries(BASELINES_TEST, test_ids=["a:b-ws2"])) == {"a:b-ws2.gloo.warm"}


@pytest.mark.parametrize(
    ("key", "ids", "is_one"),
    [
        ("ws2.gloo.warm", ["ws2"], True),
        ("ws2:one.gloo.warm", ["ws2"], True),
        ("a:b-ws2.gloo.warm", ["a:b-ws2"], True),
        ("x.1-ws2.gloo.warm", ["x.1-ws2"], True),
        ("x.1-ws2.gloo.warm", ["x"], False),
        ("ws22.gloo.warm", ["ws2"], False),
    ],
)
def test_an_entry_of_another_tool_belongs_to_the_test_whose_id_its_name_begins_with(
    store_of_baselines: BaselineStore, key: str, ids: list[str], *, is_one: bool
) -> None:
    store_of_baselines.write(BASELINES_TEST, key, entry_of_baselines(1.0))

    assert set(store_of_baselines.entries(BASELINES_TEST, test_ids=ids)) == ({key} if is_one else set())


def test_the_baselines_of_this_repository_are_read() -> None:
    store_of_baselines = BaselineStore(Path(__file__).parents[2] / "baselines", "cpu-amd-epyc-f26m2-2c")
    files = list(store_of_baselines.read_all())

    assert files
    assert all(file.key.endswith(f".{file.entry.conditions.launcher}") for file in files)
    assert {file.entry.conditions.engine for file in files if ".elastic-" in file.key} <= {"stock", "fast"}


def test_all_files_that_cannot_be_read_are_named_each_with_its_reason(store_of_baselines: BaselineStore) -> None:
    for number, text in enumerate(["", "{", "<<<<<<< ours"]):
        store_of_baselines.write(BASELINES_TEST, f"{number}-{BASELINES_KEY}", entry_of_baselines(1.0)).write_text(text)
    store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))
    with pytest.raises(StoredFileError) as several:
        store_of_baselines.entries(BASELINES_TEST)
    lines = str(several.value).splitlines()

    assert [line.partition("-ws2")[0].rpartition("/")[2] for line in lines[1:]] == ["0", "1", "2"]
    assert lines[0] == "3 files cannot be used:"
    assert "is empty" in lines[1]
    assert "not a baseline file: Input data was truncated. If you edited it" in lines[2]
    assert "merge conflict" in lines[3]


def test_of_many_files_that_cannot_be_read_the_first_are_named_and_the_rest_counted(
    store_of_baselines: BaselineStore,
) -> None:
    for number in range(13):
        store_of_baselines.write(BASELINES_TEST, f"{number:02}-{BASELINES_KEY}", entry_of_baselines(1.0)).write_text("")
    store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))
    reading = store_of_baselines.read_all()

    assert next(reading).key == BASELINES_KEY, "what can be read comes first"

    with pytest.raises(StoredFileError) as many:
        next(reading)
    lines = str(many.value).splitlines()

    assert (len(lines), lines[-2], lines[-1][:18]) == (13, "  and 3 more", "If you edited it, ")


def test_a_wrong_field_is_named_with_its_path(store_of_baselines: BaselineStore) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))
    path.write_text(path.read_text().replace('"lower"', '"sideways"'))

    with pytest.raises(StoredFileError, match=r"sideways.*\$\.entry\.metrics"):
        read_file(path)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    store_of_baselines: BaselineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoredFileError, match="No space left on device"):
        store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(2.0))

    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [path]


def _write_many(folder: str, name: str) -> None:
    store_of_baselines = BaselineStore(Path(folder), "cpu-test-2c")
    for i in range(20):
        store_of_baselines.write(BASELINES_TEST, f"{name}{i}", entry_of_baselines(float(i + 1)))
        store_of_baselines.write(BASELINES_TEST, "shared", entry_of_baselines(1.0, 2.0))


def test_two_writers_lose_nothing(store_of_baselines: BaselineStore) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(str(store_of_baselines.folder), name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    assert len(store_of_baselines.entries(BASELINES_TEST)) == 41
    assert [
        path.name
        for path in store_of_baselines.path(BASELINES_TEST, BASELINES_KEY).parent.iterdir()
        if path.name.startswith(".")
    ] == []


def test_an_update_keeps_what_was_set_by_hand() -> None:
    case = Case(test=BASELINES_TEST, id="ws2", conditions=ON_TWO, device="cpu")
    by_hand = BaselineMetric(better="lower", unit="s", launches=[1.0], tolerance=0.3)
    before = replace(entry_of_baselines(1.0), metrics={"latency": by_hand}, tolerance=0.2, xfail_perf="bug 12")
    launch = LaunchRecord(
        index=0,
        outcome="passed",
        wall_s=1.0,
        measurements=[Measurement(name="latency", unit="s", better="lower", value=2.0)],
    )
    made = make_entry(case, [launch], {}, before=before)

    assert (made.tolerance, made.xfail_perf, made.metrics["latency"].tolerance) == (0.2, "bug 12", 0.3)


def test_stored_values_have_four_digits_and_exact_ones_all() -> None:
    case = Case(test=BASELINES_TEST, id="ws2", conditions=ON_TWO, device="cpu")
    measurements = [
        Measurement(name="latency", unit="s", better="lower", value=0.000123456789),
        Measurement(name="steps", unit="", better="exact", value=123456.0),
        Measurement(name="loss", unit="", better="info", value=0.5),
    ]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measurements, foreign_cores=0.123)
    made = make_entry(case, [launch], {"torch": "2.13.0"})

    assert {key: metric.launches for key, metric in made.metrics.items()} == {
        "latency": [0.0001235],
        "steps": [123456.0],
    }
    assert made.foreign_cores == 0.12


class TestBaselines:
    @given(st.dictionaries(texts, entries, max_size=4))
    def test_what_is_written_is_read(self, folder: Path, content: dict[str, BaselineEntry]) -> None:
        store_of_baselines = BaselineStore(folder / "written", "cpu")
        for key in store_of_baselines.entries(BASELINES_TEST):
            assert store_of_baselines.delete(BASELINES_TEST, key)
        for key, entry_of_baselines in content.items():
            store_of_baselines.write(BASELINES_TEST, key, entry_of_baselines)

        assert store_of_baselines.entries(BASELINES_TEST) == content
        assert {key: store_of_baselines.entry(BASELINES_TEST, key) for key in content} == content
        assert {file.key: file.entry for file in store_of_baselines.read_all()} == content

    @given(documents)
    def test_any_document_is_refused_or_read(self, folder: Path, document: object) -> None:
        path = folder / "document.json"
        path.write_bytes(msgspec.json.encode(document))
        with pytest.raises(StoredFileError, match=r"document\.json"):
            read_file(path)

    @given(st.text(max_size=80))
    def test_no_name_of_a_test_leads_out_of_the_store(self, folder: Path, name: str) -> None:
        store_of_baselines = BaselineStore(folder / "names", "cpu")
        for test in (name, f"{name}::test", f"a.py::{name}"):
            try:
                path = store_of_baselines.path(test, name)
                assert store_of_baselines.entry(test, name) is None
                assert store_of_baselines.entries(test) == {}
            except DistbenchError:
                continue
            assert path.resolve().is_relative_to(store_of_baselines.folder.resolve())

    def test_a_link_that_leads_out_of_the_store_is_refused(self, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / "baselines" / "cpu").mkdir(parents=True)
        (tmp_path / "baselines" / "cpu" / "suites").symlink_to(elsewhere)
        store_of_baselines = BaselineStore(tmp_path / "baselines", "cpu")

        with pytest.raises(StoredFileError, match="outside the baseline folder"):
            store_of_baselines.write(BASELINES_TEST, "a", _entry())
        assert list(elsewhere.iterdir()) == []

    def test_a_writer_killed_at_any_moment_leaves_a_whole_file(self, tmp_path: Path) -> None:
        store_of_baselines = BaselineStore(tmp_path, "cpu")
        dice = random.Random(0)
        for _ in range(15):
            writer = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(str(tmp_path),))
            writer.start()
            time.sleep(dice.uniform(0, 0.05))
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
            assert set(store_of_baselines.entries(BASELINES_TEST)) <= {"a", "b"}

    def test_what_a_killed_writer_left_is_removed_by_a_later_one_and_a_living_writers_is_not(
        self, tmp_path: Path
    ) -> None:
        store_of_baselines = BaselineStore(tmp_path, "cpu")
        path = store_of_baselines.write(BASELINES_TEST, "a", _entry())
        abandoned, living = (path.with_name(f".{name}.json.x.distbench-draft") for name in ("abandoned", "living"))
        for draft in (abandoned, living):
            draft.write_bytes(b"{")
        os.utime(abandoned, (0, 0))
        store_of_baselines.write(BASELINES_TEST, "a", _entry())

        assert sorted(path.parent.iterdir()) == sorted([path, living])


def test_a_file_that_is_a_link_is_refused_and_stays(tmp_path: Path) -> None:
    store_of_baselines = BaselineStore(tmp_path / "baselines", "cpu-test-2c")
    path = store_of_baselines.write("a.py::test_a", "ws2.gloo.warm", entry_of_baselines())
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()

    for use in (
        lambda: store_of_baselines.entry("a.py::test_a", "ws2.gloo.warm"),
        lambda: store_of_baselines.entries("a.py::test_a"),
        lambda: list(store_of_baselines.read_all()),
        lambda: store_of_baselines.write("a.py::test_a", "ws2.gloo.warm", entry_of_baselines()),
    ):
        with pytest.raises(StoredFileError, match=r"is a link to .*elsewhere\.json; a store holds files"):
            use()
    assert path.is_symlink()
    assert elsewhere.read_bytes() == before


def test_a_pipe_in_the_place_of_a_file_is_told_and_does_not_block(tmp_path: Path) -> None:
    store_of_baselines = BaselineStore(tmp_path / "baselines", "cpu-test-2c")
    path = store_of_baselines.path("a.py::test_a", "ws2.gloo.warm")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)

    with pytest.raises(StoredFileError, match="wanted a regular file, found a pipe"):
        store_of_baselines.entry("a.py::test_a", "ws2.gloo.warm")


def test_a_test_without_files_has_no_entries(store_of_baselines: BaselineStore) -> None:
    assert store_of_baselines.entries(BASELINES_TEST) == {}
    assert store_of_baselines.entry(BASELINES_TEST, BASELINES_KEY) is None
    assert not store_of_baselines.delete(BASELINES_TEST, BASELINES_KEY)


def test_a_copied_file_is_not_taken_for_another_case(store_of_baselines: BaselineStore) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))
    path.with_name("ws4.gloo.warm.json").write_bytes(path.read_bytes())

    with pytest.raises(StoredFileError, match=r"ws4.gloo.warm.json: holds .*\[ws2.gloo.warm\], whose place is"):
        store_of_baselines.entry(BASELINES_TEST, "ws4.gloo.warm")


def test_a_file_that_was_moved_and_measured_anew_has_two_recordings(store: BaselineStore, tmp_path: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1, 1.2))
    first = commit(tmp_path, "one")
    moved = store.path("suites/test_b.py::test_a", KEY)
    store.path(TEST, KEY).unlink()
    store.write("suites/test_b.py::test_a", KEY, entry(1.0, 1.1, 1.2))
    commit(tmp_path, "moved")
    store.write("suites/test_b.py::test_a", KEY, entry(2.0, 2.1, 2.2))
    second = commit(tmp_path, "measured anew")

    assert [r.commit for r in recordings(moved, tmp_path)] == [second, first]


def test_a_file_lies_below_platform_suite_and_test(store_of_baselines: BaselineStore) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))

    folder = (
        store_of_baselines.folder / "cpu-test-2c" / "suites" / "collectives" / "test_all_reduce" / "test_all_reduce"
    )
    assert path == folder / "ws2.gloo.warm.json"


def test_writing_one_case_leaves_the_others_untouched(store_of_baselines: BaselineStore) -> None:
    untouched = store_of_baselines.write(BASELINES_TEST, "a", entry_of_baselines(1.0))
    before = untouched.stat()
    store_of_baselines.write(BASELINES_TEST, "b", entry_of_baselines(2.0))
    store_of_baselines.write(BASELINES_TEST, "b", entry_of_baselines(3.0))
    after = untouched.stat()

    assert store_of_baselines.entries(BASELINES_TEST) == {"a": entry_of_baselines(1.0), "b": entry_of_baselines(3.0)}
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)  # of its inode nothing was set


def test_tests_beside_the_root_directory_have_their_own_places_in_the_store(store_of_baselines: BaselineStore) -> None:
    tests = ["../../b/tests/test_a.py::t", "../b/tests/test_a.py::t", "b/tests/test_a.py::t"]
    places = [
        store_of_baselines.write(test, BASELINES_KEY, entry_of_baselines(i)).relative_to(store_of_baselines.folder)
        for i, test in enumerate(tests)
    ]

    assert [place.parent.as_posix().partition("/")[2] for place in places] == [
        "_above_/_above_/b/tests/test_a/t",
        "_above_/b/tests/test_a/t",
        "b/tests/test_a/t",
    ]
    assert [store_of_baselines.entry(test, BASELINES_KEY) for test in tests] == [
        entry_of_baselines(0),
        entry_of_baselines(1),
        entry_of_baselines(2),
    ]


def test_files_of_other_cases_are_not_read(store_of_baselines: BaselineStore) -> None:
    store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0))
    store_of_baselines.write(BASELINES_TEST, "ws4.gloo.warm", entry_of_baselines(1.0)).write_text("{")

    assert set(store_of_baselines.entries(BASELINES_TEST, test_ids=["ws2"])) == {BASELINES_KEY}


def test_truncation_at_any_offset_is_a_clear_error(store_of_baselines: BaselineStore) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, entry_of_baselines(1.0, 2.0))
    data = path.read_bytes()
    for length in range(len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(
            StoredFileError, match="not a baseline file" if length else "is empty, and no baseline file"
        ):
            read_file(path)


def test_a_negative_tolerance_is_refused(store_of_baselines: BaselineStore) -> None:
    path = store_of_baselines.write(BASELINES_TEST, BASELINES_KEY, replace(entry_of_baselines(1.0), tolerance=0.5))
    path.write_text(path.read_text().replace('"tolerance": 0.5', '"tolerance": -1'))

    with pytest.raises(StoredFileError, match=r">= 0.0 - at `\$.entry.tolerance`"):
        store_of_baselines.entry(BASELINES_TEST, BASELINES_KEY)


def test_a_rendered_file_is_the_same_each_time() -> None:
    content = BaselineFile(schema=1, test=BASELINES_TEST, platform="cpu", key="a", entry=_entry())

    assert render(content) == render(content)

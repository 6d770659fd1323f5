"""The baseline directory, and the baseline commits of what is in it."""

from __future__ import annotations

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
from support.documents import documents
from support.metrics import baseline_of
from support.repositories import git
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import Baselines, NotRecorded, read_file, recordings


@pytest.fixture
def store(tmp_path: Path) -> Baselines:
    return Baselines(tmp_path / "baselines", PLATFORM)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Around the store."""
    git(tmp_path, "init", "--quiet")
    return tmp_path


def recording_commit(path: Path, root: Path) -> str:
    return next(recordings(path, root))[0]


def commit(root: Path, message: str) -> str:
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message", message)
    return git(root, "rev-parse", "HEAD").strip()


def test_it_is_the_last_one_that_changed_numbers(store: Baselines, repository: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    commit(repository, "one")
    store.write(TEST, KEY, entry(2.0, 2.1))
    second = commit(repository, "two")
    store.write(TEST, KEY, replace(entry(2.0, 2.1), tolerance=0.5))
    commit(repository, "a tolerance, by hand")
    (repository / "other").write_text("x")
    commit(repository, "something else")

    assert recording_commit(store.path(TEST, KEY), repository) == second


def test_a_commit_that_rewrote_the_form_of_a_file_is_no_recording(store: Baselines, repository: Path) -> None:
    path = store.write(TEST, KEY, made := entry(1.0, 1.1))
    now = path.read_text()
    older = now.replace('"schema": 3', '"schema": 2').replace('"unit": "s"', '"facts": {"mode": "loop"}, "unit": "s"')
    path.write_text(older)
    first = commit(repository, "measured, in an older schema")
    path.write_text(now)
    commit(repository, "the form of the file")
    found = list(recordings(path, repository))

    assert [(commit, entry) for commit, _, entry in found] == [(first, None)]
    assert store.read(TEST, KEY) == made

    path.write_text(now.replace("1.1", "1.2").replace("1.0", "3.0"))
    last = commit(repository, "measured again")
    assert [commit for commit, _, _ in recordings(path, repository)] == [last, first]


@pytest.mark.parametrize(
    "edited",
    [
        lambda e: {"step": baseline_of([1.0, 1.1, 1.2001], name="step")},
        lambda e: {"step": baseline_of([1.0, 1.1, 9.0], name="step")},
        lambda e: {"step": [replace(m, companions={"cpu_s": 2.0}) for m in e.metrics["step"]]},
    ],
    ids=["one digit", "one launch", "no launch"],
)
def test_single_numbers_that_were_edited_are_no_recording(
    store: Baselines, repository: Path, edited: Callable[[BaselineEntry], dict[str, list[Sample]]]
) -> None:
    store.write(TEST, KEY, measured := entry(1.0, 1.1, 1.2))
    first = commit(repository, "one")
    store.write(TEST, KEY, replace(measured, metrics=edited(measured)))
    (repository / "code").write_text("slower")
    commit(repository, "edited, and slower code")

    assert recording_commit(store.path(TEST, KEY), repository) == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TEST, "suites/test_b.py::test_a"),
        (TEST, "suites/test_a.py::test_other"),
        ("here/test_a.py::test_a", "there/below/test_a.py::test_a"),
    ],
    ids=["file", "function", "folder"],
)
def test_a_renamed_file_keeps_its_baseline_commit(store: Baselines, repository: Path, old: str, new: str) -> None:
    measured = entry(1.0, 1.1, 1.2)
    store.write(old, KEY, measured)
    first = commit(repository, "one")
    store.path(old, KEY).unlink()
    store.write(new, KEY, measured)
    (repository / "code").write_text("slower")
    commit(repository, "moved")
    store.write(new, KEY, replace(measured, tolerance=0.5))
    commit(repository, "a tolerance, by hand")

    assert [commit for commit, _, _ in recordings(store.path(new, KEY), repository)] == [first]


@pytest.mark.parametrize("text", ["{", "<<<<<<< ours\n", ""])
def test_what_nobody_can_read_is_no_recording_and_hides_none(store: Baselines, repository: Path, text: str) -> None:
    path = store.path(TEST, KEY)
    store.write(TEST, KEY, entry(1.0, 1.1, 1.2))
    first = commit(repository, "one")
    whole = path.read_text()
    path.write_text(text)
    commit(repository, "nonsense")
    path.write_text(whole)
    (repository / "code").write_text("slower")
    commit(repository, "mended, and slower code")

    assert [commit for commit, _, _ in recordings(path, repository)] == [first]


def test_an_uncommitted_or_ignored_baseline_is_an_error(store: Baselines, repository: Path) -> None:
    (repository / "a").write_text("")
    commit(repository, "one")
    store.write(TEST, KEY, entry(1.0, 1.1))
    path = store.path(TEST, KEY)
    with pytest.raises(NotRecorded, match="not committed: git add baselines/"):
        recording_commit(path, repository)
    (repository / ".gitignore").write_text("baselines/\n")
    with pytest.raises(NotRecorded, match="not committed"):
        recording_commit(path, repository)


def test_a_baseline_outside_of_the_repository_is_an_error(tmp_path: Path) -> None:
    store = Baselines(tmp_path / "baselines", PLATFORM)
    store.write(TEST, KEY, entry(1.0, 1.1))
    with pytest.raises(NotRecorded, match="not in the repository of the tests"):
        recording_commit(store.path(TEST, KEY), tmp_path)
    git(tmp_path / "baselines", "init", "--quiet")
    with pytest.raises(NotRecorded, match="not in the repository of the tests"):
        recording_commit(store.path(TEST, KEY), tmp_path)


def test_a_shallow_clone_is_an_error_with_the_command_that_deepens_it(store: Baselines, repository: Path) -> None:
    store.write(TEST, KEY, entry(1.0, 1.1))
    commit(repository, "one")
    (repository / "other").write_text("x")
    commit(repository, "two")
    clone = repository / "clone"
    git(repository, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(clone))

    with pytest.raises(NotRecorded, match=r"shallow clone.*git fetch --deepen=100.*fetch-depth: 0"):
        recording_commit(Baselines(clone / "baselines", PLATFORM).path(TEST, KEY), clone)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("properties")


def _write_for_ever(folder: str) -> None:
    store = Baselines(Path(folder), "cpu")
    while True:
        store.write(TEST, "a", entry(1.0, 2.0))
        store.write(TEST, "b", entry(1.0, 2.0))


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
def test_a_case_of_any_name_has_a_file_of_its_own(store: Baselines, key: str, name: str) -> None:
    assert store.write(TEST, key, entry(1.0)).name == name
    assert store.of_test(TEST) == {key: entry(1.0)}


@pytest.mark.parametrize("text", ["[\n  1,\n  2\n]", '"], {"a": [1.0]', "\\u0041\x00\u2028é", " ", ""])
def test_what_is_written_is_read_whatever_its_texts_and_numbers(store: Baselines, text: str) -> None:
    identity = {text: True, "least": -(2**63), "share": 0.1, "text": text}
    usual = {"name": text, "values": [1e16], "over_ranks": [1e-300], "identity": identity}
    metric = baseline_of([1.7976931348623157e308, None, 5e-324, -0.1], "same", text, **usual)
    made = entry(workload=text, test_id=text, software={text: text}, metrics={text: metric}, xfail_perf=text)
    store.write(TEST, text, made)

    assert store.read(TEST, text) == made
    assert [(file.key, file.entry) for file in store.read_all()] == [(text, made)]
    assert store.delete(TEST, text)
    assert store.of_test(TEST) == {}


def test_number_lists_take_one_line_and_keys_are_sorted(store: Baselines) -> None:
    text = store.write(TEST, KEY, entry(0.25, 1e-05, 3.0)).read_text()

    assert '"launches": [0.25, 0.00001, 3.0]' in text
    assert text.index('"better"') < text.index('"launches"') < text.index('"unit"')
    assert text.endswith("}\n")


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
        f"suites/test_x.py::{'x' * 201}",
    ],
)
def test_a_path_cannot_leave_the_store(store: Baselines, test: str) -> None:
    with pytest.raises(StoredFileError, match="no place below the baseline folder"):
        store.write(test, KEY, entry(1.0))


def test_two_tests_with_one_place_do_not_share_a_baseline(store: Baselines) -> None:
    store.write("../b/test_a.py::t", KEY, entry(1.0))
    other = "_above_/b/test_a.py::t"

    for use in (store.read, lambda test, key: store.write(test, key, entry(2.0)), lambda test, _: store.of_test(test)):
        text = r"holds .*\.\./b/test_a\.py::t.*, and _above_/b.* has the same place"
        with pytest.raises(StoredFileError, match=text):
            use(other, KEY)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"launches": [1.0, 2.0]', '"launches": ["a"]', r"\$\.entry\.metrics\[step\]\[0\]\.value"),
        ('"launches": [1.0, 2.0]', '"launches": []', r"a number of each launch - at `\$\.entry\.metrics\[step\]"),
        ('"launches": [1.0, 2.0]', '"launches": [1.0, 2.0], "ranks": [1]', "each of 2 launches, got 1"),
        (
            '"launches": [1.0, 2.0]',
            '"launches": [1.0, 2.0], "spread": {"minimum": [1, 2.5], "p95": [1, 3]}',
            r"metrics\[step\]`: a launch of 2\.0 cannot have minimum 2\.5 and p95 3\.0",
        ),
        ('"better": "lower"', '"at": {"size": 1}, "better": "lower"', "`at`, the point in the metric's key"),
        ('"better": "lower"', '"better": "exact", "tolerance": 0.5', "an exact metric has no tolerance"),
        ('"launches": [1.0, 2.0]', '"launches": [null, null]', r"metrics\[step\]\.launches` has no value"),
        ('"better": "lower"', '"better": "lower", "better": "info"', "the key 'better' stands twice in one object"),
        ('"better": "lower"', '"better": "sideways"', r"sideways.*\$\.entry\.metrics"),
        ('"entry": {', '"entry": {"tolerance": -1,', r">= 0.0 - at `\$.entry.tolerance`"),
        ('"world_size": 2', '"world_size": 0', r"\$\.entry\.conditions\.world_size"),
        ('  "schema"', '<<<<<<< HEAD\n  "schema"', r"marks of a merge conflict.*--ours"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(store: Baselines, old: str, new: str, said: str) -> None:
    path = store.write(TEST, KEY, entry(1.0, 2.0))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))

    with pytest.raises(StoredFileError, match=said):
        read_file(path)


def test_a_recorded_baseline_without_metrics_is_refused_and_bounds_alone_are_read(store: Baselines) -> None:
    path = store.write(TEST, KEY, entry(1.0, metrics={}))
    with pytest.raises(StoredFileError, match="metrics` is empty: a recorded baseline has at least one"):
        read_file(path)
    path.unlink()

    assert read_file(store.write(TEST, KEY, entry(1.0, metrics={}, workload=""))).entry.metrics == {}


def test_a_file_knows_whose_it_is_even_where_its_name_could_be_anothers(store: Baselines) -> None:
    store.write(TEST, "a:b-ws2.gloo.warm", entry(1.0, test_id="a:b-ws2"))

    assert store.of_test(TEST, test_ids=["a"]) == {}
    assert set(store.of_test(TEST, test_ids=["a:b-ws2"])) == {"a:b-ws2.gloo.warm"}


@pytest.mark.parametrize(
    ("key", "ids", "is_one"),
    [
        ("ws2.gloo.warm", ["ws2"], True),
        ("ws2:one.gloo.warm", ["ws2"], True),
        ("a:b-ws2.gloo.warm", ["a:b-ws2"], True),
        ("x.1-ws2.gloo.warm", ["x.1-ws2"], True),
        ("x.1-ws2.gloo.warm", ["x"], False),
        ("ws22.gloo.warm", ["ws2"], False),
        ("x" * 300 + "-ws2.gloo.warm", ["x" * 300 + "-ws2"], True),
    ],
)
def test_a_baseline_of_another_tool_belongs_to_the_test_whose_id_begins_its_name(
    store: Baselines, key: str, ids: list[str], *, is_one: bool
) -> None:
    store.write(TEST, key, entry(1.0))

    assert set(store.of_test(TEST, test_ids=ids)) == ({key} if is_one else set())


def test_the_baselines_of_this_repository_are_read() -> None:
    store = Baselines(Path(__file__).parents[2] / "baselines", "cpu-amd-epyc-f26m2-2c")
    files = list(store.read_all())

    assert files
    assert all(file.key.endswith(f".{file.entry.conditions.launcher}") for file in files)
    assert {file.entry.conditions.engine for file in files if ".elastic-" in file.key} <= {"stock", "fast"}


def test_files_that_cannot_be_read_are_named_each_with_its_reason_and_of_many_the_first(store: Baselines) -> None:
    def named(*texts: str) -> list[str]:
        for number, text in enumerate(texts):
            store.path(TEST, f"{number:02}-{KEY}").write_text(text)
        reading = store.read_all()
        assert next(reading).key == KEY, "what can be read comes first"
        with pytest.raises(StoredFileError) as several:
            next(reading)
        return str(several.value).splitlines()

    store.write(TEST, KEY, entry(1.0))
    lines = named("", "{", "<<<<<<< ours")
    assert lines[0] == "3 files cannot be used:"
    assert "00-ws2.gloo.warm.json: is empty" in lines[1]
    assert "01-ws2.gloo.warm.json: not a baseline file: Input data was truncated. If you edited it" in lines[2]
    assert "merge conflict" in lines[3]

    lines = named(*[""] * 13)
    assert (len(lines), lines[-2], lines[-1][:18]) == (13, "  and 3 more", "If you edited it, ")


class TestBaselines:
    @given(documents)
    def test_any_document_is_refused_or_read(self, folder: Path, document: object) -> None:
        path = folder / "document.json"
        path.write_bytes(msgspec.json.encode(document))
        with pytest.raises(StoredFileError, match=r"document\.json"):
            read_file(path)

    @given(st.text(max_size=80))
    def test_no_name_of_a_test_leads_out_of_the_store(self, folder: Path, name: str) -> None:
        store = Baselines(folder / "names", "cpu")
        for test in (name, f"{name}::test", f"a.py::{name}"):
            try:
                path = store.path(test, name)
                assert store.read(test, name) is None
                assert store.of_test(test) == {}
            except DistbenchError:
                continue
            assert path.resolve().is_relative_to(store.folder.resolve())

    def test_a_link_that_leads_out_of_the_store_is_refused(self, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / "baselines" / "cpu").mkdir(parents=True)
        (tmp_path / "baselines" / "cpu" / "suites").symlink_to(elsewhere)
        store = Baselines(tmp_path / "baselines", "cpu")

        with pytest.raises(StoredFileError, match="outside the baseline folder"):
            store.write(TEST, "a", entry(1.0, 2.0))
        assert list(elsewhere.iterdir()) == []

    def test_two_writers_killed_at_any_moment_leave_whole_files(self, tmp_path: Path) -> None:
        store = Baselines(tmp_path, "cpu")
        dice = random.Random(0)
        for _ in range(15):
            fork = multiprocessing.get_context("fork")
            writers = [fork.Process(target=_write_for_ever, args=(str(tmp_path),)) for _ in range(2)]
            for writer in writers:
                writer.start()
            time.sleep(dice.uniform(0, 0.05))
            assert all(writer.is_alive() for writer in writers), "one does not trip over the other"
            for writer in writers:
                os.kill(writer.pid or 0, signal.SIGKILL)
                writer.join()
            assert set(store.of_test(TEST)) <= {"a", "b"}

    def test_what_a_killed_writer_left_is_removed_later_and_a_living_writers_is_not(self, tmp_path: Path) -> None:
        store = Baselines(tmp_path, "cpu")
        path = store.write(TEST, "a", entry(1.0, 2.0))
        abandoned, living = (path.with_name(f".{name}.json.x.distbench-draft") for name in ("abandoned", "living"))
        for draft in (abandoned, living):
            draft.write_bytes(b"{")
        os.utime(abandoned, (0, 0))
        store.write(TEST, "a", entry(1.0, 2.0))

        assert sorted(path.parent.iterdir()) == sorted([path, living])


def test_a_file_that_is_a_link_is_refused_and_stays(store: Baselines, tmp_path: Path) -> None:
    path = store.write(TEST, KEY, entry(1.0))
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()

    for use in (
        lambda: store.read(TEST, KEY),
        lambda: store.of_test(TEST),
        lambda: list(store.read_all()),
        lambda: store.write(TEST, KEY, entry(1.0)),
    ):
        with pytest.raises(StoredFileError, match=r"is a link to .*elsewhere\.json; wanted a regular file"):
            use()
    assert path.is_symlink()
    assert elsewhere.read_bytes() == before


def test_a_test_without_files_has_no_baselines(store: Baselines) -> None:
    assert store.of_test(TEST) == {}
    assert store.read(TEST, KEY) is None
    assert not store.delete(TEST, KEY)


def test_a_copied_file_is_not_taken_for_another_case(store: Baselines) -> None:
    path = store.write(TEST, KEY, entry(1.0))
    path.with_name("ws4.gloo.warm.json").write_bytes(path.read_bytes())

    with pytest.raises(StoredFileError, match=r"ws4.gloo.warm.json: holds .*\[ws2.gloo.warm\], whose place is"):
        store.read(TEST, "ws4.gloo.warm")


def test_writing_one_case_leaves_the_others_untouched(store: Baselines) -> None:
    untouched = store.write(TEST, "a", entry(1.0))
    before = untouched.stat()
    store.write(TEST, "b", entry(2.0))
    store.write(TEST, "b", entry(3.0))
    after = untouched.stat()

    assert store.of_test(TEST) == {"a": entry(1.0), "b": entry(3.0)}
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)  # of its inode nothing was set


def test_tests_outside_of_the_root_directory_have_their_own_folders(store: Baselines) -> None:
    tests = ["../../b/tests/test_a.py::t", "../b/tests/test_a.py::t", "b/tests/test_a.py::t"]
    places = [store.write(test, KEY, entry(i)).relative_to(store.folder) for i, test in enumerate(tests)]

    found = [place.parent.as_posix().partition("/")[2] for place in places]
    assert found == ["_above_/_above_/b/tests/test_a/t", "_above_/b/tests/test_a/t", "b/tests/test_a/t"]


def test_files_of_other_cases_are_not_read(store: Baselines) -> None:
    store.write(TEST, KEY, entry(1.0))
    store.write(TEST, "ws4.gloo.warm", entry(1.0)).write_text("{")

    assert set(store.of_test(TEST, test_ids=["ws2"])) == {KEY}

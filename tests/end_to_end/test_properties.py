"""Whatever is in a file, on a socket or in an option: a clear error or the right content, never a crash."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import documents, texts

from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError
from pytest_distbench.machine import hardware
from pytest_distbench.plugin.settings import parse_world_sizes
from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.store.baselines import BaselineStore, read_file, render
from pytest_distbench.units import parse_bytes

TEST = "suites/test_a.py::test_b"
finite = st.floats(allow_nan=False, allow_infinity=False)
tolerances = st.none() | st.floats(0, 1e9)
kinds = st.tuples(st.just("exact"), st.none()) | st.tuples(
    st.sampled_from(["lower", "higher", "curve", "same", "steps", "floor"]), tolerances
)
metrics = st.builds(
    lambda kind, **rest: BaselineMetric(better=kind[0], tolerance=kind[1], **rest),
    kinds,
    unit=texts,
    launches=st.lists(st.none() | finite, min_size=1, max_size=4),
    curve=st.lists(finite, max_size=3),
    spread=finite,
    identity=st.dictionaries(texts, st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | texts, max_size=2),
)
entries = st.builds(
    BaselineEntry,
    workload=texts,
    world_size=st.integers(1, 4096),
    backend=texts,
    launcher=texts,
    software=st.dictionaries(texts, texts, max_size=2),
    metrics=st.dictionaries(texts, metrics, max_size=3),
    tolerance=tolerances,
    xfail_perf=texts,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("properties")


class TestBaselines:
    @given(st.dictionaries(texts, entries, max_size=4))
    def test_what_is_written_is_read(self, folder: Path, content: dict[str, BaselineEntry]) -> None:
        store = BaselineStore(folder / "written", "cpu")
        for key in store.entries(TEST):
            assert store.delete(TEST, key)
        for key, entry in content.items():
            store.write(TEST, key, entry)

        assert store.entries(TEST) == content
        assert {key: store.entry(TEST, key) for key in content} == content
        assert {file.key: file.entry for file in store.read_all()} == content

    @given(documents)
    def test_any_document_is_refused_or_read(self, folder: Path, document: object) -> None:
        path = folder / "document.json"
        path.write_bytes(msgspec.json.encode(document))
        with pytest.raises(StoredFileError, match=r"document\.json"):
            read_file(path)

    @given(st.text(max_size=80))
    def test_no_name_of_a_test_leads_out_of_the_store(self, folder: Path, name: str) -> None:
        store = BaselineStore(folder / "names", "cpu")
        for test in (name, f"{name}::test", f"a.py::{name}"):
            try:
                path = store.path(test, name)
                assert store.entry(test, name) is None
                assert store.entries(test) == {}
            except DistbenchError:
                continue
            assert path.resolve().is_relative_to(store.folder.resolve())

    def test_a_link_that_leads_out_of_the_store_is_refused(self, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / "baselines" / "cpu").mkdir(parents=True)
        (tmp_path / "baselines" / "cpu" / "suites").symlink_to(elsewhere)
        store = BaselineStore(tmp_path / "baselines", "cpu")

        with pytest.raises(StoredFileError, match="outside the baseline folder"):
            store.write(TEST, "a", _entry())
        assert list(elsewhere.iterdir()) == []

    def test_a_writer_killed_at_any_moment_leaves_a_whole_file(self, tmp_path: Path) -> None:
        store = BaselineStore(tmp_path, "cpu")
        dice = random.Random(0)
        for _ in range(15):
            writer = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(str(tmp_path),))
            writer.start()
            time.sleep(dice.uniform(0, 0.05))
            os.kill(writer.pid or 0, signal.SIGKILL)
            writer.join()
            assert set(store.entries(TEST)) <= {"a", "b"}

    def test_what_a_killed_writer_left_is_removed_by_a_later_one_and_a_living_writers_is_not(
        self, tmp_path: Path
    ) -> None:
        store = BaselineStore(tmp_path, "cpu")
        path = store.write(TEST, "a", _entry())
        abandoned, living = (path.with_name(f".{path.name}.{name}") for name in ("abandoned", "living"))
        for draft in (abandoned, living):
            draft.write_bytes(b"{")
        os.utime(abandoned, (0, 0))
        store.write(TEST, "a", _entry())

        assert sorted(path.parent.iterdir()) == sorted([path, living])


class TestOptions:
    @given(st.one_of(texts, st.from_regex(r"[0-9,. kKMGibB]{0,400}", fullmatch=True)))
    def test_a_size_is_a_number_or_a_clear_error(self, text: str) -> None:
        size = accepted(parse_bytes, text, "is not a size")

        assert size is None or size >= 0

    @given(st.one_of(texts, st.from_regex(r"[0-9, ]{1,30}", fullmatch=True), st.just("9" * 5000)))
    def test_world_sizes_are_numbers_or_a_clear_error(self, text: str) -> None:
        sizes = accepted(parse_world_sizes, text, "--world-size")

        assert sizes is None or (sizes == tuple(sorted(set(sizes))) and sizes[0] >= 1)

    @given(st.one_of(st.none(), texts, st.from_regex(r"[0-9,GPU-]{0,30}", fullmatch=True)))
    def test_visible_devices_are_indices(self, setting: str | None) -> None:
        uuids = ["GPU-00", "GPU-01", "GPU-10"]

        assert set(hardware.visible_devices(setting, uuids)) <= {0, 1, 2}

    @given(texts)
    def test_a_platform_is_one_folder_or_a_clear_error(self, name: str) -> None:
        checked = accepted(hardware.check_platform_name, name, "--distbench-platform")

        assert checked is None or Path("a", checked).parent == Path("a")


@given(st.dictionaries(st.sampled_from(["NCCL_DEBUG", "NCCL_TOKEN", "OMP_SECRET", "PATH", "TORCH_PROXY"]), texts))
def test_recorded_variables_hold_no_secret(variables: dict[str, str]) -> None:
    values = {name: f"https://me:pw@host/{value}" for name, value in variables.items()}
    found = hardware.recordable(values)

    assert set(found) <= {"NCCL_DEBUG", "TORCH_PROXY"}
    assert not any("me:pw" in value for value in found.values())


def test_a_rendered_file_is_the_same_each_time() -> None:
    from pytest_distbench.store.baselines import BaselineFile

    content = BaselineFile(schema=1, test=TEST, platform="cpu", key="a", entry=_entry())

    assert render(content) == render(content)


def accepted(parse: Callable[[str], Any], text: str, complaint: str) -> Any:
    """What the parser makes of a text; None if it refuses it in the words it should."""
    try:
        return parse(text)
    except ConfigurationError as error:
        if complaint not in str(error):
            raise
        return None


def _entry() -> BaselineEntry:
    metric = BaselineMetric(better="lower", unit="s", launches=[1.0, 2.0])
    return BaselineEntry(
        workload="x", world_size=2, backend="gloo", launcher="warm", software={}, metrics={"m": metric}
    )


def _write_for_ever(folder: str) -> None:
    store = BaselineStore(Path(folder), "cpu")
    while True:
        store.write(TEST, "a", _entry())
        store.write(TEST, "b", _entry())

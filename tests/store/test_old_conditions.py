"""Conditions of files that were written before they were noted: as far as names tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cases import ON_TWO

from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.case import Conditions
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import SCHEMA, BaselineStore
from pytest_distbench.store.old_conditions import conditions_of_old
from pytest_distbench.store.run_record import RUN_RECORDS

OLD = """{
  "entry": {"backend": "%s", "launcher": "%s", "metrics": {}, "software": {}, "workload": "", "world_size": 2},
  "key": "%s", "platform": "p", "schema": 1, "test": "a.py::t"
}
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("backend", "launcher", "found"),
    [
        ("gloo", "warm", ON_TWO),
        ("gloo", "command", replace(ON_TWO, launcher="command", kind="command")),
        ("gloo", "elastic-fast", replace(ON_TWO, launcher="elastic-fast", kind="job", engine="fast")),
        ("fake", "warm", replace(ON_TWO, backend="fake", fake_rank=3)),
    ],
)
def test_kind_and_engine_are_those_of_the_launcher(backend: str, launcher: str, found: Conditions) -> None:
    known = {"world_size": 2, "backend": backend, "launcher": launcher}

    assert Conditions(**conditions_of_old(known, fake_rank=3)) == found


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
def test_an_old_file_is_read_as_it_lies_and_belongs_to_the_test_whose_id_its_name_begins_with(
    tmp_path: Path, key: str, ids: list[str], is_one: bool
) -> None:
    path = tmp_path / "p" / "a" / "t" / f"{key.replace(':', '%3A')}.json"
    path.parent.mkdir(parents=True)
    path.write_text(OLD % ("gloo", "warm", key))
    before = path.read_bytes()
    store = BaselineStore(tmp_path, "p")

    entry = store.entry("a.py::t", key)
    assert isinstance(entry, BaselineEntry)
    assert (entry.conditions, entry.test_id) == (ON_TWO, None)
    assert set(store.entries("a.py::t", test_ids=ids)) == ({key} if is_one else set())
    assert path.read_bytes() == before


def test_a_new_file_knows_whose_it_is_even_where_its_name_could_be_anothers(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path, "p")
    made = BaselineEntry(workload="", conditions=ON_TWO, software={}, metrics={}, test_id="a:b-ws2")
    store.write("a.py::t", "a:b-ws2.gloo.warm", made)

    assert store.entries("a.py::t", test_ids=["a"]) == {}
    assert set(store.entries("a.py::t", test_ids=["a:b-ws2"])) == {"a:b-ws2.gloo.warm"}


def test_the_rank_that_an_old_entry_stands_for_is_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "p" / "a" / "t" / "ws2%3A@rank1.fake.warm.json"
    path.parent.mkdir(parents=True)
    path.write_text(OLD % ("fake", "warm", "ws2:@rank1.fake.warm"))
    entry = BaselineStore(tmp_path, "p").entry("a.py::t", "ws2:@rank1.fake.warm")

    assert entry is not None
    assert entry.conditions.fake_rank == 1


def test_the_baselines_of_this_repository_are_read() -> None:
    store = BaselineStore(ROOT / "baselines", "cpu-amd-epyc-f26m2-2c")
    files = list(store.read_all())

    assert files
    assert all(file.schema == SCHEMA for file in files)
    assert all(file.key.endswith(f".{file.entry.conditions.launcher}") for file in files)
    assert {file.entry.conditions.engine for file in files if file.key.endswith(".elastic-stock")} <= {"stock"}


@pytest.mark.parametrize(
    ("nodeid", "case_id", "found"),
    [
        ("a.py::t[x-ws2]", "x-ws2", ("x-ws2", "x", "", False, None)),
        ("a.py::t[x-ws2]", "x-ws2:one", ("x-ws2", "x", "one", False, None)),
        ("a.py::t[ws4]", "ws4:one@ws2", ("ws4", "", "one", True, None)),
        ("a.py::t[ws4]", "ws4:@ws2", ("ws4", "", "", True, None)),
        ("a.py::t[a:b-ws2]", "a:b-ws2:one", ("a:b-ws2", "a:b", "one", False, None)),
        ("a.py::t[a:b-ws2-fake]", "a:b-ws2:@rank1", ("a:b-ws2", "a:b", "", False, 1)),
        ("a.py::t", "ws2:one", ("ws2", "", "one", False, None)),
    ],
)
def test_the_parts_of_a_case_of_an_old_run_record_are_those_of_its_node_id(
    nodeid: str, case_id: str, found: tuple[Any, ...]
) -> None:
    backend = "fake" if found[-1] is not None else "gloo"
    key = {"case_id": case_id, "backend": backend, "launcher": "warm"}
    case = {"test": "a.py::t", "key": key, "world_size": 2, "device": "cpu", "params": {}}
    migrated = RUN_RECORDS.migrations[2]({"results": [{"nodeid": nodeid, "case": case}]})["results"][0]["case"]

    conditions = migrated.pop("conditions")
    parts = tuple(migrated[name] for name in ("id", "family", "run", "names_size"))
    assert (*parts, conditions.get("fake_rank")) == found
    assert (conditions["world_size"], conditions["backend"]) == (2, backend)

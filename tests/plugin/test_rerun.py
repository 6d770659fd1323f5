"""What a case is called, and the command that runs its test again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_distbench.plugin.names import RANKS, full_name, id_of_variables, record_command, rerun_command
from pytest_distbench.plugin.names import test_and_id as take_apart


def make_item(nodeid: str, path: str = "/p/a.py", **more: Any) -> Any:
    config = SimpleNamespace(rootpath=Path("/p"))
    return SimpleNamespace(nodeid=nodeid, path=Path(path), config=config, **{"stash": {}, **more})


@pytest.mark.parametrize(
    ("nodeid", "path", "name"),
    [
        ("tests/a.py::T::t[x]", "/p/tests/a.py", "tests/a.py::T::t[x]"),
        ("tests/a.py::T::t[x]", "/q/tests/a.py", "../q/tests/a.py::T::t[x]"),
        ("::t", "/q/tests/a.py", "../q/tests/a.py::t"),
        ("a.py::t", "/anywhere/lib/site-packages/mine/a.py", "../site-packages/mine/a.py::t"),
    ],
)
def test_a_test_outside_the_root_directory_is_known_by_its_path(nodeid: str, path: str, name: str) -> None:
    assert full_name(make_item(nodeid, path)) == name


@pytest.mark.parametrize(
    ("nodeid", "callspec", "found"),
    [
        ("a.py::t", None, ("a.py::t", "")),
        ("a.py::t[x-ws2]", {"id": "x-ws2", "params": {}}, ("a.py::t", "x-ws2")),
        ("a.py::t[x-ws2-mpi]", {"id": "x-ws2-mpi", "params": {"distbench_backend": "mpi"}}, ("a.py::t", "x-ws2")),
        ("a.py::t[mpi]", {"id": "mpi", "params": {"distbench_backend": "mpi"}}, ("a.py::t", "")),
    ],
)
def test_a_node_id_is_taken_apart(nodeid: str, callspec: dict[str, Any] | None, found: tuple[str, str]) -> None:
    item = make_item(nodeid)
    if callspec is not None:
        item.callspec = SimpleNamespace(**callspec)

    assert take_apart(item) == found


@pytest.mark.parametrize(("nodeid", "case_id", "found"), [("a.py::t", None, "ws4"), ("a.py::t[x]", "x", "x-ws4")])
def test_the_id_of_what_is_not_parametrized_by_its_ranks_has_them(nodeid: str, case_id: str | None, found: str) -> None:
    item = make_item(nodeid, stash={RANKS: 4}, callspec=SimpleNamespace(id=case_id, params={}))

    assert take_apart(item) == ("a.py::t", found)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, "NCCL_ALGO=Ring,NCCL_PROTO=LL"),
        ({}, None),
        ("NCCL_ALGO=Ring", None),
        ({"LONG": "x" * 80}, None),
        ({"HF_TOKEN": "hf_abcdefgh", "NCCL_ALGO": "Ring"}, None),
    ],
)
def test_variables_are_a_part_of_an_id_unless_they_are_long_or_secret(value: object, found: str | None) -> None:
    assert id_of_variables(value) == found


def config(*arguments: str) -> Any:
    invocation = SimpleNamespace(args=arguments, dir=Path("/p"))
    return SimpleNamespace(rootpath=Path("/p"), invocation_params=invocation, args=["suites"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--distbench-update", "failed"], []),
        (["--distbench-update"], []),
        (["--distbench-update=all"], []),
        (["--distbench-update", "--gpu"], ["--gpu"]),
        (["--distbench-prune", "--distbench-json", "run.json"], []),
        (["--distbench-attach=1", "--distbench-strict"], ["--distbench-strict"]),
        (["--world-size", "4", "-k", "x", "--mine", "a"], ["--world-size", "4", "--mine", "a"]),
        (["-p", "no:sugar", "-p", "mine"], ["-p", "mine"]),
        (["--reruns", "2", "--html=r.html", "--json-report", "--alluredir", "a", "--cov", "--mine=1"], ["--mine=1"]),
        (["--mine=1", "--", "suites", "-odd.py"], ["--mine=1"]),
    ],
)
def test_a_rerun_keeps_what_decides_how_a_test_runs(given: list[str], kept: list[str]) -> None:
    item: Any = SimpleNamespace(path=Path("/p/suites/test_a.py"), nodeid="suites/test_a.py::test_b[ws2]")
    command = rerun_command(config("suites", *given), item)

    assert command == " ".join(["pytest", "'suites/test_a.py::test_b[ws2]'", *kept])


def test_the_command_that_records_names_one_update_before_two_dashes() -> None:
    item: Any = SimpleNamespace(path=Path("/q/tests/test_a.py"), nodeid="tests/test_a.py::test_b")
    assert rerun_command(config(), item) == "pytest ../q/tests/test_a.py::test_b"

    command = record_command(config("suites", "--distbench-update", "failed", "--distbench-launches", "2", "--gpu"))
    assert command == "pytest suites --gpu --distbench-update=new"

    assert record_command(config("--gpu", "--", "-odd.py")) == "pytest --gpu --distbench-update=new -- -odd.py"

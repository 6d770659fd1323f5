"""Which world sizes and backends a test runs with, what it is called then, and the command that runs it again."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import TEST, Project, run, stored

from pytest_distbench.plugin.names import RANKS, full_name, id_of_variables, record_command, rerun_command
from pytest_distbench.plugin.names import test_and_id as take_apart
from pytest_distbench.store.files import read_run_record


def test_world_sizes_become_ids_and_larger_ones_are_not_run(project: Project) -> None:
    made = project(
        """
        import pytest

        def body(rank):
            pass

        @pytest.mark.world_size(2, 4, 8)
        @pytest.mark.parametrize("dtype", ["float32"])
        def test_step(distbench, dtype, world_size):
            assert world_size == distbench.world_size
            distbench.run(body, params={"stand_in": {"step": 1.0}})
        """
    )
    result = run(made, "--world-size", "4", "-v", "-rs")

    new = ["*test_step?float32-ws2? NEW*", "*test_step?float32-ws4? NEW*"]
    skipped = ["*test_step?float32-ws8? SKIPPED*", "SKIPPED*not run: needs 8 ranks, 4 given"]
    result.stdout.fnmatch_lines([*new, *skipped])


def test_a_list_of_sizes_runs_exactly_those(project: Project) -> None:
    result = run(project(TEST), "--world-size", "2,3", "-v")

    result.stdout.fnmatch_lines(["*test_step?ws2? NEW*", "*test_step?ws3? NEW*"])


def test_several_backends_run_every_test_and_share_the_names_of_baselines(project: Project) -> None:
    made = project(TEST)
    both = run(made, "--distbench-backend=gloo,mpi", "--distbench-update", "-v")
    one = run(made, "--distbench-backend=mpi", "-v")

    both.stdout.fnmatch_lines(["*test_step?ws2-gloo? UPDATED*", "*test_step?ws2-mpi? UPDATED*"])
    assert [path.name for path in stored(made)] == ["ws2.gloo.stand-in.json", "ws2.mpi.stand-in.json"]
    one.stdout.fnmatch_lines(["*test_step?ws2? PASSED*"])


def test_a_slow_test_is_deselected_by_default_and_the_header_has_the_duration(project: Project) -> None:
    made = project(
        f"""import pytest
{textwrap.dedent(TEST)}
@pytest.mark.full
def test_long(distbench):
    distbench.run(body, params={{"stand_in": {{"step": [0.02]}}}})

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.full)])
def test_sizes(distbench, size):
    distbench.run(body, params={{"stand_in": {{"step": [0.02]}}}})
"""
    )
    short, long = run(made, "-rs"), run(made, "--distbench-full", "--distbench-update")
    after = run(made)

    text = "distbench: 2 tests; how long they take is known once they have baselines; 2 slow tests deselected (--*"
    short.stdout.fnmatch_lines(
        ["collected 4 items / 2 deselected / 2 selected", text, "*= 2 passed, 2 deselected in *"]
    )
    long.assert_outcomes(passed=4)
    long.stdout.no_fnmatch_line("*slow test*")
    text = "distbench: 2 tests, about * s*; 2 slow tests deselected (--distbench-full runs them in about * s)"
    after.stdout.fnmatch_lines([text])
    spread = made.runpytest_subprocess("-p", "no:cacheprovider", "-n2")
    spread.stdout.fnmatch_lines(["distbench: 2 slow tests deselected (--distbench-full runs them)"])
    after.stdout.no_fnmatch_line("*not used*")
    kept = stored(made)
    for workers in ([], ["-n2"]):
        gone = kept[0].parent.with_name("test_gone") / kept[0].name
        gone.parent.mkdir(exist_ok=True)
        gone.write_text(kept[0].read_text().replace("test_long", "test_gone"))
        pruned = made.runpytest_subprocess("-p", "no:cacheprovider", "--distbench-prune", *workers)
        pruned.stdout.fnmatch_lines(["1 baseline was not used, and deleted:", "*test_gone*"])
        assert stored(made) == kept, "of slow tests as well"


def test_a_run_of_slow_tests_alone_says_how_to_have_them(project: Project) -> None:
    made = project(TEST.replace("    def test", "    import pytest\n    @pytest.mark.full\n    def test"))
    result = run(made)

    result.stdout.fnmatch_lines(["distbench: 1 slow test deselected (--distbench-full runs them)"])
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_run_that_only_collects_writes_nothing_and_names_no_record(project: Project) -> None:
    made = project(TEST)
    result = run(made, "--collect-only", "--distbench-out=out")

    result.stdout.no_fnmatch_line("*run record*")
    assert (result.ret, (made.path / "out").exists()) == (0, False)


def test_a_line_is_coloured_by_what_it_says(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(TEST)
    run(made, "--distbench-update", "--distbench-launches=5")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "2")
    result = run(made, "--color=yes")

    assert [line for line in result.outlines if line.startswith("\x1b[31m!  test_step[ws2]  step")]
    result.stdout.fnmatch_lines(["* metrics (1 regressed, * unchanged), 3 launches in *"])


def test_two_files_with_a_test_of_one_name_are_told_apart_wherever_it_is_named(project: Project) -> None:
    made = project(TEST)
    made.path.joinpath("test_other.py").write_text(textwrap.dedent(TEST))
    updated = run(made, "--distbench-update", "--distbench-json=run.json")
    slower = run(made, "-v", "--distbench-confirm=off")
    told = "\n".join([*updated.outlines, *slower.outlines])
    record = read_run_record(made.path / "run.json")

    updated.stdout.fnmatch_lines(["  test_it.py::test_step?ws2? *", "  test_other.py::test_step?ws2? *"])
    slower.stdout.fnmatch_lines(["test_it.py::test_step?ws2?  *", "test_other.py::test_step?ws2?  *"])
    assert [r.case.title for r in record.results] == ["test_it.py::test_step[ws2]", "test_other.py::test_step[ws2]"]
    assert " test_step[ws2]" not in told


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
    item: Any = SimpleNamespace(
        path=Path("/p/suites/test_a.py"), nodeid="suites/test_a.py::test_b[ws2]", stash=pytest.Stash()
    )
    command = rerun_command(config("suites", *given), item)

    assert command == " ".join(["pytest", "'suites/test_a.py::test_b[ws2]'", *kept])


def test_the_command_that_records_names_one_update_before_two_dashes() -> None:
    item: Any = SimpleNamespace(path=Path("/q/tests/test_a.py"), nodeid="tests/test_a.py::test_b", stash=pytest.Stash())
    assert rerun_command(config(), item) == "pytest ../q/tests/test_a.py::test_b"

    command = record_command(config("suites", "--distbench-update", "failed", "--distbench-launches", "2", "--gpu"))
    assert command == "pytest suites --gpu --distbench-update=new"

    assert record_command(config("--gpu", "--", "-odd.py")) == "pytest --gpu --distbench-update=new -- -odd.py"
    assert (
        record_command(config("suites", "--distbench-model", "mine.py::make")) == "pytest suites --distbench-update=new"
    )

"""What a run does with its baselines: unused ones, pruning, changed software, and what was set by hand in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.projects import Project, run, stored

from pytest_distbench.commands.cli import main
from pytest_distbench.store.baselines import read_file
from pytest_distbench.store.files import read_run_record

TEST = """
    import os
    import pytest

    def body(rank):
        pass

    PARAMS = {"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]}}

    @pytest.mark.parametrize("dtype", ["f16", "f32"])
    def test_step(distbench, dtype):
        distbench.run(body, params=PARAMS)

    def test_other(distbench):
        distbench.run(body, params=PARAMS)

    def test_plain():
        assert not os.environ.get("BROKEN")
"""
ALL = {"test_step[f16-ws2]", "test_step[f32-ws2]", "test_other[ws2]"}


def names(project: pytest.Pytester) -> set[str]:
    """Names of the stored baselines: ``test_step[f16-ws2]``."""
    files = [read_file(path) for path in (project.path / "baselines").rglob("*.json")]
    return {f"{f.test.rpartition('::')[2]}[{f.key.removesuffix('.gloo.stand-in')}]" for f in files}


def edit(project: pytest.Pytester, old: str, new: str, pattern: str = "test_it.py") -> None:
    for path in project.path.rglob(pattern):
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture
def recorded(project: Project) -> pytest.Pytester:
    made = project(TEST)
    assert run(made, "--distbench-update", "--distbench-launches=5").ret == 0
    assert names(made) == ALL
    return made


@pytest.fixture
def renamed(recorded: pytest.Pytester) -> pytest.Pytester:
    """A case and a test are gone from the store's, and another test has come."""
    edit(recorded, '"f16", ', "")
    edit(
        recorded,
        "test_other(distbench):\n    distbench.run(body, params=PARAMS",
        "test_new(distbench):\n    distbench.run(body, params=PARAMS | {'new': 1}",
    )
    return recorded


def test_a_whole_green_run_names_what_it_did_not_use(renamed: pytest.Pytester) -> None:
    result = run(renamed, "--distbench-json=run.json")

    result.stdout.fnmatch_lines(
        [
            "x 1 baseline without a test, *",
            "  test_it.py::test_other",
            "1 baseline was not used; --distbench-prune deletes it:",
            "  test_it.py::test_step?f16-ws2.gloo.stand-in?",
        ]
    )
    unused = json.loads((renamed.path / "run.json").read_text())["unused"]
    assert [name["key"] for name in unused] == ["ws2.gloo.stand-in", "f16-ws2.gloo.stand-in"]
    assert names(renamed) == ALL


def test_prune_deletes_what_a_whole_green_run_did_not_use(renamed: pytest.Pytester) -> None:
    result = run(renamed, "--distbench-prune")

    result.stdout.fnmatch_lines(["2 baselines were not used, and deleted:", "  test_it.py::test_other?ws2*"])
    assert names(renamed) == {"test_step[f32-ws2]"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-k", "step"], "-k was given"),
        (["--deselect", "test_it.py::test_plain"], "--deselect was given"),
        (["test_it.py::test_step"], "single tests were named"),
        (["-m", "not slow"], "-m was given"),
    ],
)
def test_a_partial_run_prunes_nothing_and_says_why(renamed: pytest.Pytester, arguments: list[str], reason: str) -> None:
    edit(renamed, "[pytest]", "[pytest]\nmarkers = slow", "tox.ini")
    result = run(renamed, "--distbench-prune", *arguments)

    result.stdout.fnmatch_lines([f"nothing was pruned: {reason}"])
    assert names(renamed) == ALL


def test_skipped_tests_skipped_files_other_folders_sizes_and_backends_are_not_unused(
    recorded: pytest.Pytester,
) -> None:
    run(recorded, "--world-size=3", "--distbench-update")
    (recorded.path / "suites").mkdir()
    (recorded.path / "test_it.py").rename(recorded.path / "suites" / "test_skipped.py")
    recorded.makepyfile(test_it=(recorded.path / "suites" / "test_skipped.py").read_text())
    run(recorded, "--distbench-update=new", "suites")
    before = names(recorded)
    edit(recorded, "import os", "import os, pytest\npytest.skip('no', allow_module_level=True)", "test_skipped.py")
    edit(recorded, "def test_other(distbench):", "def test_other(distbench):\n    pytest.skip('not today')")
    run(recorded, "--distbench-prune")
    run(recorded, "--distbench-prune", "test_it.py")

    assert names(recorded) == before


def test_workers_of_xdist_find_the_same_unused_baselines(renamed: pytest.Pytester) -> None:
    result = renamed.runpytest_subprocess("-n2", "--distbench-prune")

    result.stdout.fnmatch_lines(["2 baselines were not used, and deleted:"])
    assert names(renamed) == {"test_step[f32-ws2]"}


def test_the_shell_prunes_what_a_run_record_names(
    renamed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(renamed, "--distbench-json=run.json")
    run(renamed, "--distbench-json=partial.json", "-k", "step")
    capsys.readouterr()

    assert main(["baseline", "prune", "partial.json", "--delete"]) == 2
    assert "incomplete or not green" in capsys.readouterr().err
    assert main(["baseline", "prune", "run.json"]) == 0
    assert "2 baselines to delete: --delete does it" in capsys.readouterr().out
    assert names(renamed) == ALL
    assert main(["baseline", "prune", "--gone", "--delete"]) == 0
    assert names(renamed) == ALL - {"test_other[ws2]"}
    assert main(["baseline", "prune", "run.json", "--delete"]) == 0
    assert "deleted  cpu-" in capsys.readouterr().out
    assert names(renamed) == {"test_step[f32-ws2]"}


def test_an_expectation_that_is_no_longer_needed_is_named(recorded: pytest.Pytester) -> None:
    edit(recorded, '"workload"', '"xfail_perf": "bug 12",\n    "workload"', "*.gloo.stand-in.json")

    run(recorded).stdout.fnmatch_lines(["xfail_perf of test_other[[]ws2] is no longer needed: * (bug 12)"])


@pytest.mark.parametrize("launches", ["=2", "=:2", "=1:2"])
def test_an_update_makes_no_more_launches_than_allowed_and_is_warned_of_few(project: Project, launches: str) -> None:
    made = project(TEST)
    result = run(made, "--distbench-update", f"--distbench-launches{launches}")

    assert {len(read_file(path).entry.metrics["step"]) for path in stored(made)} == {2}
    result.stdout.fnmatch_lines(["[?] 3 cases stored with fewer than 5 launches: their noise is not known*"])
    assert result.ret == 0


@pytest.mark.parametrize(
    ("by_hand", "outcome"),
    [
        ('"tolerance": 0.6,\n    "workload"', {"passed": 4}),
        ('"xfail_perf": "bug 12",\n    "workload"', {"xfailed": 3, "passed": 1}),
        ('"workload"', {"failed": 3, "passed": 1}),
    ],
)
def test_what_a_file_says_by_hand_counts_and_survives_an_update(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, by_hand: str, outcome: dict[str, int]
) -> None:
    edit(recorded, '"workload"', by_hand, "*.gloo.stand-in.json")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")

    run(recorded).assert_outcomes(**outcome)
    run(recorded, "--distbench-update=all", "--distbench-launches=2")
    files = [path.read_text() for path in (recorded.path / "baselines").rglob("*.json")]
    assert all(by_hand.split(",")[0] in text and "0.03" in text for text in files)


@pytest.mark.parametrize(("mode", "fails"), [("new", True), ("failed", False), ("changed", False)])
def test_a_derived_metric_is_judged_by_an_update_that_leaves_it_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch, mode: str, fails: bool
) -> None:
    made = project(
        """
        import os

        def test_efficiency(distbench):
            distbench.judge("efficiency", [float(os.environ["EFF"]) + x / 100 for x in range(5)], better="higher")
        """
    )
    monkeypatch.setenv("EFF", "0.9")
    run(made, "--distbench-update")
    monkeypatch.setenv("EFF", "0.5")

    assert (run(made, f"--distbench-update={mode}").ret == 1) is fails
    assert (run(made).ret == 1) is fails


def test_the_broken_files_of_several_tests_are_named_at_once_before_the_first_test(recorded: pytest.Pytester) -> None:
    broken = [next(Path(recorded.path / "baselines").rglob(f"{name}/*.json")) for name in ("test_other", "test_step")]
    for path, text in zip(broken, ("", "{"), strict=True):
        path.write_text(text)
    result = run(recorded)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for path, why in zip(broken, ("is empty", "not a baseline file"), strict=True):
        result.stderr.fnmatch_lines([f"*{path.name}: {why}*".replace("[", "[[]")])


def test_a_metric_without_a_value_is_not_stored_and_its_baseline_stays(recorded: pytest.Pytester) -> None:
    before = {path: path.read_bytes() for path in recorded.path.rglob("*.gloo.stand-in.json")}
    edit(recorded, "0.0198]", "None]")
    result = run(recorded, "--distbench-update=all", "--distbench-launches=5")

    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines([
        "not stored: step has no value in 1 of 5 launches: a baseline needs one in each",
        "baselines in *: 0 changed, 0 new, 0 kept, 3 not stored",
    ])  # fmt: skip
    assert {path: path.read_bytes() for path in recorded.path.rglob("*.gloo.stand-in.json")} == before


def test_two_packages_of_a_repository_share_no_baseline(project: Project) -> None:
    """The node id of a file outside the root directory has the path from whichever argument leads there."""
    made = project(TEST)
    for package, seconds in (("a", "0.02"), ("b", "0.08")):
        (made.path / package / "tests").mkdir(parents=True)
        (made.path / package / "tests" / "test_same.py").write_text(
            "def body(rank): pass\n"
            f"PARAMS = {{'stand_in': {{'step': [{seconds}] * 5}}}}\n"
            "def test_same(distbench): distbench.run(body, params=PARAMS)\n"
        )
    (made.path / "tox.ini").rename(made.path / "a" / "tox.ini")
    both = ["-c", "a/tox.ini", "--rootdir=a", "--confcutdir=.", "--import-mode=importlib", "a", "b"]
    recorded = run(made, *both, "--distbench-update=new", "--distbench-launches=5", "--distbench-json=run.json")
    again = run(made, *both)

    assert recorded.ret == 0
    tests = {read_file(path).test for path in (made.path / "a" / "baselines").rglob("*.json")}
    assert tests == {"../b/tests/test_same.py::test_same", "tests/test_same.py::test_same"}
    assert len(read_run_record(made.path / "run.json").results) == 2
    again.stdout.fnmatch_lines(["* metric* (* unchanged), 2 launch* in *"])


def test_update_new_records_again_the_metric_that_was_deleted_by_hand_and_says_so(project: Project) -> None:
    made = project(
        """
        def body(rank):
            pass

        def test_step(distbench):
            distbench.run(body, params={"stand_in": {"step": [0.02, 0.0201], "rate": [50.0, 50.1]}})
        """
    )
    assert run(made, "--distbench-update", "--distbench-launches=2").ret == 0
    [path] = (made.path / "baselines").rglob("*.json")
    whole = json.loads(path.read_text())
    cut = json.loads(path.read_text())
    del cut["entry"]["metrics"]["rate"]
    cut["entry"]["metrics"]["step"]["launches"] = [0.0203, 0.0204]
    path.write_text(json.dumps(cut))
    found = run(made, "--distbench-update=new", "--distbench-launches=2")
    now = json.loads(path.read_text())["entry"]["metrics"]

    assert found.ret == 0
    found.stdout.fnmatch_lines(["*0 changed, 0 new, 0 kept, 1 completed", "*rate * -> * s *new"])
    assert now == {**whole["entry"]["metrics"], "step": cut["entry"]["metrics"]["step"]}


def test_what_an_update_writes_again_without_a_change_is_not_called_changed(project: Project) -> None:
    made = project(TEST)
    first = run(made, "--distbench-update=all", "--distbench-launches=5", "-k", "other")
    again = run(made, "--distbench-update=all", "--distbench-launches=5", "-k", "other")

    first.stdout.fnmatch_lines(["*0 changed, 1 new, 0 kept"])
    again.stdout.fnmatch_lines(["*0 changed, 0 new, 0 kept, 1 rewritten"])
    again.stdout.no_fnmatch_line("* -> *")


def test_a_file_that_is_gone_is_pruned(recorded: pytest.Pytester) -> None:
    (recorded.path / "test_it.py").rename(recorded.path / "test_moved.py")
    edit(recorded, "f16", "half", "test_moved.py")
    edit(recorded, "params=PARAMS", "params=PARAMS | {'new': 1}", "test_moved.py")
    run(recorded, "--distbench-update")
    assert len(list((recorded.path / "baselines").rglob("*.json"))) == 6
    run(recorded, "--distbench-prune")

    assert {path.parts[-3] for path in (recorded.path / "baselines").rglob("*.json")} == {"test_moved"}


def test_tests_that_a_conftest_takes_out_prune_nothing(renamed: pytest.Pytester) -> None:
    with (renamed.path / "conftest.py").open("a") as file:
        file.write("\ndef pytest_collection_modifyitems(items):\n    del items[0]\n")
    result = run(renamed, "--distbench-prune")

    result.stdout.fnmatch_lines(["nothing was pruned: 1 tests were deselected"])
    assert names(renamed) == ALL


def test_update_failed_leaves_a_case_without_baseline_alone(project: Project) -> None:
    made = project(TEST)
    result = run(made, "--distbench-update=failed")

    result.stdout.fnmatch_lines(["*3 cases measured, nothing to compare with*"])
    assert names(made) == set()


def test_a_test_that_was_collected_and_not_reported_keeps_its_baseline(renamed: pytest.Pytester) -> None:
    """A conftest may run tests its own way, or not at all."""
    add = """
def pytest_runtest_protocol(item):
    return True if "plain" in item.name else None
"""
    conftest = renamed.path / "conftest.py"
    conftest.write_text(conftest.read_text() + add)
    result = run(renamed, "--distbench-prune")

    result.stdout.fnmatch_lines(["nothing was pruned: 1 collected tests were not reported"])
    assert names(renamed) == ALL

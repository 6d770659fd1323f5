"""What a user sees of a run with simulated ranks: outcomes, exit codes, printed lines, files."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.projects import EXIT_USAGE, TEST, Project, run, stored

from pytest_distbench import git
from pytest_distbench.commands.cli import main
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.machine import hardware
from pytest_distbench.plugin.progress import TERMINATED
from pytest_distbench.testing import STAND_IN


def test_without_a_baseline_a_test_is_new_or_fails_or_is_skipped_as_the_policy_says(project: Project) -> None:
    made = project(TEST)
    new, failed = run(made), run(made, "--distbench-no-baseline=fail")

    new.stdout.fnmatch_lines(
        ["*test_it.py N*", "*1 case measured, nothing to compare*", "*record baselines*pytest *--distbench-update=new"]
    )
    told = ["*no baseline for cpu-* (have: none)*", "record it:  pytest *test_step?ws2?* --distbench-update=new"]
    failed.stdout.fnmatch_lines(told)
    assert (new.ret, failed.ret) == (0, 1)
    run(made, "--distbench-no-baseline=skip").assert_outcomes(skipped=1)


def test_an_update_writes_and_prints_old_and_new_values(project: Project) -> None:
    made = project(TEST)
    result = run(made, "--distbench-update")

    result.stdout.fnmatch_lines(
        [
            "*test_it.py U*",
            "baselines in baselines?cpu-*: 0 changed, 1 new, 0 kept*",
            "test_step?ws2? step: noise * %: this baseline alone detects slowdowns above 1* %, with A/B about 10 %",
            "review with: distbench baseline diff *",
        ]
    )
    assert len(stored(made)) == 1
    content = json.loads(stored(made)[0].read_text())
    assert len(content["entry"]["metrics"]["step"]["launches"]) == 5, "its launches agree"


def test_unchanged_code_passes_also_under_strict_and_every_metric_is_shown_on_demand(recorded: pytest.Pytester) -> None:
    result = run(recorded, "--distbench-strict", "--distbench-fail-on-improvement")

    result.stdout.fnmatch_lines(["*test_it.py .*", "* metric* (* unchanged), 1 launch* in *"])
    assert result.ret == 0
    assert "distbench 0." not in run(recorded, "-q").stdout.str()
    head, case = "distbench 0.*: world size 2, gloo, *", "test_step?ws2?  2 ranks started by stand-in, gloo, 1 launch"
    run(recorded, "-v").stdout.fnmatch_lines([head, case, "*count *7 *"])


def test_a_slower_body_fails_with_table_and_command_and_a_faster_one_is_counted(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    before = stored(recorded)[0].read_bytes()
    result = run(recorded, "--world-size", "2")

    result.stdout.fnmatch_lines(
        [
            "step +50.* % (threshold +10%)",
            "!  step *30 ms *20 ms *+50.? % *+10% *3",
            "intended[?]  pytest 'test_it.py::test_step?ws2?' --world-size 2 --distbench-update, then commit*",
            "FAILED test_it.py::test_step?ws2? - Regression: step +50.* % (threshold +10%)",
        ]
    )
    assert result.ret == 1
    assert stored(recorded)[0].read_bytes() == before

    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.5")
    result = run(recorded)

    result.stdout.fnmatch_lines(["*1 improved*"])
    assert result.ret == 0


def test_strict_fails_what_could_not_be_compared(recorded: pytest.Pytester) -> None:
    test = recorded.path / "test_it.py"
    test.write_text(test.read_text().replace('"count!exact": 7', '"count!exact": 8'))
    recorded.makeini("[pytest]\ndistbench_launcher = stand-in\ndistbench_strict = true\n")
    result = run(recorded)

    why = "step: inconclusive: the case's parameters changed since*; --distbench-strict"
    what_next = "intended[?]  pytest 'test_it.py::test_step?ws2?' --distbench-update, then commit*"
    result.stdout.fnmatch_lines([why, what_next])
    assert result.ret == 1


@pytest.mark.parametrize(
    ("mode", "factor", "is_rewritten"),
    [
        ("changed", "1", False),
        ("changed", "1.5", True),
        ("failed", "1.5", True),
        ("failed", "0.5", False),
        ("new", "1", False),
        ("all", "1", True),
    ],
)
def test_update_modes(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str, factor: str, is_rewritten: bool
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", factor)
    path = stored(recorded)[0]
    path.write_text(path.read_text().replace('"numpy": "2"', '"numpy": "1"'))
    assert run(recorded, f"--distbench-update={mode}").ret == 0
    assert ('"numpy": "2"' in path.read_text()) is is_rewritten


def test_a_failed_launch_is_never_stored(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", "bad number")
    made = project(TEST)
    result = run(made, "--distbench-update")

    told = ["launch 1 on 2 ranks: rank 0 raised ValueError: bad number", "--- ranks 0, 1: raised ValueError*"]
    result.stdout.fnmatch_lines(told)
    assert result.ret == 1
    assert stored(made) == []


def test_a_test_that_fails_after_its_measurement_stores_nothing_and_is_not_accepted(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = project(TEST.rstrip() + "\n        assert False, 'something else'\n")
    result = run(made, "--distbench-update", "--distbench-json=run.json")
    monkeypatch.chdir(made.path)
    accepted = main(["baseline", "accept", "run.json"])

    assert (result.ret, accepted) == (1, 1)
    assert "its test failed after it was measured, by an assertion of its own" in capsys.readouterr().out
    assert stored(made) == []


def test_a_baseline_that_cannot_be_written_fails_its_test(project: Project) -> None:
    made = project(TEST)
    (made.path / "baselines").mkdir()
    (made.path / "baselines" / hardware.cpu_class()).write_text("a file where the folder should be")
    result = run(made, "--distbench-update")

    result.stdout.fnmatch_lines(["the baseline was not written: *cannot write: *The stored baseline is unchanged"])
    assert result.ret == 1


STRUCTURE = (
    """
    import pytest
    """
    + TEST
    + """
    @pytest.mark.distbench(fake_rank=-1, metrics=["step"], bounds={"step": "1 ms"})
    def test_last(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.02]}})
    """
)


@pytest.fixture
def structure(project: Project, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Two tests whose ranks send one all_reduce, with baselines of 64 ranks on the fake backend."""
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", "1x4")
    made = project(STRUCTURE)
    run(made, "--distbench-backend=fake", "--world-size=64", "--distbench-update").assert_outcomes(passed=2)
    return made


def test_structure_has_baselines_for_all_machines_and_one_for_each_rank(structure: pytest.Pytester) -> None:
    folder = structure.path / "baselines" / "any" / "test_it"
    names = [str(path.relative_to(folder)) for path in stored(structure)]

    assert names == ["test_last/ws64%3A@rank63.fake.stand-in.json", "test_step/ws64.fake.stand-in.json"]
    text = (folder / names[1]).read_text()
    assert '"0": [["all_reduce", "float32", 4, "default", 1, null]]' in text
    assert '"collectives[of=step]"' in text
    assert '"better": "lower"' not in text


@pytest.mark.parametrize(("software", "text"), [("torch=9.9", "torch 2.13.0 -> 9.9"), ("mkl=2025", "mkl - -> 2025")])
def test_other_software_makes_a_changed_exact_number_incomparable(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, software: str, text: str
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_SOFTWARE", software)
    path = stored(recorded)[0]
    path.write_text(path.read_text().replace("[7, 7, 7, 7, 7]", "[8, 8, 8, 8, 8]"))
    result = run(recorded)

    result.stdout.fnmatch_lines(["x test_step?ws2? count: the number changed, and so did the software versions"])
    result.stdout.fnmatch_lines([f"software differs from the baselines': {text} (*"])
    assert result.ret == 0


def marked(project: Project, mark: str) -> pytest.Pytester:
    return project("import pytest\n" + textwrap.dedent(TEST).replace("def test_step", f"{mark}\ndef test_step"))


def test_xfail_perf_expects_the_regression(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = marked(project, '@pytest.mark.distbench(xfail_perf="bug 12")')
    run(made, "--distbench-update")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")

    run(made).assert_outcomes(xfailed=1)


@pytest.mark.parametrize(
    ("options", "mark", "reason"),
    [(["--distbench-advisory"], "", "--distbench-advisory"), ([], '@pytest.mark.distbench(advisory="flaky")', "flaky")],
)
@pytest.mark.parametrize("workers", [[], ["-n2"]])
def test_an_advisory_verdict_is_shown_and_fails_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, options: list[str], mark: str, reason: str, workers: list[str]
) -> None:
    made = marked(project, mark)
    run(made, "--distbench-update")
    run(made, *options).assert_outcomes(passed=1)
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    files = ["--distbench-json=run.json", "--junitxml=junit.xml"]
    result = made.runpytest_subprocess("-p", "no:cacheprovider", *files, *options, *workers)

    assert result.ret == 0
    result.stdout.fnmatch_lines([
        "A  test_step?ws2? *", "* would have failed, but advisory (A)*",
        f"A test_step?ws2?: step +50.* (advisory: {reason})", "*= 1 advisory in *",
    ])  # fmt: skip
    [case] = json.loads((made.path / "run.json").read_text())["results"]
    assert (case["advisory"], case["outcome"], case["test_outcome"]) == (reason, "advisory", "passed")
    assert [verdict["code"] for verdict in case["verdicts"]][:1] == ["beyond-threshold"]
    assert f'name="distbench.advisory" value="{case["headline"]}' in (made.path / "junit.xml").read_text()


def test_what_is_no_verdict_fails_an_advisory_test_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(TEST + "\n    def test_wrong(distbench):\n        test_step(distbench)\n        assert False\n")
    run(made, "--distbench-update", "-k", "test_step")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    result = made.runpytest_subprocess("--distbench-advisory")

    result.stdout.fnmatch_lines(["*test_it.py AF *", "FAILED test_it.py::test_wrong?ws2? - assert False"])


def test_the_run_record_has_all_and_no_foreign_variable(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made = project(TEST)
    run(made, "--distbench-json=out/run.json")
    text = (made.path / "out" / "run.json").read_text()
    record = json.loads(text)

    assert record["schema"] == 7
    assert record["results"][0]["case"]["id"] == "ws2"
    assert record["results"][0]["launches"][0]["measurements"][0]["name"] == "step"
    assert record["results"][0]["verdicts"][0]["kind"] == "new"
    assert record["results"][0]["environment"]["variables"]["GLOO_SOCKET_IFNAME"] == "lo"
    assert "hunter2" not in text


def test_a_plain_run_shows_nothing_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")

    assert "distbench:" not in run(pytester).stdout.str()


@pytest.mark.parametrize(
    ("damage", "message"),
    [('{"schema": 99}', "*schema 99, this version reads *Upgrade*"), ("not json", "*not a baseline file*restore it*")],
)
def test_an_unreadable_baseline_stops_a_run_at_its_start(recorded: pytest.Pytester, damage: str, message: str) -> None:
    path = stored(recorded)[0]
    path.write_text(damage)
    result = run(recorded, "--distbench-update=all")

    result.stderr.fnmatch_lines([message])
    assert result.ret == EXIT_USAGE
    assert path.read_text() == damage


def test_github_gets_a_summary_and_annotations(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(recorded.path / "summary.md"))
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    result = run(recorded)
    summary = (recorded.path / "summary.md").read_text()

    result.stdout.fnmatch_lines(["::error file=test_it.py,line=*,title=test_step?ws2?::step +50.*"])
    assert "### distbench: 1 of 1 case failed: a timing regressed in test_step[ws2]" in summary
    assert summary.index("| regressed |") < summary.index("| unchanged |")


BLOCKS = """
    def test_blocks():
        import pathlib
        pathlib.Path("out").write_text("a file, not a folder")
"""


OTHER_FILE, NO_FOLDER = "is another kind of file, and would be lost*", "is no folder that may be written to"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--distbench-json=out/run.json"], f"*run.json cannot be written: *out {NO_FOLDER}"),
        (["--distbench-report=test_it.py"], f"*--distbench-report*: *test_it.py {OTHER_FILE}"),
        (["--distbench-json=test_it.py"], f"*--distbench-json*: *test_it.py {OTHER_FILE}"),
        (["--distbench-json=a", "--distbench-report=a"], "*--distbench-json* and --distbench-report* name one file*"),
        (
            ["--distbench-out=out"],
            "*--distbench-out*: *out/logs/[*] cannot be written: *out is no folder that may be *",
        ),
        (["--distbench-out=logged"], f"*--distbench-out*: *cannot be written: */logged/logs {NO_FOLDER}*"),
        (["--distbench-out=mine"], f"*--distbench-out*: *mine/run.json {OTHER_FILE}"),
        (["--distbench-out=mine", "--distbench-json=a"], "*--distbench-out*: *mine/run.html is a folder; give a file*"),
    ],
)
def test_what_would_be_lost_or_cannot_be_written_is_refused(project: Project, options: list[str], text: str) -> None:
    made = project(TEST)
    before = (made.path / "test_it.py").read_text()
    (made.path / "out").write_text("a file, not a folder")
    (made.path / "mine" / "run.html").mkdir(parents=True)
    (made.path / "mine" / "run.json").write_text("another kind of file")
    (made.path / "logged").mkdir()
    (made.path / "logged" / "logs").write_text("a file, not a folder")
    result = run(made, *options)

    result.stderr.fnmatch_lines([text])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (made.path / "test_it.py").read_text() == before


def test_the_html_report_is_written_to_the_given_path(recorded: pytest.Pytester) -> None:
    result = run(recorded, "--distbench-report=out/page.html")

    result.stdout.fnmatch_lines(["*report: out/page.html"])
    assert "<h1>distbench: none of 1 case failed</h1>" in (recorded.path / "out" / "page.html").read_text()


def test_one_folder_has_all_of_a_run_but_what_another_option_names(project: Project) -> None:
    made = project(TEST)
    (made.path / "out").mkdir()
    (made.path / "out" / "notes.txt").write_text("mine")
    result = run(made, "--distbench-out=out")
    named = run(made, "--distbench-out=other", "--distbench-json=run.json")

    result.stdout.fnmatch_lines(["*run record: out/run.json   report: out/run.html"])
    named.stdout.fnmatch_lines(["*run record: run.json   report: other/run.html"])
    assert sorted(path.name for path in (made.path / "out").iterdir()) == ["notes.txt", "run.html", "run.json"]
    assert sorted(path.name for path in (made.path / "other").iterdir()) == ["run.html"]
    assert run(made, "--distbench-out=out").ret == 0, "our own files are written over"


@pytest.mark.parametrize("option", ["--distbench-report=out/page.html", "--distbench-json=out/run.json"])
def test_a_page_or_a_record_that_cannot_be_written_is_an_error(project: Project, option: str) -> None:
    result = run(project(TEST + BLOCKS), option)

    result.stdout.fnmatch_lines([f"distbench: *{option.rpartition('/')[2]}: cannot write*"])
    assert result.ret == 1


def test_ranks_that_share_a_gpu_are_compared_with_nothing(project: Project, gpus: Callable[[int], None]) -> None:
    gpus(1)
    made = project(TEST)
    refused = run(made, "--gpu", "--world-size=2")
    shared = run(made, "--gpu", "--world-size=2", "--distbench-share=gpu", "--distbench-json=run.json")

    refused.stderr.fnmatch_lines(["*needs 2 GPUs, one per rank; 1 visible*--distbench-share=gpu*"])
    assert refused.ret == EXIT_USAGE
    shared.stdout.fnmatch_lines(["x test_step?ws2? step and 1 more: ranks share a GPU*"])
    assert shared.ret == 0
    record = json.loads((made.path / "run.json").read_text())
    assert record["results"][0]["environment"]["shares_gpu"] is True
    assert stored(made) == []


def test_baselines_that_git_ignores_are_reported_when_they_are_recorded(project: Project) -> None:
    made = project(TEST)
    git.run(made.path, "init", "--quiet")
    text = "*git ignores the baselines that were recorded (*.gitignore:1: baselines): git add would leave them out*"
    (made.path / ".gitignore").write_text("baselines\n")

    run(made, "--distbench-update=new").stdout.fnmatch_lines([text])
    run(made).stdout.no_fnmatch_line(text)
    run(made, "--distbench-update=new", "--distbench-baselines=others").stdout.no_fnmatch_line(text)


def test_a_run_that_cannot_be_compared_proposes_no_branch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(TEST)
    git.run(made.path, "init", "--quiet", "--initial-branch=trunk")
    proposed = "  or compare with a branch: *--distbench-against=HEAD*"
    run(made).stdout.no_fnmatch_line(proposed)  # there is no commit
    commit = ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--allow-empty", "-m", "a"]
    git.run(made.path, *commit)
    run(made).stdout.fnmatch_lines(["*keep them: *git add test_it.py baselines &&*", proposed])
    monkeypatch.setitem(LAUNCHERS, STAND_IN, replace(LAUNCHERS[STAND_IN], holds_two=False))
    run(made).stdout.no_fnmatch_line(proposed)


STATED = """
cluster = "Cruiser10, behind 10.1.2.3"
addresses = "node1.example.org"
storage = "bucket a, password: s3cr3tValue"
"""


def test_the_run_record_holds_what_was_stated_without_secrets_and_addresses_on_demand(
    project: Project,
) -> None:
    made = project(TEST)
    (made.path / "stated").mkdir()
    (made.path / "stated" / "experiment.toml").write_text(STATED)
    made.makeini("[pytest]\ndistbench_experiment = stated/experiment.toml\n")

    def recorded(*options: str) -> Any:
        run(made, "--distbench-json=run.json", "--distbench-out=of 10.1.2.4", *options)
        return json.loads((made.path / "run.json").read_text())

    masked, whole = recorded(), recorded("-o", "distbench_addresses=true")
    assert masked["experiment"]["statements"] == {
        "": {"storage": "bucket a, password: ***", "cluster": "Cruiser10, behind ***"}
    }
    assert whole["experiment"]["statements"][""]["addresses"] == "node1.example.org"
    assert whole["experiment"]["statements"][""]["cluster"] == "Cruiser10, behind 10.1.2.3"
    assert "s3cr3t" not in json.dumps(whole)
    assert [record["host"] for record in (masked, whole)] == ["", os.uname().nodename]
    for record, keeps in ((masked, False), (whole, True)):
        assert ["of 10.1.2.4" in text for text in (record["settings"]["out"], record["command"])] == [keeps] * 2


def test_the_run_record_says_how_it_came_about(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in git.BRANCHES:
        monkeypatch.delenv(name, raising=False)
    made = project(TEST)
    for command in (
        ["init", "-q", "--initial-branch=token=s3cr3tValue"],
        ["add", "test_it.py"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        assert made.run("git", *command).ret == 0
    head = made.run("git", "rev-parse", "HEAD").outlines[0]
    run(made, "--distbench-json=run.json", "--world-size", "2", "--distbench-strict", "-o", "api_token=x")
    clean = json.loads((made.path / "run.json").read_text())
    (made.path / "test_it.py").write_text((made.path / "test_it.py").read_text() + "\n")
    run(made, "--distbench-json=run.json")
    changed = json.loads((made.path / "run.json").read_text())

    assert (clean["commit"], changed["commit"]) == (head, f"{head}-dirty")
    assert clean["branch"] == "token=***"
    assert clean["settings"] == {"world-size": "2", "strict": "true", "json": "run.json", "launcher": "stand-in"}
    assert "--distbench-strict" in clean["command"]
    assert "api_token=x" not in clean["command"]


def test_a_file_taken_for_the_mode_of_an_update_is_an_error(project: Project) -> None:
    result = run(project(TEST), "--distbench-update", "test_it.py")

    result.stderr.fnmatch_lines(["*--distbench-update took 'test_it.py' for its value*write the tests first*"])
    assert result.ret == EXIT_USAGE


def test_a_store_that_pytest_takes_for_a_test_is_refused_before_names_change(project: Project) -> None:
    made = project(TEST)
    (made.path / "tox.ini").unlink()
    inner = made.mkdir("inner")
    (made.path / "test_it.py").rename(inner / "test_it.py")
    made.mkdir("store")
    made.chdir()
    command = ("inner/test_it.py", "--distbench-launcher=stand-in")
    apart = run(made, *command, "--distbench-baselines", "store")
    joined = run(made, *command, "--distbench-baselines=store")

    apart.stderr.fnmatch_lines(["*--distbench-baselines store: pytest takes the folder for one of the tests*"])
    assert apart.ret == EXIT_USAGE
    assert joined.ret == 0


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        ("pytest_itemcollected(item)", "interrupted before the first test: nothing is stored"),
        ("pytest_runtestloop(session)", "interrupted before the first test: nothing is stored; 1 was to follow"),
        ("pytest_runtest_setup(item)", "interrupted: 0 cases are stored, and nothing of the test that was running"),
    ],
)
def test_an_update_that_sigterm_ends_says_when_it_was(project: Project, hook: str, text: str) -> None:
    made = project(TEST)
    made.makeconftest(f"""
        from pytest_distbench.errors import Terminated

        def {hook}:
            raise Terminated("SIGTERM")
    """)
    result = run(made, "--distbench-update")

    assert result.ret == TERMINATED
    assert text in result.stdout.lines
    result.stdout.fnmatch_lines(["!*Terminated: SIGTERM*!"])


def test_a_rank_that_does_not_exist_skips_the_test(structure: pytest.Pytester) -> None:
    result = run(structure, "--distbench-backend=fake:7", "--world-size=2,8", "-rs")

    result.stdout.fnmatch_lines(["*not run: there is no rank 7 among 2*"])


def test_structure_is_judged_exactly_whatever_the_marker_says_of_timings(
    structure: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--distbench-backend=fake", "--world-size=64")
    run(structure, *options).assert_outcomes(passed=2)
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", "2x4")
    result = run(structure, *options)

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*step: 1 all_reduce of 4 B float32 was added*"])


def test_a_regression_names_the_software_that_differs_as_the_summary_does(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_SOFTWARE", "mkl=2025")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "3")
    result = run(recorded)

    result.stdout.fnmatch_lines(["*differs    mkl - -> 2025", "*software differs from the baselines*: mkl - -> 2025*"])
    assert result.ret == 1


@pytest.mark.parametrize(
    ("extra", "heading"),
    [
        ("def test_plain(): assert 0", "1 other test or module failed, none of 1 case failed, 1 without a baseline"),
        ("def test_stops(): pytest.exit('enough')", "interrupted, none of 1 case failed, 1 without a baseline"),
        ("import nothing_of_that_name", "interrupted, 1 other test or module failed"),
    ],
)
def test_a_page_says_first_why_its_run_is_not_whole_or_green(project: Project, extra: str, heading: str) -> None:
    made = project(f"    import pytest\n{TEST}\n    {extra}\n")
    run(made, "--distbench-report=page.html")

    assert f"<h1>distbench: {heading}</h1>" in (made.path / "page.html").read_text()


@pytest.mark.other_plugins
def test_sugar_and_no_terminalprogress_are_fine(recorded: pytest.Pytester) -> None:
    for arguments in (["-p", "no:terminalprogress"], ["-s"], ["--force-sugar"]):
        result = run(recorded, *arguments)
        result.stdout.fnmatch_lines(["** metric* (* unchanged), 1 launch* in *"])
        assert result.ret == 0


def test_ranks_that_share_a_gpu_keep_to_bounds(project: Project, gpus: Callable[[int], None]) -> None:
    gpus(1)
    made = marked(project, "@pytest.mark.distbench(bounds={'count': '<= 6'})")
    shared = run(made, "--gpu", "--world-size=2", "--distbench-share=gpu")

    shared.stdout.fnmatch_lines(["count: 7, bound: at most 6 (marker of test_step[[]ws2])", "x test_step?ws2? step: *"])
    assert shared.ret == 1


def test_measurements_in_the_teardown_of_a_fixture_are_reported_and_stored_too(project: Project) -> None:
    made = project(
        """
        import pytest

        def body(rank):
            pass

        @pytest.fixture
        def around(distbench):
            distbench.run(body, name="before", params={"stand_in": {"step": [0.02, 0.021]}})
            yield distbench
            distbench.run(body, name="after", params={"stand_in": {"step": [0.02, 0.021]}})

        def test_it(around):
            around.run(body, params={"stand_in": {"step": [0.02, 0.021]}})
        """
    )
    run(made, "--distbench-update", "--distbench-json=run.json")
    cases = [(r["case"]["id"], r["case"]["run"]) for r in json.loads((made.path / "run.json").read_text())["results"]]

    assert cases == [("ws2", "before"), ("ws2", ""), ("ws2", "after")]
    assert len(stored(made)) == 3


PREPARED = """
import os, sys
from pytest_distbench.launch.starters import LAUNCHERS, LauncherKind
from pytest_distbench.testing import StandInLauncher

class Preparing(StandInLauncher):
    def prepare(self, variables):
        with open("prepared", "a") as file:
            print(os.environ.get("PYTEST_XDIST_WORKER", "alone"), file=file)
            print(*(name for name in sys.modules if name.startswith("pytest_distbench.run.confirm")), file=file)

LAUNCHERS["preparing"] = LauncherKind(help="", make=lambda setup: Preparing(setup.session), holds_two=True)
"""
OTHERS = """
    import pytest

    def test_of_no_ranks():
        pass

    def body(rank):
        pass

    @pytest.mark.skip
    def test_skipped(distbench):
        distbench.run(body)

    @pytest.mark.skipif(True, reason="as on a machine without GPUs")
    def test_skipped_here(distbench):
        distbench.run(body)

    @pytest.mark.full
    def test_slow(distbench):
        distbench.run(body)
"""
"""Tests that launch nothing."""


@pytest.fixture
def preparing(project: Project) -> Project:
    def make(test: str) -> pytest.Pytester:
        made = project(test)
        with (made.path / "conftest.py").open("a") as file:
            file.write(PREPARED)
        return made

    return make


@pytest.mark.parametrize(
    ("test", "options"),
    [
        (TEST, ("--collect-only",)),
        (TEST, ("--collect-only", "-q")),
        (TEST, ("-k", "nothing")),
        (TEST, ("-m", "nothing")),
        (TEST, ("--deselect", "test_it.py")),
        (OTHERS, ()),
    ],
)
def test_a_run_that_launches_nothing_lets_no_launcher_load_torch(
    preparing: Project, test: str, options: tuple[str, ...]
) -> None:
    made = preparing(test)
    run(made, "--distbench-launcher=preparing", *options)

    assert not (made.path / "prepared").exists()


@pytest.mark.parametrize(("options", "process"), [((), "alone"), (("-n", "1"), "gw0")])
def test_torch_is_loaded_once_by_who_launches_and_before_what_only_verdicts_need_is_imported(
    preparing: Project, options: tuple[str, ...], process: str
) -> None:
    """Not by the controller of pytest-xdist. Runs in its own process, as this one has imported everything."""
    made = preparing(TEST)
    made.runpytest_subprocess("--distbench-launcher=preparing", *options).assert_outcomes(passed=1)

    assert (made.path / "prepared").read_text() == f"{process}\n\n"

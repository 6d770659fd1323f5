"""What a user sees of a run: outcomes, exit codes, printed lines, files. Ranks are made up by the stand-in launcher."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.projects import EXIT_USAGE, Project, run

from pytest_distbench.frames import read_run
from pytest_distbench.machine import hardware

TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198], "count!exact": 7}})
"""


def stored(project: pytest.Pytester) -> list[Path]:
    return sorted((project.path / "baselines").rglob("*.json"))


@pytest.fixture
def recorded(project: Project) -> pytest.Pytester:
    """The test above with a baseline."""
    made = project(TEST)
    assert run(made, "--distbench-update").ret == 0
    return made


def test_without_a_baseline_a_test_passes_as_new_and_says_how_to_record(project: Project) -> None:
    result = run(project(TEST))

    result.stdout.fnmatch_lines(
        ["*test_it.py N*", "no baseline for 1 of 1 case on cpu-*", "record them:  pytest *--distbench-update=new"]
    )
    assert result.ret == 0


def test_missing_fail_fails_and_names_the_command(project: Project) -> None:
    result = run(project(TEST), "--distbench-missing=fail")

    result.stdout.fnmatch_lines(
        ["*no baseline for cpu-* (have: none)*", "record it:  pytest *test_step?ws2?* --distbench-update=new"]
    )
    assert result.ret == 1


def test_missing_skip_skips(project: Project) -> None:
    run(project(TEST), "--distbench-missing=skip").assert_outcomes(skipped=1)


def test_an_update_writes_and_tells_old_and_new(project: Project) -> None:
    made = project(TEST)
    result = run(made, "--distbench-update")

    result.stdout.fnmatch_lines(
        [
            "*test_it.py U*",
            "baselines in baselines?cpu-*: 0 changed, 1 new, 0 kept*",
            "review with: distbench baseline diff *",
        ]
    )
    assert len(stored(made)) == 1
    content = json.loads(stored(made)[0].read_text())
    assert len(content["entry"]["metrics"]["step"]["launches"]) == 10


def test_unchanged_code_passes(recorded: pytest.Pytester) -> None:
    result = run(recorded)

    result.stdout.fnmatch_lines(["*test_it.py .*", "2 metrics of 1 case in 1 launch: 2 within limits"])
    assert result.ret == 0


def test_a_slower_body_fails_with_table_and_command(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    before = stored(recorded)[0].read_bytes()
    result = run(recorded, "--world-size", "2")

    result.stdout.fnmatch_lines(
        [
            "step +50.* % (limit +10%)",
            "!  step *30 ms *20 ms *+50.? % *+10% *3",
            "If this change is intended:  pytest 'test_it.py::test_step?ws2?' --world-size 2 --distbench-update",
            "FAILED test_it.py::test_step?ws2? - Regression: step +50.* % (limit +10%)",
        ]
    )
    assert result.ret == 1
    assert stored(recorded)[0].read_bytes() == before


def test_another_workload_under_the_same_name_is_incomparable(recorded: pytest.Pytester) -> None:
    test = recorded.path / "test_it.py"
    test.write_text(test.read_text().replace('"count!exact": 7', '"count!exact": 8'))
    result = run(recorded)

    result.stdout.fnmatch_lines(
        ["x test_step?ws2? step and 1 more: the workload's definition changed since the baseline; *update*"]
    )
    assert result.ret == 0


def test_a_faster_body_passes_and_is_told(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.5")
    result = run(recorded)

    result.stdout.fnmatch_lines(["*1 better than the baseline*"])
    assert result.ret == 0


def test_an_improvement_fails_where_it_is_told_to(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.5")
    result = run(recorded, "--distbench-fail-on-improvement")

    result.stdout.fnmatch_lines(["FAILED test_it.py::test_step?ws2? - Unaccepted: step: improved: -50*"])
    assert result.ret == 1


def test_strict_fails_what_could_not_be_compared(recorded: pytest.Pytester) -> None:
    test = recorded.path / "test_it.py"
    test.write_text(test.read_text().replace('"count!exact": 7', '"count!exact": 8'))
    recorded.makeini("[pytest]\ndistbench_launcher = stand-in\ndistbench_strict = true\n")
    result = run(recorded)

    result.stdout.fnmatch_lines(
        [
            "step: incomparable: the workload's definition changed since*; --distbench-strict",
            "If what was measured is right:  pytest 'test_it.py::test_step?ws2?' --distbench-update",
        ]
    )
    assert result.ret == 1


def test_strict_leaves_unchanged_code_alone(recorded: pytest.Pytester) -> None:
    assert run(recorded, "--distbench-strict", "--distbench-fail-on-improvement").ret == 0


def test_a_few_derived_values_are_judged_at_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch can be added to them, so that their answer must not stay open."""
    made = project("""
        import os

        def test_efficiency(distbench):
            factor = float(os.environ.get("DISTBENCH_STAND_IN_FACTOR", "1"))
            distbench.judge("efficiency", [factor * v for v in (0.90, 0.91)], better="higher")
    """)
    assert run(made, "--distbench-update").ret == 0
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.8")

    run(made).stdout.fnmatch_lines(["FAILED *- Regression: efficiency -20.* %*"])


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
    result = run(recorded, f"--distbench-update={mode}")

    assert result.ret == 0
    assert ('"numpy": "2"' in path.read_text()) is is_rewritten


def test_update_new_still_judges_what_has_a_baseline(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")

    assert run(recorded, "--distbench-update=new").ret == 1


def test_a_failed_launch_is_never_stored(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", "bad number")
    made = project(TEST)
    result = run(made, "--distbench-update")

    result.stdout.fnmatch_lines(
        [
            "launch 1 on 2 ranks: rank 0 raised ValueError: bad number",
            "--- ranks 0, 1: raised ValueError*",
        ]
    )
    assert result.ret == 1
    assert stored(made) == []


def test_a_test_that_fails_after_its_measurement_stores_nothing(project: Project) -> None:
    made = project(TEST.rstrip() + "\n        assert False, 'something else'\n")
    result = run(made, "--distbench-update")

    assert result.ret == 1
    assert stored(made) == []


def test_a_baseline_that_cannot_be_written_fails_its_test(project: Project) -> None:
    made = project(TEST)
    (made.path / "baselines").mkdir()
    (made.path / "baselines" / hardware.platform_key(hardware.cpu_name(), gpu=False)).write_text(
        "a file where the folder should be"
    )
    result = run(made, "--distbench-update")

    result.stdout.fnmatch_lines(["the baseline was not written: *cannot write: *The stored baseline is unchanged"])
    assert result.ret == 1


def test_the_fake_backend_is_never_a_baseline(project: Project) -> None:
    made = project(TEST)
    result = run(made, "--distbench-backend=fake", "--distbench-update")

    result.stderr.fnmatch_lines(["*backend fake moves no data*never a baseline*"])
    assert result.ret == EXIT_USAGE
    assert stored(made) == []


@pytest.mark.parametrize(("software", "told"), [("torch=9.9", "torch 2.13.0 -> 9.9"), ("mkl=2025", "mkl - -> 2025")])
def test_other_software_makes_a_changed_exact_number_incomparable(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, software: str, told: str
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_SOFTWARE", software)
    path = stored(recorded)[0]
    path.write_text(path.read_text().replace("[7, 7, 7, 7, 7, 7, 7, 7, 7, 7]", "[8, 8, 8, 8, 8, 8, 8, 8, 8, 8]"))
    result = run(recorded)

    result.stdout.fnmatch_lines(["x test_step?ws2? count: the number changed, and so did the software"])
    result.stdout.fnmatch_lines([f"software differs from the baselines': {told} (*"])
    assert result.ret == 0


def test_a_regression_names_the_software_that_differs_as_the_summary_does(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_SOFTWARE", "mkl=2025")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "3")
    result = run(recorded)

    result.stdout.fnmatch_lines(["*differs   mkl - -> 2025", "*software differs from the baselines': mkl - -> 2025 (*"])
    assert result.ret == 1


def test_xfail_perf_expects_the_regression(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(TEST)
    test = made.path / "test_it.py"
    mark = '@pytest.mark.distbench(xfail_perf="bug 12")'
    test.write_text("import pytest\n" + test.read_text().replace("def test_step", f"{mark}\ndef test_step"))
    run(made, "--distbench-update")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")

    run(made).assert_outcomes(xfailed=1)


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

    result.stdout.fnmatch_lines(
        [
            "*test_step?float32-ws2? NEW*",
            "*test_step?float32-ws4? NEW*",
            "*test_step?float32-ws8? SKIPPED*",
            "SKIPPED*not run: needs 8 ranks, 4 given",
        ]
    )


def test_a_list_of_sizes_runs_exactly_those(project: Project) -> None:
    result = run(project(TEST), "--world-size", "2,3", "-v")

    result.stdout.fnmatch_lines(["*test_step?ws2? NEW*", "*test_step?ws3? NEW*"])


def test_the_run_record_holds_everything_and_no_foreign_variable(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made = project(TEST)
    run(made, "--distbench-json=out/run.json")
    text = (made.path / "out" / "run.json").read_text()
    record = json.loads(text)

    assert record["schema"] == 2
    assert record["results"][0]["case"]["key"]["case_id"] == "ws2"
    assert record["results"][0]["launches"][0]["measurements"][0]["name"] == "step"
    assert record["results"][0]["verdicts"][0]["kind"] == "missing"
    assert record["results"][0]["environment"]["variables"]["GLOO_SOCKET_IFNAME"] == "lo"
    assert "hunter2" not in text


def test_a_run_record_becomes_a_data_frame(project: Project) -> None:
    made = project(TEST)
    run(made, "--distbench-json=run.json")
    frame = read_run(made.path / "run.json")

    assert frame[["case", "launch", "metric", "value", "verdict"]].to_dict("records") == [
        {"case": "ws2", "launch": 0, "metric": "step", "value": 0.02, "verdict": "missing"},
        {"case": "ws2", "launch": 0, "metric": "count", "value": 7.0, "verdict": "missing"},
    ]


def test_quiet_shows_no_header_and_verbose_every_metric(recorded: pytest.Pytester) -> None:
    assert "distbench 0." not in run(recorded, "-q").stdout.str()
    run(recorded, "-v").stdout.fnmatch_lines(
        [
            "distbench 0.*: world size 2, gloo, *",
            "test_step?ws2?  2 ranks, gloo, stand-in launcher, 1 launches",
            "*count *7 *",
        ]
    )


def test_a_plain_run_shows_nothing_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass")

    assert "distbench:" not in run(pytester).stdout.str()


def test_help_groups_the_options(pytester: pytest.Pytester) -> None:
    run(pytester, "--help").stdout.fnmatch_lines(
        [
            "distributed performance and accuracy regressions:",
            "*--distbench-update*",
            "*--world-size=*",
            "*--gpu*",
            "*distbench_tolerance*",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "many"], "*--world-size: 'many' is not a number of ranks*"),
        (["--world-size", "0"], "*--world-size: '0' is not a number of ranks*"),
        (["--world-size", "100000", "--distbench-launcher=warm"], "*100000 ranks on * CPU cores; at most *"),
        (["--gpu"], "*--gpu: no GPU: 0 visible (CUDA_VISIBLE_DEVICES is not set)*"),
        (["--distbench-backend", "glo"], "*unknown backend 'glo'; known are gloo, nccl*"),
        (["--distbench-launcher", "mpirun"], "*unknown launcher 'mpirun'; known are warm, torchrun, stand-in*"),
        (["--distbench-update", "sometimes"], "*unknown update 'sometimes'; known are new, failed, changed, all*"),
        (["--distbench-missing", "shrug"], "*unknown policy 'shrug'*"),
        (["--distbench-timeout", "soon"], "*distbench-timeout*'soon' is not a number*"),
        (["--distbench-launches", "-1"], "*distbench-launches*'-1' is not a whole number of at least 1*"),
        (["--distbench-tolerance", "nan"], "*distbench-tolerance*'nan' is not a number*"),
        (["--distbench-platform", "../x"], "*'../x' is not a usable name*"),
        (["--distbench-max-message", "big"], "*--distbench-max-message*'big' is not a size*"),
        (["--distbench-json", "."], "*--distbench-json*is a folder*"),
        (["--distbench-baselines", "test_it.py"], "*test_it.py is not a folder*"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_names_it(project: Project, arguments: list[str], message: str) -> None:
    made = project(TEST)
    result = run(made, *arguments)

    result.stderr.fnmatch_lines([message])
    assert result.ret == EXIT_USAGE
    assert stored(made) == []


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (
            "distbench(tolerence=0.1)",
            "*test_step*unknown keyword tolerence; known are: timeout, launches, tolerance, metrics, xfail_perf*",
        ),
        ("distbench(tolerance='big')", "*tolerance='big'; wanted a fraction*"),
        ("distbench(launches=0)", "*launches=0; wanted a number above 0*"),
        ("distbench(0.1)", "*takes keywords only*"),
        ("world_size(2, mx=4)", "*world_size: unknown keyword mx; known are: min, max*"),
        ("world_size('two')", "*world_size: wants numbers of ranks*"),
        ("world_size(min=4, max=2)", "*min=4 is more than max=2*"),
        ("world_size(2, min=3)", "*world_size: none of 2 lies within min and max*"),
        ("gpu(1)", "*@pytest.mark.gpu takes no arguments, found (1,)*"),
    ],
)
def test_a_bad_marker_is_a_usage_error(project: Project, marker: str, message: str) -> None:
    made = project(f"""
        import pytest

        @pytest.mark.{marker}
        def test_step(distbench):
            raise AssertionError("must not run")
    """)
    result = run(made)

    result.stderr.fnmatch_lines([message])
    assert result.ret == EXIT_USAGE


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ('{"schema": 2}', "*schema 2, this version reads up to 1*Upgrade*"),
        ("not json", "*not a baseline file*restore it*"),
    ],
)
def test_an_unreadable_baseline_stops_the_run_before_it_measures(
    recorded: pytest.Pytester, damage: str, message: str
) -> None:
    path = stored(recorded)[0]
    path.write_text(damage)
    result = run(recorded, "--distbench-update=all")

    result.stderr.fnmatch_lines([message])
    assert result.ret == EXIT_USAGE
    assert path.read_text() == damage


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("distbench.run(lambda rank: None)", "*is defined inside a function*move it to module level*"),
        ("distbench.run('nowhere.py::body')", "*there is no file*nowhere.py*"),
        ("distbench.run('test_it.py::')", "*no function named after*"),
        ("distbench.run(42)", "*body 42 is a int*"),
        ("distbench.run(body, params={'x': object()})", "*params?'x'? is not JSON-able*"),
        ("distbench.run(body, params={'x': float('nan')})", "*params?'x'? is not JSON-able: Out of range float*"),
        ("distbench.run(body, params={'x': {1, 2}})", "*params?'x'? is not JSON-able*set*"),
        ("distbench.judge('v', [])", "*judge('v'): no value to judge*"),
        (
            "distbench.run(body, params={'stand_in': {'a!info': 1}})",
            "*nothing was measured that can be judged: the body recorded a; *",
        ),
        ("[distbench.run(body, params={'stand_in': {'a': 1}}) for _ in range(2)]", "*already has a run named*"),
    ],
)
def test_misuse_in_a_test_is_a_failure_without_our_traceback(project: Project, line: str, message: str) -> None:
    made = project(f"""
        def body(rank):
            pass

        def test_step(distbench):
            {line}
    """)
    result = run(made)

    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*fixtures.py*")
    assert result.ret == 1
    assert stored(made) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("len", "*collective=<built-in function len>: wanted a torch name, or 'my_operations.py::ROW'*"),
        ("'gone.py::ROW'", "*there is no file *gone.py*"),
        ("'all_reduze'", "*unknown collective 'all_reduze'; known are all_reduce*"),
        ("'all_reduce', dtype='float33'", "*unknown dtype 'float33'; known are bfloat16*"),
        ("'all_reduce', sizes='huge'", "*unknown preset of sizes 'huge'*"),
        ("'all_reduce', sizes=[1 << 30], max_bytes=1024", "*no message size left of 1*"),
    ],
)
def test_a_sweep_that_cannot_be_is_explained(project: Project, call: str, message: str) -> None:
    result = run(project(f"def test_sweep(collective_sweep):\n    collective_sweep({call})\n"))

    result.stdout.fnmatch_lines([message.replace(";", "?")])
    assert result.ret == 1


def test_a_conftest_with_the_same_option_is_a_usage_error_with_the_way_out(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('def pytest_addoption(parser):\n    parser.addoption("--gpu", action="store_true")\n')
    pytester.makepyfile("def test_step(distbench): pass")
    pytester.makeini("[pytest]\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    result.stderr.fnmatch_lines(
        ["*--gpu: a conftest.py of this project already defines it*distbench_short_options = false*--distbench-gpu*"]
    )
    assert result.ret == EXIT_USAGE


def test_such_a_conftest_keeps_its_option_where_nothing_of_ours_is_tested_or_the_ini_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest('def pytest_addoption(parser):\n    parser.addoption("--gpu", action="store_true")\n')
    pytester.makepyfile("def test_plain(request): assert request.config.option.gpu")
    assert run(pytester, "--gpu").ret == 0

    pytester.makeini("[pytest]\ndistbench_short_options = false\n")
    pytester.makepyfile(test_ours="def test_ours(distbench): assert distbench.world_size == 3")
    assert run(pytester, "--gpu", "--distbench-world-size=3").ret == 0


def test_ini_keys_are_read(project: Project) -> None:
    made = project(TEST)
    made.makeini("[pytest]\ndistbench_launcher = stand-in\ndistbench_world_size = 3\ndistbench_missing = fail\n")

    run(made).stdout.fnmatch_lines(["*test_step?ws3?*no baseline*"])


def test_github_gets_a_summary_and_annotations(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(recorded.path / "summary.md"))
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    result = run(recorded)
    summary = (recorded.path / "summary.md").read_text()

    result.stdout.fnmatch_lines(["::error file=test_it.py,title=test_step?ws2?::step +50.*"])
    assert "### distbench: 1 of 2 metrics failed" in summary
    assert summary.index("| regressed |") < summary.index("| unchanged |")


def test_an_unwritable_run_record_is_an_error(project: Project) -> None:
    made = project(TEST)
    (made.path / "out").write_text("a file, not a folder")
    result = run(made, "--distbench-json=out/run.json")

    result.stdout.fnmatch_lines(["distbench: *run.json: cannot write*"])
    assert result.ret == 1


def test_xdist_workers_send_their_cases_to_the_controller(recorded: pytest.Pytester) -> None:
    result = recorded.runpytest_subprocess(
        "-n", "2", "-p", "no:sugar", "-p", "no:cacheprovider", "--distbench-json=run.json"
    )

    result.stdout.fnmatch_lines(["2 metrics of 1 case in 1 launch: 2 within limits"])
    assert len(json.loads((recorded.path / "run.json").read_text())["results"]) == 1


def test_sugar_and_no_terminalprogress_are_fine(recorded: pytest.Pytester) -> None:
    for arguments in (["-p", "no:terminalprogress"], ["-s"], ["--force-sugar"]):
        result = recorded.runpytest_subprocess("-p", "no:cacheprovider", *arguments)
        result.stdout.fnmatch_lines(["*2 metrics of 1 case in 1 launch: 2 within limits"])
        assert result.ret == 0


def test_derived_metrics_are_judged_against_their_own_baseline(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(
        """
        import os

        def test_efficiency(distbench):
            values = [float(x) for x in os.environ.get("EFF", "0.90 0.91 0.89 0.90 0.91").split()]
            distbench.judge("efficiency", values, better="higher")
        """
    )
    assert run(made, "--distbench-update").ret == 0
    assert run(made).ret == 0
    monkeypatch.setenv("EFF", "0.5 0.51 0.5 0.5 0.5")
    result = run(made)

    result.stdout.fnmatch_lines(["efficiency -44.* % (limit -*%)"])
    assert result.ret == 1


def test_no_place_for_the_run_directory_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk full, TMPDIR gone: no traceback of ours."""

    def fail(**options: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp")

    made = project(TEST)
    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    result = run(made)

    result.stdout.fnmatch_lines(
        ["cannot start ranks: No space left on device: /tmp. The run directory is below TMPDIR*"]
    )
    assert result.ret == 1


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that the driver shows some GPUs."""
    return lambda count: monkeypatch.setattr(
        hardware, "gpus", lambda variables: [hardware.Gpu("NVIDIA H200", f"GPU-{i}") for i in range(count)]
    )


def test_the_world_size_is_the_number_of_gpus(project: Project, gpus: Callable[[int], None]) -> None:
    gpus(3)
    result = run(project(TEST), "--gpu", "-v")

    result.stdout.fnmatch_lines(["distbench *: world size 3, nccl, 3 GPUs (NVIDIA H200)*", "*test_step?ws3? NEW*"])
    assert result.ret == 0


def test_ranks_that_share_a_gpu_are_compared_with_nothing(project: Project, gpus: Callable[[int], None]) -> None:
    gpus(1)
    made = project(TEST)
    refused = run(made, "--gpu", "--world-size=2")
    shared = run(made, "--gpu", "--world-size=2", "--distbench-share-gpu", "--distbench-json=run.json")

    refused.stderr.fnmatch_lines(["*needs 2 GPUs, one per rank; 1 visible*--distbench-share-gpu*"])
    assert refused.ret == EXIT_USAGE
    shared.stdout.fnmatch_lines(["x test_step?ws2? step and 1 more: ranks share a GPU*"])
    assert shared.ret == 0
    record = json.loads((made.path / "run.json").read_text())
    assert record["results"][0]["environment"]["shares_gpu"] is True
    assert stored(made) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--distbench-share-gpu"], "*several ranks on one GPU: give --gpu too*"),
        (["--gpu", "--distbench-share-gpu", "--distbench-update"], "*measures nothing that could be a baseline*"),
        (["--distbench-attach=2"], "*--distbench-attach*there is no rank 2: the largest group has 2 ranks*"),
        (["--distbench-attach=-1"], "*--distbench-attach*'-1' is not a whole number*"),
        (["--distbench-attach=first"], "*--distbench-attach*'first' is not a whole number*"),
        (["--distbench-attach=0", "--distbench-update"], "*nothing is measured then*"),
        (["--distbench-attach=0", "-n2"], "*with -n nobody has the terminal*"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    project: Project, gpus: Callable[[int], None], options: list[str], text: str
) -> None:
    gpus(1)
    made = project(TEST)
    result = run(made, *options)

    result.stderr.fnmatch_lines([text])
    assert result.ret == EXIT_USAGE
    assert stored(made) == []


def test_control_characters_in_what_a_rank_says_do_not_reach_the_terminal(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST.replace('"step":', r'"st\x1b[2Jep":'))
    named = run(made).stdout.str()
    monkeypatch.setenv("DISTBENCH_STAND_IN_ERROR", "red \x1b[31m alarm \x07 \u202e")
    failed = run(made).stdout.str()

    assert "st\\x1b[2Jep" in named
    assert "red \\x1b[31m alarm \\x07 \\u202e" in failed
    assert not {"\x1b", "\x07", "\u202e"} & set(named + failed)


def test_several_backends_run_every_test_with_each_and_share_the_names_of_stored_entries(project: Project) -> None:
    made = project(TEST)
    both = run(made, "--distbench-backend=gloo,mpi", "--distbench-update", "-v")
    one = run(made, "--distbench-backend=mpi", "-v")

    both.stdout.fnmatch_lines(["*test_step?ws2-gloo? UPDATED*", "*test_step?ws2-mpi? UPDATED*"])
    assert [path.name for path in stored(made)] == ["ws2.gloo.stand-in.json", "ws2.mpi.stand-in.json"]
    one.stdout.fnmatch_lines(["*test_step?ws2? PASSED*"])


@pytest.mark.parametrize("given", ["gloo,", "gloo,nope", ","])
def test_a_list_of_backends_with_an_unknown_one_is_a_usage_error(project: Project, given: str) -> None:
    result = run(project(TEST), f"--distbench-backend={given}")

    result.stderr.fnmatch_lines(["*--distbench-backend (ini: distbench_backend): unknown backend *; known are gloo, *"])
    assert result.ret == EXIT_USAGE


def test_a_test_that_runs_again_is_in_the_record_once(project: Project) -> None:
    made = project(TEST)
    made.makeconftest(
        """
        pytest_plugins = ["pytest_distbench.testing"]

        def pytest_runtest_protocol(item, nextitem):
            from _pytest.runner import runtestprotocol
            for _ in range(2):
                item._initrequest()
                runtestprotocol(item, nextitem=nextitem)
            return True
        """
    )
    run(made, "--distbench-json=run.json")
    record = json.loads((made.path / "run.json").read_text())

    assert len(record["results"]) == 1


def test_the_run_record_says_how_it_came_about(project: Project) -> None:
    made = project(TEST)
    for command in (
        ["init", "-q"],
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
    assert clean["settings"] == {"world-size": "2", "strict": "true", "json": "run.json", "launcher": "stand-in"}
    assert "--distbench-strict" in clean["command"]
    assert "api_token=x" not in clean["command"]

"""Settings of a run, from options and ini keys: how they are listed, and whose else they are."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import texts
from support.projects import EXIT_USAGE, TEST, Project, run, stored

from pytest_distbench.machine import hardware, locks
from pytest_distbench.machine.locks import alone_on_this_host
from pytest_distbench.records.options import ADVANCED, BASIC, OPTIONS, Option
from pytest_distbench.records.wanted import FRACTION


@given(st.one_of(texts, st.from_regex(r"[0-9, ]{1,30}", fullmatch=True), st.just("9" * 5000)))
def test_world_sizes_are_numbers_or_nothing(text: str) -> None:
    sizes = OPTIONS["world-size"].wanted.take(text)

    assert sizes is None or (sizes == tuple(sorted(set(sizes))) and sizes[0] >= 1)


def refused(made: pytest.Pytester, text: str, *arguments: str) -> None:
    """It ends before anything runs."""
    result = run(made, *arguments)

    result.stderr.fnmatch_lines([text])
    assert result.ret == EXIT_USAGE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "many"], "*--world-size (ini: distbench_world_size): 'many'; wanted a number of ranks*"),
        (["--world-size", "0"], "*--world-size (ini: *): '0'; wanted a number of ranks*"),
        (["--world-size", "100000", "--distbench-launcher=warm"], "*: at most * ranks can run here (32 a core*"),
        (["--distbench-backend", "glo"], "*distbench-backend*'glo'; wanted one or more of gloo, nccl*"),
        (["--distbench-backend", "gloo,fake"], "*fake has no timings, and baselines of its own*without gloo*"),
        (["--distbench-backend", "fake:x"], "*distbench-backend*'fake:x'; wanted one or more of*fake:RANK *"),
        (["--distbench-backend", "fake:2"], "*distbench-backend*: fake:2: the largest group has 2 ranks: 0 to 1*"),
        (["--distbench-backend", "gloo:3"], "*distbench-backend*'gloo:3'; wanted one or more of*fake:RANK *"),
        (["--distbench-backend", "fake:1,fake:2"], "*distbench-backend*'fake:1,fake:2'; wanted one or more of*"),
        (["--distbench-backend", "fake:63", "--distbench-against", "HEAD"], "*no timings*distbench compare*"),
        (["--distbench-launcher", "mpirun"], "*distbench-launcher*'mpirun'; wanted one of warm, torchrun, *stand-in*"),
        (["--distbench-launcher", ""], "*--distbench-launcher *is empty: is the variable it comes from set?*"),
        (["--distbench-update", "sometimes"], "*distbench-update*'sometimes'; wanted one of new, failed, *"),
        (["--distbench-no-baseline", "shrug"], "*distbench-no-baseline*'shrug'; wanted one of warn, fail, skip*"),
        (
            ["--distbench-timeout", "soon"],
            "*distbench-timeout*'soon'; wanted a finite number of at least 0.1, at most 604800*",
        ),
        (["--distbench-launches", "-1"], "*distbench-launches*'-1'; wanted N, N:MAX or :MAX, such as 5 or 5:20, *"),
        (["--distbench-launches", "5:1001"], "*'5:1001'; wanted N, N:MAX or :MAX, *from 1 to 1000 and N at most MAX"),
        (["--distbench-launches", "0:3"], "*'0:3'; wanted N, *"),
        (["--distbench-launches", ":"], "*':'; wanted N, *"),
        (["--distbench-confirm", "never"], "*'never'; wanted one of auto, always, off, or auto:300 *"),
        (
            ["--distbench-confirm", "auto:soon"],
            "*-confirm (ini: *): 'auto:soon'; wanted *, or auto:300 or always:300 for 300 s *",
        ),
        (["--distbench-confirm", "off:60"], "*'off:60'; wanted one of auto, *"),
        (["--distbench-tolerance", "10"], "*distbench-tolerance*'10'; wanted a fraction from 0 to 5*"),
        (["--distbench-control", "0"], "*--distbench-control: '0'; wanted a number above 0 and at most 5*"),
        (["--distbench-control=-0.1"], "*--distbench-control: '-0.1'; wanted*"),
        (["--distbench-control=6"], "*--distbench-control: '6'; wanted*"),
        (["--distbench-control=nan"], "*--distbench-control: 'nan'; wanted*"),
        (["--distbench-control=much"], "*'much'; wanted*or nothing, for a third more than each case's tolerance*"),
        (["--distbench-control", "test_it.py"], "*took 'test_it.py' for its value*: write the tests first*"),
        (["--distbench-control", "--distbench-update"], "*nothing is a baseline: leave out --distbench-update*"),
        (["--distbench-control", "--distbench-against=HEAD"], "*leave out --distbench-against*"),
        (["--distbench-control", "--distbench-attach=0"], "*leave out --distbench-attach*"),
        (["--distbench-control", "--distbench-prune"], "*leave out --distbench-prune*"),
        (
            ["--distbench-control", "--distbench-backend=fake"],
            "*that backend has none: leave out --distbench-backend fake*",
        ),
        (
            ["--distbench-trace=slow"],
            "*distbench-trace*'slow'; wanted one of regressed, all, regressed:ranks, all:ranks*",
        ),
        (["--distbench-trace", "test_it.py"], "*took 'test_it.py' for its value, which is one of regressed*"),
        (["--distbench-trace", "--distbench-backend=fake:-1"], "*has no timings: leave out --distbench-backend fake*"),
        (["--distbench-platform", "../x"], "*'../x' is not a usable name*"),
        (["--distbench-max-message", "big"], "*--distbench-max-message*'big' is not a size*"),
        (["--distbench-json", "."], "*--distbench-json*is a folder*"),
        (["--distbench-experiment", "none.toml"], "*none.toml: cannot read: No such file*explain experiment*"),
        (["--distbench-experiment", ""], "*--distbench-experiment*is empty: is the variable it comes from set*"),
        (["--distbench-baselines", "test_it.py"], "*test_it.py is not a folder*"),
        (["--distbench-backend=gloo,"], "*--distbench-backend (ini: *): *; wanted one or more of gloo, *"),
        (["--distbench-backend=gloo,nope"], "*distbench-backend*; wanted one or more of gloo, nccl*"),
        (["--distbench-share=gpu"], "*--distbench-share (ini: *it shares GPUs*: give --gpu too*"),
        (["--distbench-share=gpu,host"], "*--distbench-share (ini: *it shares GPUs*: give --gpu too*"),
        (["--gpu", "--distbench-share=disk"], "*--distbench-share*'disk'; wanted one of gpu, host, gpu,host*"),
        (
            ["--gpu", "--distbench-share=gpu,host", "--distbench-update"],
            "*--distbench-update*record no baselines: leave out --distbench-share gpu*",
        ),
        (
            ["-o", "distbench_adresses=true"],
            "*-o distbench_adresses: *no such ini key; did you mean distbench_addresses?",
        ),
        (["-o", "distbench_numa_binding=node"], "*-o distbench_numa_binding: *near their GPUs: give --gpu too*"),
        (["-o", "distbench_numa_binding="], "*-o distbench_numa_binding is empty: is the variable*"),
        (
            ["--gpu", "-o", "distbench_numa_binding=near"],
            "*-o distbench_numa_binding: 'near'; wanted one of node, socket, excl*",
        ),
        (["--distbench-attach=2"], "*--distbench-attach*there is no rank 2: the largest group has 2 ranks*"),
        (["--distbench-attach=-1"], "*--distbench-attach*'-1'; wanted a whole number*"),
        (["--distbench-attach=0", "--distbench-update"], "*a debugged run measures nothing*"),
        (["--distbench-attach=0", "-n2"], "*with -n nobody has the terminal*"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_names_it(
    project: Project, gpus: Callable[[int], None], arguments: list[str], message: str
) -> None:
    """On a machine with one GPU."""
    gpus(1)
    made = project(TEST)

    refused(made, message, *arguments)
    assert stored(made) == []


def test_without_a_gpu_there_is_no_run_on_gpus(project: Project) -> None:
    refused(project(TEST), "*--gpu: no GPU: there is no NVIDIA driver*Run on a machine with GPUs, or *", "--gpu")


def test_a_wrong_value_in_the_ini_file_is_one_usage_error_that_names_its_key(project: Project) -> None:
    made = project(TEST)
    made.makeini("[pytest]\ndistbench_launcher = stand-in\ndistbench_no_baseline = shrug\n")
    result = run(made)

    text = "--distbench-no-baseline (ini: distbench_no_baseline): 'shrug'; wanted one of warn, fail, skip"
    assert result.stderr.lines == [f"ERROR: {text}", ""]
    assert "UsageError" not in result.stdout.str()
    assert result.ret == EXIT_USAGE

    on_workers = run(made, "-n", "1")
    on_workers.stdout.fnmatch_lines(["*'shrug'; wanted one of warn, fail, skip*"])
    assert on_workers.ret != 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("numa_binding = near", "*ERROR: distbench_numa_binding in tox.ini: 'near'; wanted one of node, *"),
        ("against_python = a/b", "*ERROR: distbench_against_python = */a/b: cannot run */a/b: No such file*"),
        ("against_tolerance = 9", "*ERROR: distbench_against_tolerance in tox.ini: '9'; wanted a fraction *"),
    ],
)
def test_a_key_that_has_no_option_is_named_with_its_file(
    project: Project, gpus: Callable[[int], None], line: str, message: str
) -> None:
    gpus(1)
    made = project(TEST)
    made.makeini(f"[pytest]\ndistbench_launcher = stand-in\ndistbench_gpu = true\ndistbench_{line}\n")

    run(made, "--distbench-against=HEAD" if "tol" in line else "-q").stderr.fnmatch_lines([message])


def test_what_the_ini_file_says_for_gpus_does_not_disturb_a_run_without(project: Project) -> None:
    made = project(TEST)
    made.makeini("[pytest]\ndistbench_launcher = stand-in\ndistbench_numa_binding = node\ndistbench_share = host\n")

    run(made, "--distbench-update").assert_outcomes(passed=1)


def test_a_row_of_the_table_is_an_option_and_a_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Option("a number", name="mine", metavar="N", group=ADVANCED, default=1, wanted=FRACTION)
    monkeypatch.setitem(OPTIONS, "mine", row)
    made = project("""
        from pytest_distbench.plugin.fixtures import settings_of
        from pytest_distbench.records.options import OPTIONS

        def test_it(distbench, request):
            assert settings_of(request.config).of(OPTIONS["mine"]) == 0.5
    """)

    run(made, "--distbench-mine=0.5").assert_outcomes(passed=1)
    made.makeini("[pytest]\ndistbench_launcher = stand-in\ndistbench_mine = 50 %\n")
    run(made).assert_outcomes(passed=1)
    run(made, "--distbench-mine=many").stderr.fnmatch_lines(["*--distbench-mine (ini: *): 'many'; wanted a fraction*"])


def test_there_are_no_more_options_and_keys_than_a_reader_can_take_in() -> None:
    assert (
        sum(bool(option.group) for option in OPTIONS.values()) <= 31
    )  # whose tests judge is no setting of an ini file
    assert len(OPTIONS) <= 38


def test_a_torch_that_ranks_cannot_use_is_a_usage_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "installed_version", lambda package: "2.4.1")

    refused(project(TEST), "*torch 2.4.1; ranks need * or later: pip install *", "--distbench-launcher=warm")


def test_ini_keys_are_read(project: Project) -> None:
    made = project(TEST)
    made.makeini("[pytest]\ndistbench_launcher = stand-in\ndistbench_world_size = 3\ndistbench_no_baseline = fail\n")

    run(made).stdout.fnmatch_lines(["*test_step?ws3?*no baseline*"])


def test_the_world_size_is_the_number_of_gpus(project: Project, gpus: Callable[[int], None]) -> None:
    gpus(3)
    result = run(project(TEST), "--gpu", "-v")

    told = ["distbench *: world size 3, nccl, *, 3 GPUs (NVIDIA H100 80GB HBM3)*", "*test_step?ws3? NEW*"]
    result.stdout.fnmatch_lines(told)
    assert result.ret == 0


MANY_HOSTS = """
    from pytest_distbench.launch.starters import LAUNCHERS, LauncherKind
    from pytest_distbench.testing import StandInLauncher

    LAUNCHERS["far"] = LauncherKind(help="", make=lambda setup: StandInLauncher(setup.session), hosts="many")
"""


def test_ranks_of_other_hosts_need_no_gpu_and_no_core_of_this_one_and_wait_for_nobody_here(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_S", 0.0)
    made = project(TEST)
    made.makeconftest(MANY_HOSTS)
    with alone_on_this_host(on_wait=lambda told: None):
        result = run(made, "--distbench-launcher=far", "--gpu", "--world-size=100000", "--collect-only")
        measured = run(made, "--distbench-launcher=far", "--gpu", "--world-size=3", "--distbench-no-baseline=warn")

    result.assert_outcomes()
    assert (result.ret, measured.ret) == (0, 0)
    measured.assert_outcomes(passed=1)


def test_a_rank_of_another_host_cannot_have_the_terminal(project: Project) -> None:
    made = project(TEST)
    made.makeconftest(MANY_HOSTS)
    text = "*distbench-attach*launcher far the ranks live on other hosts, which have no terminal*"

    refused(made, text, "--distbench-launcher=far", "--distbench-attach=0")


def test_a_folder_of_traces_that_cannot_be_made_is_a_usage_error(project: Project) -> None:
    made = project(TEST)
    (made.path / ".distbench").touch()
    text = "*distbench-trace*its files go to */.distbench/traces, and *is no folder: give *"

    refused(made, text, "--distbench-trace")


def test_a_conftest_with_the_same_option_is_a_usage_error_with_the_way_out(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('def pytest_addoption(parser):\n    parser.addoption("--gpu", action="store_true")\n')
    pytester.makepyfile("def test_step(distbench): pass")
    pytester.makeini("[pytest]\n")
    text = "*--gpu: a conftest.py of this project already defines it*distbench_short_options = false*--distbench-gpu*"

    refused(pytester, text)


def test_such_a_conftest_keeps_its_option_where_nothing_is_ours_or_the_ini_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest('def pytest_addoption(parser):\n    parser.addoption("--gpu", action="store_true")\n')
    pytester.makepyfile("def test_plain(request): assert request.config.option.gpu")
    assert run(pytester, "--gpu").ret == 0

    pytester.makeini("[pytest]\ndistbench_short_options = false\n")
    pytester.makepyfile(test_ours="def test_ours(distbench): assert distbench.world_size == 3")
    assert run(pytester, "--gpu", "--distbench-world-size=3").ret == 0


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_has_two_groups_of_options_and_two_lines_for_each_option_and_key(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    groups = re.split(r"^(?=\w)", run(pytester, "--help").stdout.str(), flags=re.MULTILINE)
    found = [re.findall(r"^  (-?\S*distbench\S*)(.*\n(?:   .*\n)*)", group, re.MULTILINE) for group in groups]
    [basic, advanced, keys] = filter(None, found)

    assert [group.partition("\n")[0] for group in groups if "  --distbench-" in group] == [f"{BASIC}:", f"{ADVANCED}:"]
    of_extensions = sum(not option.field for option in OPTIONS.values())
    assert (len(basic), len(advanced), len(keys)) == (15, 13 + of_extensions, len(OPTIONS) - 4)
    assert [name for name, text in [*basic, *advanced, *keys] if text.rstrip().count("\n") > 1] == []

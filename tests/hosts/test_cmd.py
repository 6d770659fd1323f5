"""A command of the user's: its template, and what it is filled with."""

from __future__ import annotations

import socket

import pytest
from support.engine import TEMPLATE
from support.projects import EXIT_USAGE, TEST, Project, run, stored

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.hosts.calls import as_torchrun, check_engine, fill, fill_hosts, ranks_per_node
from pytest_distbench.hosts.relay import Caller


@pytest.mark.parametrize(
    ("template", "wrong"),
    [
        ("sh {node} {nodes} {command}", "there is no {node};"),
        ("sh start.sh {nodes}", "{command} or {torchrun} is missing;"),
        ("sh start.sh {command}", "{nodes} is missing;"),
        ("sh -c '{nodes} {command}", "No closing quotation;"),
        ("no-such-engine {nodes} {command}", "there is no program 'no-such-engine' on this host;"),
        ("sh {nodes:0} {command}", "{nodes} is missing;"),
        ("sh {nodes} {command:8}", "{command} or {torchrun} is missing;"),
        ("sh {nodes:2} {nodes:3} {command}", "{nodes:...} has two numbers;"),
    ],
)
def test_a_template_that_could_start_nothing_is_refused(template: str, wrong: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"wanted a program .* \{nodes\}, and .*\{ranks\} \(number of ranks\)"
    ) as told:
        check_engine(template)
    assert f": {wrong}" in str(told.value)


def test_a_template_may_have_braces_of_its_own() -> None:
    check_engine("sh -o jsonpath={.items} {nodes} {command}")
    check_engine(TEMPLATE)
    assert ranks_per_node("sh start.sh {nodes} {torchrun}") == 1


def test_a_template_says_how_many_ranks_a_host_is_filled_with() -> None:
    engine = "sh start.sh {nodes:8} {nodes} {command}"

    assert ranks_per_node(engine) == 8
    assert fill(engine, nodes=2, words=["x"], variables={})[2:4] == ["2", "2"]


def test_what_runs_on_each_host_carries_its_variables_as_words_or_as_one_word_of_a_shell() -> None:
    filled = fill(
        "run -n {ranks} -N {ranks_per_node} --hosts={nodes:4} sh -c 'exec {command}' -- {command}",
        nodes=2,
        words=["python", "-m", "x"],
        variables={"A": "/b:/c"},
    )

    command = ["/usr/bin/env", "A=/b:/c", "python", "-m", "x"]
    assert filled == ["run", "-n", "8", "-N", "4", "--hosts=2", "sh", "-c", f"exec {' '.join(command)}", "--", *command]


def test_hosts_are_filled_one_after_the_other() -> None:
    assert fill_hosts(5, 2) == [range(2), range(2, 4), range(4, 5)]
    assert fill_hosts(2, 4) == [range(2)]


def test_hosts_under_torchrun_are_ordered_as_its_rendezvous_does() -> None:
    """torchrun orders hosts by the texts of their addresses, so that ranks are found where they are."""
    callers = [Caller(secret="", host=f"n{i}", address=f"10.0.0.{i}", port=1) for i in (2, 9, 10)]
    with socket.socket() as line:
        ordered = as_torchrun([(line, caller) for caller in callers])

    assert [caller.host for _, caller in ordered] == ["n10", "n2", "n9"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--distbench-launcher", "cmd"], "*--distbench-launcher *: 'cmd'; wanted *, such as 'mpirun -np {nodes} *"),
        (["--distbench-launcher", "sh {x}"], "*'sh {x}': there is no {x}, {nodes} is missing, *wanted a program of *"),
        (
            ["--distbench-launcher", "sh {nodes:2} {nodes:3} {command}"],
            "*wanted a program*{nodes:8}: each is filled with 8*",
        ),
        (
            ["--distbench-launcher=sh {nodes} {command}", "-o", "distbench_against_python=python"],
            "*ranks under cmd run the Python of pytest; take another launcher*",
        ),
        (["--distbench-network="], "*--distbench-network * is empty: is the variable it comes from set?"),
        (["--distbench-network=1gbit,dely=1ms"], "*network '1gbit,dely=1ms': there is no 'dely'; wanted *"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_names_it(project: Project, arguments: list[str], message: str) -> None:
    made = project(TEST)
    result = run(made, *arguments)

    result.stderr.fnmatch_lines([message])
    assert result.ret == EXIT_USAGE
    assert stored(made) == []


def test_a_command_of_the_ini_file_gives_way_to_a_launcher_that_is_named(project: Project) -> None:
    made = project(TEST)
    made.makeini("[pytest]\ndistbench_launcher = sh -c 'exit 3' {nodes} {command}\n")
    named, implied = run(made, "--distbench-launcher=stand-in"), run(made)

    named.assert_outcomes(passed=1)
    implied.stderr.fnmatch_lines(["ERROR: the hosts of --distbench-launcher do not*sh has ended (exit code 3)*"])
    assert implied.ret == EXIT_USAGE


def test_a_network_that_cannot_be_ends_the_run_before_anything_is_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.network("1gbit", dealy="1ms")
        def test_a(distbench):
            pass

        @pytest.mark.network("fast")
        def test_b(distbench):
            pass
        """
    )
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "*@pytest.mark.network: unknown keyword dealy; known are: delay, loss, *label. If the marker is not ours*",
            "*@pytest.mark.network: network 'fast': rate='fast'; wanted a rate of 10mbit to 1000gbit or 'unlimited'*",
        ]
    )

"""A command of the user's: its template, and what it is filled with."""

from __future__ import annotations

import socket

import pytest
from support.engine import TEMPLATE

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.hosts.calls import Connection
from pytest_distbench.hosts.cmd import as_torchrun, engine_of, fill, layout
from pytest_distbench.hosts.relay import Hello
from pytest_distbench.launch.starters import Engine


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
        engine_of(template)
    assert f": {wrong}" in str(told.value)


def test_a_template_may_have_braces_of_its_own() -> None:
    engine_of("sh -o jsonpath={.items} {nodes} {command}")
    engine_of(TEMPLATE)
    assert engine_of("sh start.sh {nodes} {torchrun}").ranks_per_node == 1


def test_a_template_says_how_many_ranks_a_host_is_filled_with() -> None:
    engine = engine_of("sh start.sh {nodes:8} {nodes} {command}")

    assert engine.ranks_per_node == 8
    assert fill(engine.template, nodes=2, engine=engine, words=["x"], variables={})[2:4] == ["2", "2"]


def test_what_runs_on_each_host_carries_its_variables_as_words_or_as_one_word_of_a_shell() -> None:
    filled = fill(
        "run -n {ranks} -N {ranks_per_node} --hosts={nodes} sh -c 'exec {command}' -- {command}",
        nodes=2,
        engine=Engine(template="", ranks_per_node=4),
        words=["python", "-m", "x"],
        variables={"A": "/b:/c"},
    )

    command = ["/usr/bin/env", "A=/b:/c", "python", "-m", "x"]
    assert filled == ["run", "-n", "8", "-N", "4", "--hosts=2", "sh", "-c", f"exec {' '.join(command)}", "--", *command]


def test_hosts_are_filled_one_after_the_other() -> None:
    assert layout(5, 2) == [range(2), range(2, 4), range(4, 5)]
    assert layout(2, 4) == [range(2)]


def test_hosts_under_torchrun_are_ordered_as_its_rendezvous_does() -> None:
    """By the texts of their addresses: so the ranks are where they are looked for."""
    hellos = [Hello(secret="", host=f"n{i}", address=f"10.0.0.{i}", port=1) for i in (2, 9, 10)]
    with socket.socket() as line:
        ordered = as_torchrun([Connection(line, hello) for hello in hellos])

    assert [relay.said.host for relay in ordered] == ["n10", "n2", "n9"]

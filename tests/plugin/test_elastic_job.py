"""The fixture ``elastic``: what it refuses, before anything is started."""

from __future__ import annotations

import pytest
from support.projects import Project, run

TEST = """
    from pytest_distbench.elastic import cycle, join, kill, leave, stop

    def body(rank):
        pass

    def test_it(elastic):
        elastic({call})
"""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("body, nodes=0", "*elastic: nodes=0; wanted a whole number of at least 1*test_it.py:7*"),
        ("body, nodes=(2, 1)", "*elastic: nodes=1; wanted a whole number of at least 2*"),
        ("body, nodes=(1, 2, 3)", "*elastic: nodes=(1, 2, 3); wanted a number, or the fewest and the most*"),
        ("body, nodes=2, plan='cycle'", "*plan='cycle'; wanted cycle(...), or a list of join(...)*"),
        ("body, nodes=2, plan=[3]", "*plan=[[]3]; wanted cycle(...), or a list of join(...)*"),
        (
            "body, nodes=(1, 2), plan=leave(at_s=1, nodes=2)",
            "*plan: leave(at_s=1, nodes=2): of 2 nodes 0 would be left*",
        ),
        ("body, nodes=2, plan=join(at_s=1)", "*plan: join(at_s=1): 2 nodes and 1 more are 3, and there are 2 slots*"),
        ("body, nodes=2, plan=[stop(at_s=3, for_s=1), stop(at_s=1, for_s=1)]", "*it would be in the past then*"),
        ("body, nodes=(1, 2), start=3", "*start=3; wanted a whole number of at least 1 and at most 2*"),
        ("body, nodes=2, engine='fast'", "*engine='fast'; wanted one of stock*"),
        ("body, nodes=2, timers={'last_call_s': 0}", "*timers['last_call_s']=0; wanted a whole number of at least 1*"),
        ("body, nodes=2, timers={'heartbeat': 3}", "*unknown keyword heartbeat; known are last_call_s, *"),
        ("body, nodes=2, checkpoint_every=0", "*checkpoint_every=0; wanted a whole number of at least 1*"),
        ("len, nodes=2", "*body <built-in function len> is a *"),
    ],
)
def test_what_cannot_be_is_refused_with_the_tests_line(project: Project, call: str, message: str) -> None:
    result = run(project(TEST.replace("{call}", call)))

    result.stdout.fnmatch_lines([message.replace(";", "?").replace("['", "[[]'")])
    assert result.ret == 1


def test_more_nodes_than_ranks_are_not_run(project: Project) -> None:
    result = run(project(TEST.replace("{call}", "body, nodes=(1, 3)")), "-rs")

    result.stdout.fnmatch_lines(["*not run: needs 3 nodes, 2 ranks given*"])


def test_a_script_is_no_elastic_body(project: Project) -> None:
    made = project(TEST.replace("{call}", "'train.py', nodes=2"))
    made.makepyfile(train="")

    run(made).stdout.fnmatch_lines(["*an elastic body is a function that takes the rank, or 'file.py::function'*"])

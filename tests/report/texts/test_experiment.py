"""What was stated of an experiment, and is of nothing in its run."""

from __future__ import annotations

from support.results import result

from pytest_distbench.records.experiment import Experiment, Statement
from pytest_distbench.report.texts.experiment import idle_lines

TESTS = ["suites/test_a.py::test_a", "suites/test_b.py::test_b"]


def test_a_pattern_of_no_test_and_a_plan_for_what_there_is_not_are_told() -> None:
    stated = Experiment(
        statements=[Statement(of="test_resnet*", fields={"storage": "COS"})],
        planned={"tourch": "the next release"},
    )

    assert [line.text.partition("; wanted ")[::2] for line in idle_lines(stated, [result()], TESTS)] == [
        (
            "? distbench_experiment: [test.'test_resnet*'] is of no test of this run",
            "a name or pattern such as test_a or suites/test_a.py::test_a",
        ),
        (
            "? distbench_experiment: [planned] tourch: the environment of this run has nothing of that name",
            "one of platform, device, cores, torch",
        ),
    ]


def test_what_is_of_a_test_that_ran_or_was_skipped_is_told_nothing() -> None:
    stated = Experiment(
        statements=[Statement(fields={"cluster": "a"}), Statement(of="*test_b", fields={"storage": "COS"})],
        planned={"cores": "8"},
    )

    assert idle_lines(stated, [result()], TESTS) == []

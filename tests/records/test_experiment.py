"""What was stated of an experiment, and of which tests."""

from __future__ import annotations

from pytest_distbench.records.experiment import Experiment, Statement

STATED = Experiment(
    statements=[
        Statement(fields={"cluster": "Cruiser10", "storage": "local"}),
        Statement(of="test_resnet*", fields={"storage": "COS", "expected": "220 images/s"}),
        Statement(of="suites/a.py::test_resnet50", fields={"expected": "440 images/s"}),
    ]
)


def test_the_later_statement_of_a_test_counts_field_by_field() -> None:
    assert STATED.stated("suites/b.py::test_vgg") == {"cluster": "Cruiser10", "storage": "local"}
    assert STATED.stated("b.py::TestA::test_resnet") == {
        "cluster": "Cruiser10", "storage": "COS", "expected": "220 images/s",
    }  # fmt: skip
    assert STATED.stated("suites/a.py::test_resnet50")["expected"] == "440 images/s"

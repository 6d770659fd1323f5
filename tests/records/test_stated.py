"""What people write down beside what a run measures: prices of machines, and an experiment."""

from __future__ import annotations

from datetime import date

import pytest

from pytest_distbench.records.environment import Experiment, Machine, Prices, Statement

T4 = Machine(name="n1-standard-4", per_hour={"regular": 0.5592, "preemptible": 0.154}, ranks_per_node=1)


def test_a_cost_is_nodes_times_hours_times_the_price_of_the_first_machine_of_its_class() -> None:
    # MLBench task 1a on one GPU: 407 s
    assert T4.cost("regular", ranks=1, seconds=407) == pytest.approx(0.5592 * 407 / 3600)
    assert T4.cost("preemptible", ranks=4, seconds=7200) == pytest.approx(0.154 * 4 * 2)

    assert (
        Machine(name="a", per_hour={"preemptible": 2.0}, ranks_per_node=8).cost("regular", ranks=1, seconds=1) is None
    )

    machines = [
        Machine(name=name, per_hour={"regular": 1.0}, ranks_per_node=1, platforms=platforms)
        for name, platforms in {"intel": ["cpu-intel-*"], "two": ["cpu-x-2c", "cpu-y-2c"], "cpu": ["cpu-*"]}.items()
    ]
    prices = Prices(currency="USD", date=date(2020, 10, 5), source="a page", machines=machines)
    found = [prices.machine(platform) for platform in ("cpu-intel-xeon-2c", "cpu-y-2c", "cpu-z", "nvidia-t4")]
    assert [machine and machine.name for machine in found] == ["intel", "two", "cpu", None]


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (8, 1), (9, 2), (16, 2)])
def test_a_node_that_is_begun_is_paid_whole(ranks: int, nodes: int) -> None:
    assert Machine(name="a", per_hour={"regular": 2.0}, ranks_per_node=8).nodes(ranks) == nodes


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

"""The record of a run: what it measured and said, on what, and what people state about it; and what is stored."""

from __future__ import annotations

from datetime import date

import msgspec
import pytest
from support.cases import ON_TWO
from support.plans import BODY
from support.results import point, result, verdict

from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.environment import Experiment, Gpu, Load, Machine, Prices
from pytest_distbench.records.plan import Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Control, number_hosts, told_apart


def test_names_of_cases_and_kinds_are_the_shortest_that_differ() -> None:
    assert (point(4096).metric, point(4096).name) == ("latency[message_bytes=4096]", "latency")

    with pytest.raises(ValueError, match=r"'worse'.*beyond-threshold"):
        verdict("worse")

    codes = ["beyond-threshold", "bound", "noise", "low-power", "within-threshold", "no-baseline"]
    control = Control(verdicts=[verdict(code, metric=code) for code in codes])
    assert [v.metric for v in control.found] == ["beyond-threshold", "bound"]

    told = told_apart([of("a.py::test_it", "ws2"), of("a.py::test_it", "ws4"), of("a.py::test_it", "ws2")])
    assert [r.case.title for r in told] == ["test_it[ws2]", "test_it[ws4]", "test_it[ws2]"]

    told = told_apart([of("a.py::test_it"), of("b.py::test_it", "x-ws4")])
    assert [r.case.series for r in told] == ["a.py::test_it[x]", "b.py::test_it[x]"]


def of(test: str, case_id: str = "ws2") -> CaseResult:
    made = result(nodeid=f"{test}[{case_id}]")
    return replace(made, case=replace(made.case, test=test, id=case_id, family="x"))


@pytest.mark.parametrize(
    ("tests", "titles"),
    [
        (["a/test_x.py::test_it", "a/test_y.py::test_other"], ["test_it[ws2]", "test_other[ws2]"]),
        (["test_x.py::test_it", "test_y.py::test_it"], ["test_x.py::test_it[ws2]", "test_y.py::test_it[ws2]"]),
        (["a/test_x.py::test_it", "b/test_x.py::test_it"], ["a/test_x.py::test_it[ws2]", "b/test_x.py::test_it[ws2]"]),
        (["test_x.py::test_it", "b/test_x.py::test_it"], ["test_x.py::test_it[ws2]", "b/test_x.py::test_it[ws2]"]),
        (
            ["p/q/test_x.py::A::test_it", "p/r/test_x.py::A::test_it", "p/r/test_z.py::A::test_it", "z.py::test_it"],
            ["q/test_x.py::A::test_it[ws2]", "r/test_x.py::A::test_it[ws2]", "test_z.py::A::test_it[ws2]",
             "test_it[ws2]"],
        ),
    ],
)  # fmt: skip
def test_titles_of_equal_test_names_have_a_part_of_the_path(tests: list[str], titles: list[str]) -> None:
    told = told_apart([of(test) for test in tests])

    assert [r.case.title for r in told] == titles
    assert [r.case.test for r in told] == tests


FAKE = replace(ON_TWO, backend="fake", fake_rank=1)


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({}, "gloo.warm"),
        ({"id": "x-ws2"}, "x-ws2.gloo.warm"),
        ({"id": "ws2", "run": "one"}, "ws2:one.gloo.warm"),
        ({"id": "ws4", "run": "one", "names_size": True}, "ws4:one@ws2.gloo.warm"),
        ({"id": "ws4", "names_size": True}, "ws4:@ws2.gloo.warm"),
        ({"id": "ws2", "conditions": FAKE}, "ws2:@rank1.fake.warm"),
        ({"id": "ws2", "conditions": replace(FAKE, fake_rank=0)}, "ws2.fake.warm"),
        ({"id": "ws2", "run": "one", "names_size": True, "conditions": FAKE}, "ws2:one@ws2@rank1.fake.warm"),
        (
            {"id": "ws2", "conditions": replace(ON_TWO, around={"network": "wan", "load": "busy"})},
            "ws2:@load=busy@network=wan.gloo.warm",
        ),
    ],
)
def test_a_key_is_made_of_the_id_the_run_and_the_conditions(parts: dict[str, object], key: str) -> None:
    made = Case(**{"test": "t.py::t", "conditions": ON_TWO, "device": "cpu"} | parts)  # type: ignore[arg-type]

    assert made.key.removeprefix(".") == key


def test_a_workload_is_apart_from_backend_and_launcher_and_a_series_from_its_world_size() -> None:
    # Stored entries carry it: what it is made of must not change
    case = Case(test="t", id="x-ws2", conditions=ON_TWO, device="cpu", params={"b": [1, 2.5], "a": "x"})
    other = replace(case, conditions=replace(ON_TWO, backend="nccl", launcher="torchrun"))
    assert case.workload == "c6b2b44a" == other.workload

    conditions = Conditions(world_size=2, backend="gloo", launcher="warm", kind=Ranks(body=BODY).kind)
    stored = {"world_size": 2, "backend": "gloo", "launcher": "warm"}
    assert msgspec.json.decode(msgspec.json.encode(conditions)) == stored

    made = Case(test="t.py::t", id="x-ws2", family="x", run="warm", conditions=ON_TWO, device="cpu")
    assert made.series == replace(made, id="x-ws4", conditions=replace(ON_TWO, world_size=4)).series == "t[x:warm]"
    assert replace(made, id="ws2", family="", run="").series == "t"


def test_a_label_is_what_nvidia_smi_shows() -> None:
    assert Gpu(name="X", uuid="GPU-1", index=3).label == "GPU 3"
    assert Gpu(name="X", uuid="MIG-123456789", index=3, slice_of="G").label == "the MIG slice MIG-12345678 of GPU 3"


@pytest.mark.parametrize(
    ("limit", "default", "is_capped"), [(700.0, 700.0, False), (500.0, 700.0, True), (None, 700.0, False)]
)
def test_a_card_is_capped_below_its_default(limit: float | None, default: float, is_capped: bool) -> None:
    assert Gpu(name="X", uuid="G", power_limit_w=limit, default_power_limit_w=default).is_capped is is_capped


def load(**changes: float) -> Load:
    """Two ranks that compute all the time on two cores, for 10 s, as far as others let them."""
    usual = {"wall_s": 10.0, "cpus": 2, "busy_s": 20.0, "own_s": 20.0, "ran_s": 20.0, "waited_s": 0.0}
    return Load(**{**usual, **changes})


def test_foreign_cores_are_those_the_launch_did_not_use_and_unknown_for_a_short_body() -> None:
    assert load(wall_s=2.0, busy_s=4.0, own_s=2.0).foreign_cores == 1.0
    assert load(own_s=21.0).foreign_cores == 0.0

    short = load(wall_s=0.04)
    assert (short.foreign_cores, short.foreign_wanted, short.crowding) == (None, None, None)


def test_others_delay_what_wants_a_cpu_by_their_share_and_the_hosts() -> None:
    assert load().crowding == 1.0

    # A fifth of the cores is left; the cores in use, all of them, would say the same beside two
    crowded = load(own_s=4.0, ran_s=4.0, waited_s=16.0)
    assert crowded.foreign_cores == 1.6
    assert crowded.foreign_wanted == pytest.approx(8.0)
    assert crowded.crowding == pytest.approx(5.0)

    # A body that sleeps beside one busy loop; then its two helpers compute, and the loop has two thirds of a core
    sleeps = load(busy_s=10.1, own_s=0.1, ran_s=0.1, waited_s=0.0)
    helped = load(own_s=13.3, ran_s=13.3, waited_s=6.7)
    assert sleeps.foreign_wanted == pytest.approx(1.0)
    assert helped.foreign_wanted == pytest.approx(1.0, abs=0.02)

    # Two ranks and two helpers they started compute on two cores; then the same beside four others
    assert load(own_s=20.0, ran_s=20.0, waited_s=20.0).crowding == pytest.approx(1.0)
    assert load(own_s=10.0, ran_s=10.0, waited_s=30.0).crowding == pytest.approx(2.0)

    # It computes a hundredth of the time, and waits for a CPU five times as long as it computes
    assert load(own_s=0.1, ran_s=0.1, waited_s=0.5).crowding == pytest.approx(10 / 9.5)

    assert load(own_s=10.0, ran_s=10.0, stolen_s=10.0).crowding == pytest.approx(2.0)

    assert load(ran_s=0.0).crowding is None


T4 = Machine(name="n1-standard-4", regular=0.5592, preemptible=0.154, ranks_per_node=1)


def test_a_cost_is_nodes_times_hours_times_the_price_of_the_first_machine_of_its_class() -> None:
    # MLBench task 1a on one GPU: 407 s
    assert T4.cost("regular", ranks=1, seconds=407) == pytest.approx(0.5592 * 407 / 3600)
    assert T4.cost("preemptible", ranks=4, seconds=7200) == pytest.approx(0.154 * 4 * 2)

    assert Machine(name="a", preemptible=2.0, ranks_per_node=8).cost("regular", ranks=1, seconds=1) is None

    listed = {"intel": ["cpu-intel-*"], "two": ["cpu-x-2c", "cpu-y-2c"], "cpu": ["cpu-*"]}
    machines = {name: Machine(regular=1.0, ranks_per_node=1, platforms=found) for name, found in listed.items()}
    prices = Prices(currency="USD", date=date(2020, 10, 5), source="a page", listed=machines)
    found = [prices.machine(platform) for platform in ("cpu-intel-xeon-2c", "cpu-y-2c", "cpu-z", "nvidia-t4")]
    assert [machine and machine.name for machine in found] == ["intel", "two", "cpu", None]


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (8, 1), (9, 2), (16, 2)])
def test_a_node_that_is_begun_is_paid_whole(ranks: int, nodes: int) -> None:
    assert Machine(name="a", regular=2.0, ranks_per_node=8).nodes(ranks) == nodes


STATED = Experiment(
    statements={
        "": {"cluster": "Cruiser10", "storage": "local"},
        "test_resnet*": {"storage": "COS", "expected": "220 images/s"},
        "suites/a.py::test_resnet50": {"expected": "440 images/s"},
    }
)


def test_the_later_statement_of_a_test_counts_field_by_field() -> None:
    assert STATED.stated("suites/b.py::test_vgg") == {"cluster": "Cruiser10", "storage": "local"}
    assert STATED.stated("b.py::TestA::test_resnet") == {
        "cluster": "Cruiser10", "storage": "COS", "expected": "220 images/s",
    }  # fmt: skip
    assert STATED.stated("suites/a.py::test_resnet50")["expected"] == "440 images/s"


def test_hosts_are_numbered_in_the_order_of_the_ranks() -> None:
    made = result(verdict())
    launch = made.launches[0]
    named = replace(made, launches=[replace(launch, hosts=["gpu7", "gpu7", "gpu2", "gpu2"]), launch])

    assert [launch.hosts for launch in number_hosts(named).launches] == [["host0", "host0", "host1", "host1"], []]

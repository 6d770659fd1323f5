"""What trainings consist of, what a run, a goal and a throughput cost by world size, and what made it so."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from support.results import result, run

from pytest_distbench.commands.cli import main
from pytest_distbench.records.case import Conditions
from pytest_distbench.records.environment import Machine, Prices, Term
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Scalar
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import DataTable
from pytest_distbench.store.files import write_run_record
from pytest_distbench.workloads.tables.cost import COST, SETUP, CostRow, cost_rows, setup_rows

T4: Mapping[Term, float] = {"regular": 0.5592, "preemptible": 0.154}
"""A node n1-standard-4 with one T4: MLBench's tasks."""


def prices(per_hour: Mapping[Term, float] = T4, *, platforms: tuple[str, ...] = ("cpu-*",)) -> Prices:
    machine = Machine(**per_hour, ranks_per_node=1, platforms=list(platforms))
    return Prices(currency="USD", date=date(2026, 1, 1), source="a page", listed={"n1-standard-4": machine})


def number(name: str, value: float | None, *, unit: str = "s", **at: Scalar) -> Sample:
    identity: dict[str, Scalar] = {"target": 0.97, "every": 5} if name.startswith(("steps_to", "time_to")) else {}
    return Sample(name=name, unit=unit, better="info", value=value, at=at, identity=identity)


def trained(seed: int, *, steps: float | None, step_s: float, time_s: float | None = None) -> list[Sample]:
    found = [number("steps_to_accuracy", steps, seed=seed), number("step_time", step_s, seed=seed)]
    return [*found, number("time_to_accuracy", time_s, seed=seed)] if steps is not None else found


def at(ranks: int, *measured: list[Sample], wall_s: float = 10.0, run: str = "", backend: str = "gloo") -> CaseResult:
    """A case whose launches measured these."""
    made = result()
    launches = [
        LaunchRecord(index=i, outcome="passed", wall_s=wall_s, measurements=each) for i, each in enumerate(measured)
    ]
    conditions = Conditions(world_size=ranks, backend=backend, launcher="warm")
    return replace(made, case=replace(made.case, id=f"ws{ranks}", run=run, conditions=conditions), launches=launches)


ON_ONE = at(1, trained(0, steps=100, step_s=0.09, time_s=10.0), wall_s=16.0)
ON_FOUR = at(4, trained(0, steps=50, step_s=0.075, time_s=4.0), wall_s=8.0)


def rows_of(section: DataTable, of: str) -> list[dict[str, object]]:
    found = [dict(zip(section.columns, row, strict=True)) for row in section.rows]
    return [row for row in found if row["of"] == of]


def test_a_goal_costs_its_nodes_for_the_time_of_the_run() -> None:
    one, four = rows_of(COST.table([ON_ONE, ON_FOUR], {"prices": prices()}), "accuracy 0.97")
    assert (one["nodes"], four["nodes"]) == (1, 4)
    assert one["cost_regular"] == pytest.approx(0.5592 * 10 / 3600)
    assert four["cost_regular"] == pytest.approx(0.5592 * 4 * 4 / 3600)
    assert four["cost_preemptible"] == pytest.approx(0.154 * 4 * 4 / 3600)
    assert four["speedup"] == 2.5
    assert four["price_index"] == pytest.approx(1.6 / 2.5)
    assert one["price_index"] == 1.0
    assert (one["currency"], one["machine"]) == ("USD", "n1-standard-4")

    # Task 4b: about 5.5 $ on 1 node, about 9.3 $ on 8 and 4.36 times faster: an index below 1
    node = prices({"regular": 5.5 / 8})
    hours = [trained(0, steps=1, step_s=1, time_s=3600 * 8 / speedup) for speedup in (1, 4.36)]
    one, eight = rows_of(COST.table([at(1, hours[0]), at(8, hours[1])], {"prices": node}), "accuracy 0.97")
    assert one["cost_regular"] == pytest.approx(5.5)
    assert eight["cost_regular"] == pytest.approx(10.1, abs=0.05)  # the task's page rounds
    assert eight["price_index"] == pytest.approx(8 / 4.36**2)

    one, four = rows_of(COST.table([ON_ONE, ON_FOUR], {"prices": prices()}), "run")
    assert four["cost_regular"] == pytest.approx(0.5592 * 4 * 8 / 3600)
    assert (one["time_s"], four["speedup"], four["steps"], four["met"]) == (16.0, 2.0, None, None)

    launch = replace(ON_ONE.launches[0], phases={"launcher": 3.0, "body": 10.0})
    [row] = rows_of(COST.table([replace(ON_ONE, launches=[launch])]), "run")
    assert row["time_s"] == 13.0

    missed = at(2, trained(0, steps=None, step_s=1))
    _, row = rows_of(COST.table([ON_ONE, missed], {"prices": prices()}), "accuracy 0.97")
    assert (row["met"], row["time_s"], row["cost_regular"], row["speedup"], row["price_index"]) == (
        "0 of 1", None, None, None, None,
    )  # fmt: skip


def test_bases_are_of_a_test_a_run_and_a_backend() -> None:
    conditions = replace(ON_FOUR.case.conditions, around={"oversubscribed": "2-cores"})
    crowded = replace(ON_FOUR, case=replace(ON_FOUR.case, conditions=conditions))
    _, four = rows_of(COST.table([ON_ONE, crowded], {"prices": prices()}), "accuracy 0.97")
    assert four["speedup"] == 2.5

    cases = [at(n, trained(0, steps=1, step_s=1, time_s=1.0 * n), run=r, backend=b)
             for r, b in (("", "gloo"), ("", "nccl"), ("sgd", "gloo")) for n in (1, 2)]  # fmt: skip
    rows: list[CostRow] = [row for row in cost_rows(cases) if row.what != "run"]
    assert [(row.result.case.series, row.ranks, row.speedup) for row in rows] == [
        ("test_a", 1, 1.0), ("test_a", 2, 0.5), ("test_a", 1, 1.0), ("test_a", 2, 0.5),
        ("test_a[sgd]", 1, 1.0), ("test_a[sgd]", 2, 0.5),
    ]  # fmt: skip

    launches = [
        [*trained(0, steps=40, step_s=1, time_s=4.0), *trained(1, steps=None, step_s=1)],
        [*trained(0, steps=60, step_s=3, time_s=8.0), *trained(1, steps=50, step_s=5, time_s=5.0)],
    ]
    [row] = rows_of(COST.table([at(1, *launches)]), "accuracy 0.97")
    assert (row["met"], row["steps"], row["time_s"], row["step_s"]) == ("3 of 4", 50, 5.0, 2.0)


def test_statistical_and_hardware_efficiency_stand_apart_and_need_no_price() -> None:
    section = COST.table([ON_ONE, ON_FOUR])
    [_, four] = rows_of(section, "accuracy 0.97")

    assert four["statistical_efficiency"] == 2.0
    assert four["hardware_efficiency"] == pytest.approx(1.2)
    assert section.header == [
        "test", "of", "ranks", "met", "time", "speed-up", "steps", "statistical", "time per step", "hardware",
    ]  # fmt: skip
    assert section.texts[3] == [
        "test_a", "accuracy 0.97", "4", "1 of 1", "4 s", "2.50", "50", "2.00", "75 ms", "1.20",
    ]  # fmt: skip
    assert section.footer == ["what it costs, and the price index: give --prices FILE.toml (distbench explain prices)"]


def test_rates_are_bought_and_what_has_none_has_no_row() -> None:
    def rate(ranks: int, value: float) -> CaseResult:
        return at(ranks, [number("samples_per_second", value, unit="samples/s")])

    one, two = COST.table([rate(2, 4000.0), rate(1, 2500.0)], {"prices": prices()}).rows
    assert (one[1], one[2], one[5]) == ("million samples", 1, 400.0)
    assert (two[2], two[6]) == (2, 1.6)
    assert two[11] == pytest.approx(0.5592 * 2 * 250 / 3600)

    alone = number("samples_per_second", 100.0, unit="samples/s")
    apart = at(2, [replace(alone, facts={"communication": "off"})], run="apart")
    workers = [at(n, [replace(alone, facts={"communication": "on"})], run="workers") for n in (1, 2)]
    found = [(row.result.case.run, row.ranks) for row in cost_rows([apart, *workers])]
    assert found == [("workers", 1), ("workers", 2)]

    failed = replace(ON_ONE, launches=[replace(ON_ONE.launches[0], outcome="failed")])
    assert COST.table([result(), failed]).rows == []


def test_the_footer_has_the_day_of_the_prices_and_what_is_without_one() -> None:
    section = COST.table([ON_FOUR], {"prices": prices(), "run": run(started="2026-06-01T10:00:00+00:00")})
    assert section.footer == [
        "test_a: relative to 4 ranks, the fewest that it ran on",
        "prices by the hour in USD, of 2026-01-01: a page",
        "n1-standard-4: 0.5592 regular, 0.154 preemptible; ranks per node: 1",
    ]

    section = COST.table([ON_ONE], {"prices": prices(), "run": run(started="2026-09-01T10:00:00+00:00")})
    found = section.footer[-1]
    assert found == "these prices are 243 days older or newer than the run of 2026-09-01: look them up again"
    assert rows_of(section, "run")[0]["cost_regular"] is not None

    section = COST.table([ON_ONE], {"prices": prices(platforms=("nvidia-*",))})
    assert section.footer[-1] == "no price for the platform cpu-x: add it to platforms of a machine"
    assert rows_of(section, "run")[0]["cost_regular"] is None


def test_ranks_with_a_cpu_quota_are_priced_as_whole_nodes_with_a_note() -> None:
    conditions = replace(ON_ONE.case.conditions, around={"cpus": "0.3"})
    limited = replace(ON_ONE, case=replace(ON_ONE.case, conditions=conditions))
    section = COST.table([limited], {"prices": prices()})

    assert section.footer[-1] == "cpus=0.3: priced as whole nodes, of which each rank may use 0.3 cores"


def table_of(page: Path, name: str) -> dict[str, Any]:
    """A table of a page that was written."""
    [packed] = re.findall(r'<script id="data" type="application/octet-stream">([^<]*)</script>', page.read_text())
    found = [table for _, table, _ in json.loads(gzip.decompress(base64.b64decode(packed)))["tables"]]
    return next(table for table in found if table["title"] == name)


PRICE_LIST = (
    'currency = "USD"\nper = "hour"\ndate = 2020-10-05\nsource = "a page"\n[machine.small]\nregular = 3.6\n'
    "ranks_per_node = 1\n"
)


def throughput(tmp_path: Path) -> str:
    """A record of a run on two ranks that measured one."""
    rate = Sample(name="samples_per_second", unit="samples/s", better="higher", value=1000.0)
    write_run_record(tmp_path / "a.json", run(at(2, [rate])))
    return str(tmp_path / "a.json")


def test_the_table_of_costs_takes_a_price_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prices.toml").write_text(PRICE_LIST)

    assert main(["report", throughput(tmp_path), "--table", "cost", "--prices", str(tmp_path / "prices.toml")]) == 0
    told = capsys.readouterr().out
    assert "prices by the hour in USD, of 2020-10-05: a page" in told
    assert re.search(r"million samples +2 +2 .* 2 +- +1\.00\n", told), told  # 2 nodes, 1000 s at 3.6 an hour each
    assert "these prices are" in told


def test_the_page_takes_one(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICE_LIST)
    page = tmp_path / "page.html"
    told = ["report", throughput(tmp_path), "--html", str(page)]

    assert main([*told, "--prices", str(tmp_path / "prices.toml")]) == 0
    table = table_of(page, "cost")
    assert "regular (USD)" in table["head"]
    assert any("prices by the hour in USD" in line for line in table["foot"])
    assert main(told) == 0
    table = table_of(page, "cost")
    assert "regular (USD)" not in table["head"]


@pytest.mark.parametrize(
    "arguments", [[], ["--table", "verdicts"], ["--format", "html"], ["--table", "none"], ["-o", "a"]]
)
def test_no_other_table_takes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    (tmp_path / "prices.toml").write_text(PRICE_LIST)

    assert main(["report", throughput(tmp_path), "--prices", str(tmp_path / "prices.toml"), *arguments]) == 2
    assert "report --prices is for --html and for --table cost in a format of tables" in capsys.readouterr().err


FACTS = {"model": "ResNet", "optimizer": "SGD(lr=0.02)", "schedule": "halved on a plateau", "batch": 128}


def trained_on(workers: int, *measured: Sample, told: bool = True, **params: object) -> CaseResult:
    parameters = Sample(name="parameters", unit="", better="exact", value=23_555_082, facts=FACTS if told else {})
    tensors = Sample(name="tensors", unit="", better="exact", value=214)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[parameters, tensors, *measured])
    made = result(launches=[launch])
    conditions = Conditions(world_size=workers, backend="gloo", launcher="warm", around={"cpus": "0.3"})
    environment = replace(made.environment, system={"machine": "n1-standard-4", "memory": "15 GiB"})
    case = replace(made.case, id=f"ws{workers}", conditions=conditions, params=params, run="workers")
    return replace(made, case=case, environment=environment)


def values_of(*results: CaseResult) -> dict[str, str]:
    return {parameter: ", ".join(values) for _, parameter, values in setup_rows(results)}


def test_a_setup_has_what_was_stated_what_was_measured_and_where_it_ran() -> None:
    goal = Sample(
        name="steps_to_accuracy", unit="steps", better="steps", value=60, identity={"target": 0.8, "every": 5}
    )
    found = values_of(trained_on(1, goal, communication="off", batch=128, mode=None, dtype="float16"))

    assert found == {
        **{name: str(value) for name, value in FACTS.items()},
        "trainable parameters": "23,555,082",
        "trainable tensors": "214",
        "dtype": "float16",
        "goal": "accuracy 0.8",
        "steps between evaluations": "5",
        "workers": "1",
        "backend": "gloo",
        "CPUs of a worker": "0.3",
        "device": "X",
        "machine": "n1-standard-4",
        "memory": "15 GiB",
        "CPU cores": "2",
    }


def test_set_ups_stand_by_world_size_and_only_of_what_trains() -> None:
    found = values_of(
        trained_on(4, told=False, batch=8), trained_on(1, told=False, batch=32), trained_on(2, told=False, batch=8)
    )
    assert (found["workers"], found["batch"]) == ("1, 2, 4", "32, 8")

    measured = trained_on(1, told=False, url="tcp://10.11.12.13:80")
    assert not setup_rows([result()])
    assert "10.11.12.13" not in values_of(measured)["url"]
    assert ["test_a", "trainable tensors", "214"] in SETUP.table([measured], {"run": run(measured)}).texts

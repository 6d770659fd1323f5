"""TOML files that users write: price lists and experiments, read strictly."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.machine.hardware import host_name
from pytest_distbench.machine.secrets import MASK
from pytest_distbench.records.environment import Experiment
from pytest_distbench.store.files import read_experiment, read_prices


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "a.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "problem"),
    [("name = ", "is no TOML: Invalid value (at "), (b"name = '\xff'", "is no TOML: 'utf-8' codec")],
)
def test_an_invalid_toml_file_is_an_error_that_names_it(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(StoredFileError, match=re.escape(f"{tmp_path / 'a.toml'}: {problem}")):
        read_experiment(written(tmp_path, content), with_addresses=False)
    with pytest.raises(StoredFileError, match=re.escape(f"{tmp_path / 'none.toml'}: cannot read: ")):
        read_prices(tmp_path / "none.toml")


LIST = """\
currency = "USD"
per = "hour"
date = 2020-10-05
source = "cloud.google.com/compute/all-pricing, Iowa"

[accelerator.T4]
regular = 0.35
preemptible = 0.11

[accelerator.K80]
preemptible = 0.135

[machine.n1-standard-4]
platforms = ["cpu-*"]
ranks_per_node = 1
regular = 0.2092
preemptible = 0.0440

[machine.with-T4]
ranks_per_node = 2
regular = 0.2092
preemptible = 0.0440
accelerator = "T4"
accelerators_per_node = 2

[machine.with-K80]
ranks_per_node = 1
regular = 0.19
preemptible = 0.04
accelerator = "K80"
accelerators_per_node = 1
"""
"""Prices of MLBench's task sheets: the K80 is priced as preemptible alone."""


def test_a_list_has_its_day_and_a_node_costs_what_it_holds(tmp_path: Path) -> None:
    prices = read_prices(written(tmp_path, LIST))
    plain, t4, k80 = prices.machines

    assert (prices.currency, prices.date, prices.source[:16]) == ("USD", date(2020, 10, 5), "cloud.google.com")
    assert (plain.name, plain.ranks_per_node, plain.platforms) == ("n1-standard-4", 1, ["cpu-*"])
    assert plain.per_hour == {"regular": 0.2092, "preemptible": 0.0440}
    assert t4.per_hour == {"regular": pytest.approx(0.9092), "preemptible": pytest.approx(0.264)}
    assert (t4.ranks_per_node, t4.platforms) == (2, ["*"])
    assert k80.per_hour == {"preemptible": pytest.approx(0.175)}


@pytest.mark.parametrize(
    ("line", "by", "problem"),
    [
        ('"USD"', '"dollars"', "Expected `str` matching regex '^[A-Z]{3}$' - at `$.currency`"),
        ("2020-10-05", '"2020-10-05"', "Expected `date`, got `str` - at `$.date`"),
        ("2020-10-05", "2999-01-01", "Expected a `date` on which the prices were read, got 2999-01-01"),
        ("0.35", "-0.35", "Expected `float` >= 0.0 - at `$.accelerator[T4].regular`"),
        ("0.35", "nan", "Expected `float` >= 0.0 - at `$.accelerator[T4].regular`"),
        ("0.35", "inf", "Expected `float` <= 1000000000000.0 - at `$.accelerator[T4].regular`"),
        ("preemptible = 0.135", "", "Expected a price, regular or preemptible, got neither - at `$.accelerator[K80]`"),
        ("ranks_per_node = 2", "ranks_per_node = 0", "Expected `int` >= 1 - at `$.machine[with-T4].ranks_per_node`"),
        ('accelerator = "T4"', 'accelerator = "A100"', "of T4, K80, got 'A100' - at `$.machine[with-T4]`"),
        ("accelerators_per_node = 2\n", "", "together, got one of them - at `$.machine[with-T4]`"),
        ("preemptible = 0.04\n", "", "with a price that is regular, as the machine's - at `$.machine[with-K80]`"),
        ("currency =", "kurrency = 1\ncurrency =", "Object contains unknown field `kurrency`"),
    ],
)
def test_an_error_in_a_price_list_names_the_key(tmp_path: Path, line: str, by: str, problem: str) -> None:
    assert LIST.count(line) >= 1
    path = written(tmp_path, LIST.replace(line, by))

    with pytest.raises(StoredFileError, match=re.escape(problem)) as told:
        read_prices(path)

    assert str(told.value).startswith(f"{path}: ")
    assert str(told.value).endswith(". distbench explain prices shows a price list")


STATED = """\
description = "1 node, 1 GPU, with an object store"
behind_gateway = true
servers = 2
rack = "B 7"
addresses = "node1.example.org, 10.1.2.3"
storage = \"\"\"
Object store at https://me:s3cr3t@s3.example.net
password: s3cr3tValue
\"\"\"

[planned]
torch = 2.15

[test."test_resnet*"]
cluster_info = "ssh ada@login.example.org, 10.1.2.4"
"""


def test_what_is_stored_has_no_secret_and_no_address(tmp_path: Path) -> None:
    assert read_experiment(written(tmp_path, STATED), with_addresses=False) == Experiment(
        statements={
            "": {
                "description": "1 node, 1 GPU, with an object store",
                "storage": f"Object store at https://s3.example.net password: {MASK}",
                "behind_gateway": "yes",
                "servers": "2",
                "rack": "B 7",
            },
            "test_resnet*": {"cluster_info": f"ssh ada@{MASK}, {MASK}"},
        },
        planned={"torch": "2.15"},
    )


def test_addresses_are_kept_where_they_are_asked_for_and_secrets_never(tmp_path: Path) -> None:
    of_all, of_one = read_experiment(written(tmp_path, STATED), with_addresses=True).statements.values()

    assert of_all["addresses"] == "node1.example.org, 10.1.2.3"
    assert of_one["cluster_info"] == "ssh ada@login.example.org, 10.1.2.4"
    assert "s3cr3t" not in str(of_all)


def test_without_a_file_nothing_is_stated_but_the_machines_name_where_that_is_asked_for() -> None:
    assert read_experiment(None, with_addresses=False) == Experiment()
    assert read_experiment(None, with_addresses=True).stated("t.py::t") == {"addresses": host_name()}


ARRAY = "Expected `bool | int | float | str`, got `array` - at"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("cluster = ['a']", "Expected `bool | int | float | str | object`, got `array` - at `$[cluster]`"),
        ("[test.a]\nb = 1\nclusters = []", f"{ARRAY} `$.test[a][clusters]`"),
        ("[planned]\ntorch = []", f"{ARRAY} `$.planned[torch]`"),
        ("[tests.a]\nb = 1", "tests: wanted text, a number, true or false; found a table"),
    ],
)
def test_an_error_in_an_experiment_names_the_key(tmp_path: Path, content: str, problem: str) -> None:
    path = written(tmp_path, content)

    with pytest.raises(StoredFileError, match=re.escape(f"{path}: {problem}")) as told:
        read_experiment(path, with_addresses=False)

    assert str(told.value).endswith("distbench explain experiment shows such a file")

"""TOML files that users write: price lists and experiments, read key by key."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.machine.hardware import host_name
from pytest_distbench.machine.secrets import MASK
from pytest_distbench.records.stated import Experiment, Statement
from pytest_distbench.records.wanted import text, whole
from pytest_distbench.store.stated import TomlTable, read_experiment, read_prices, read_toml


def read(tmp_path: Path, content: str | bytes) -> TomlTable:
    path = tmp_path / "a.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_toml(path, next_step="Write it anew")


def test_keys_are_taken_one_by_one_and_tables_by_their_names(tmp_path: Path) -> None:
    table = read(tmp_path, 'name = "a"\n[node.big]\nranks = 8\n[node.small]\nranks = 1\n')

    assert table.take("name", text()) == "a"
    assert table.take_if("title", text()) is None
    assert {name: inner.take("ranks", whole(1)) for name, inner in table.tables("node")} == {"big": 8, "small": 1}
    assert list(table.tables("none")) == []
    table.end()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "name: wanted printable text, not empty; found nothing. Write it anew"),
        ("name = 3", "name: wanted printable text, not empty; found 3"),
        ('name = "a"\nnode = 3', "node: wanted tables [node.NAME]; found 3"),
        ('name = "a"\nnode.big = 3', "node.big: wanted a table [node.NAME]; found 3"),
        ('name = "a"\n[node.big]\nranks = 0', "node.big.ranks: wanted a whole number of at least 1"),
        ('name = "a"\n[node.big]\nranks = 1\nrank = 1', "node.big.rank: wanted one of the keys ranks; found a key"),
        ('name = "a"\nnam = "b"', "nam: wanted one of the keys name, node; found a key that is none of them"),
        ("name = ", "is no TOML: Invalid value (at "),
        (b"name = '\xff'", "is no TOML: 'utf-8' codec"),
    ],
)
def test_what_is_wrong_is_told_with_its_file_and_its_key(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(StoredFileError, match=re.escape(f"{tmp_path / 'a.toml'}: {problem}")):
        take_all(read(tmp_path, content))


def take_all(table: TomlTable) -> None:
    table.take("name", text())
    for _, inner in table.tables("node"):
        inner.take("ranks", whole(1))
        inner.end()
    table.end()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoredFileError, match=r"none\.toml: .*Write it anew"):
        read_toml(tmp_path / "none.toml", next_step="Write it anew")


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
"""Of MLBench's task sheets: the K80 is priced as preemptible alone."""


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(content)
    return path


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
        ('currency = "USD"\n', "", "currency: wanted a currency in three capital letters, such as USD; found nothing"),
        ('"USD"', '"dollars"', "currency: wanted a currency in three capital letters, such as USD; found 'dollars'"),
        ("date = 2020-10-05\n", "", "date: wanted the day on which the prices were read"),
        ("2020-10-05", '"2020-10-05"', "no later one than today; found '2020-10-05'"),
        ("2020-10-05", "2020-10-05T10:00:00", "no later one than today; found datetime.datetime(2020"),
        ("2020-10-05", "2999-01-01", "no later one than today; found datetime.date(2999"),
        ('per = "hour"', 'per = "month"', "per: wanted one of hour; found 'month'"),
        ('per = "hour"\n', "", "per: wanted one of hour; found nothing"),
        ('source = "cloud.google.com/compute/all-pricing, Iowa"\n', "", "source: wanted printable text, not empty"),
        ("0.35", "-0.35", "accelerator.T4.regular: wanted a finite number of at least 0; found -0.35"),
        ("0.35", '"0.35 USD/hour"', "accelerator.T4.regular: wanted a finite number of at least 0; found '0.35 USD/h"),
        ("0.35", "nan", "accelerator.T4.regular: wanted a finite number of at least 0; found nan"),
        ("regular = 0.35", "spot = 0.35", "accelerator.T4.spot: wanted one of the keys regular, preemptible; found a"),
        ("preemptible = 0.135", "", "accelerator.K80.regular: wanted a price, regular or preemptible, as a finite"),
        ("ranks_per_node = 2", "", "machine.with-T4.ranks_per_node: wanted a whole number of at least 1"),
        ("ranks_per_node = 2", "ranks_per_node = 0", "machine.with-T4.ranks_per_node: wanted a whole number of at lea"),
        ('platforms = ["cpu-*"]', 'platforms = "cpu-*"', 'wanted a list of hardware classes, such as ["cpu-intel-*"]'),
        ('accelerator = "T4"', 'accelerator = "A100"', "wanted one of T4, K80; found 'A100'"),
        ('accelerator = "T4"\n', "", "machine.with-T4.accelerator: wanted accelerator and accelerators_per_node toge"),
        ("accelerators_per_node = 2\n", "", "with-T4.accelerators_per_node: wanted accelerator and accelerators_per"),
        ("preemptible = 0.04\n", "", "machine.with-K80.accelerator: wanted one with a price that is regular, as the"),
        ("currency =", "kurrency = 1\ncurrency =", "kurrency: wanted one of the keys currency, date, source, per, acc"),
    ],
)
def test_what_is_wrong_with_a_list_is_told_with_its_key(tmp_path: Path, line: str, by: str, problem: str) -> None:
    assert LIST.count(line) >= 1
    path = written(tmp_path, LIST.replace(line, by))

    with pytest.raises(StoredFileError, match=re.escape(problem)) as told:
        read_prices(path)

    assert str(told.value).startswith(f"{path}: ")
    assert str(told.value).endswith(". docs/cost.md has a price list to start from")


STATED = """\
description = "1 node, 1 GPU, with an object store"
behind_gateway = true
servers = 2
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


def written_of_experiment(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(content)
    return path


def test_what_is_stored_has_no_secret_and_no_address(tmp_path: Path) -> None:
    assert read_experiment(written_of_experiment(tmp_path, STATED), with_addresses=False) == Experiment(
        statements=[
            Statement(
                fields={
                    "description": "1 node, 1 GPU, with an object store",
                    "storage": f"Object store at https://s3.example.net password: {MASK}",
                    "behind_gateway": "yes",
                    "servers": "2",
                }
            ),
            Statement(of="test_resnet*", fields={"cluster_info": f"ssh ada@{MASK}, {MASK}"}),
        ],
        planned={"torch": "2.15"},
    )


def test_addresses_are_kept_where_they_are_asked_for_and_secrets_never(tmp_path: Path) -> None:
    own, of_all, of_one = read_experiment(written_of_experiment(tmp_path, STATED), with_addresses=True).statements

    assert own.fields == {"addresses": host_name()}
    assert of_all.fields["addresses"] == "node1.example.org, 10.1.2.3"
    assert of_one.fields["cluster_info"] == "ssh ada@login.example.org, 10.1.2.4"
    assert "s3cr3t" not in str(of_all)


def test_without_a_file_nothing_is_stated_but_the_machines_name_where_that_is_asked_for() -> None:
    assert read_experiment(None, with_addresses=False) == Experiment()
    assert read_experiment(None, with_addresses=True).stated("t.py::t") == {"addresses": host_name()}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("cluser = 'a'", "cluser: wanted one of the keys planned, test, description, storage, "),
        ("cluster = ['a']", "cluster: wanted text, a number, true or false; found ['a']"),
        ("cluster = ' '", "cluster: wanted text, a number, true or false; found ' '"),
        ("servers = -3", "servers: wanted a whole number of at least 1; found -3"),
        ("servers = true", "servers: wanted a whole number of at least 1; found True"),
        ("behind_gateway = 'maybe'", "behind_gateway: wanted true or false; found 'maybe'"),
        ("test = 'a'", "test: wanted tables [test.NAME]; found 'a'"),
        ("[test.a]\nclusters = 1", "test.a.clusters: wanted one of the keys description, "),
        ("planned = 2", "planned: wanted names of what the table environment has"),
        ("[planned]\ntorch = []", "planned: wanted names of what the table environment has"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(tmp_path: Path, content: str, problem: str) -> None:
    path = written_of_experiment(tmp_path, content)

    with pytest.raises(StoredFileError, match=re.escape(f"{path}: {problem}")) as told:
        read_experiment(path, with_addresses=False)

    assert str(told.value).endswith("docs/experiment.md has an example, and what each key means")


def test_a_list_without_machines_prices_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        StoredFileError, match=re.escape("machine: wanted at least one table [machine.NAME]; found none")
    ):
        read_prices(written(tmp_path, LIST.partition("[machine")[0]))

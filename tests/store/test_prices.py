"""Price lists of users: what stands in one, and what is told of one that cannot be used."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.store.prices import read_prices

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


def test_a_list_without_machines_prices_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        StoredFileError, match=re.escape("machine: wanted at least one table [machine.NAME]; found none")
    ):
        read_prices(written(tmp_path, LIST.partition("[machine")[0]))


def test_an_accelerator_without_a_table_of_any_is_told_so(tmp_path: Path) -> None:
    told = "accelerator: wanted nothing, as there is no table [accelerator.NAME]; found 'T4'"
    bare = re.sub(r"\[accelerator.T4\].*?\[machine", "[machine", LIST, flags=re.DOTALL)
    with pytest.raises(StoredFileError, match=re.escape(told)):
        read_prices(written(tmp_path, bare))

"""Descriptions of clusters, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.errors import DistbenchError
from pytest_distbench.forecast.cluster import SHIPPED, read_cluster
from pytest_distbench.forecast.model import COLLECTIVES

KNOWN = frozenset(COLLECTIVES)
GOOD = """
ranks_per_node = 4
within = 0.2

[node]
latency = "2 us"
bandwidth = "100 GB/s"

[network]
latency = "10 us"
bandwidth = "10 Gbit/s"

[computing]
float32 = "20 TFLOP/s"
memory = "1 TB/s"

[collectives.all_reduce]
latency = "30 us"
bandwidth = "5 GB/s"
algorithm = "tree"
"""


def test_quantities_become_base_units(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD.replace("10 Gbit/s", "10 GB/s"))
    found = read_cluster("mine.toml", tmp_path, KNOWN)

    assert (found.node.latency, found.node.bandwidth) == (2e-6, 1e11)
    assert found.computing == {"float32": 2e13, "memory": 1e12}
    assert found.collectives["all_reduce"].algorithm == "tree"


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_clusters_can_be_read(path: Path, tmp_path: Path) -> None:
    found = read_cluster(path.stem, tmp_path, KNOWN)

    assert found.node.bandwidth > found.network.bandwidth
    assert found.computing


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"2 us"', '"2 GB"', "node.latency='2 GB': wanted a time such as '5 us'"),
        ('"2 us"', '"2"', "node.latency='2': wanted a time such as '5 us'"),
        ('"2 us"', '"0 us"', "node.latency='0 us': wanted more than 0"),
        ('"2 us"', '"soon"', "node.latency='soon': wanted a time such as '5 us'"),
        ('"100 GB/s"', '"100 GB"', "node.bandwidth='100 GB': wanted a rate such as '50 GB/s'"),
        ('"20 TFLOP/s"', '"20 TFLOPS"', "computing.float32='20 TFLOPS': wanted such as '400 TFLOP/s'"),
        ('memory = "1 TB/s"\n', "", "computing has no 'memory', which is needed; it has ['float32']"),
        ('"20 TFLOP/s"', '"20 TFLOP/s"\nfloat23 = "1 TFLOP/s"', "a key of computing='float23': wanted one of memory, "),
        ("within = 0.2", "within = nan", "within=nan: wanted a fraction from 0 to below 1"),
        ('latency = "2 us"\n', "", "latency"),
        ("[network]", "[net]", "net"),
        ("collectives.all_reduce", "collectives.all_dance", "collectives='all_dance': wanted one of all_gather, "),
        ('"tree"', '"star"', "collectives.all_reduce.algorithm='star': wanted one of ring, tree"),
        ("within = 0.2", "within = 1.5", "within=1.5: wanted a fraction from 0 to below 1"),
        ("within = 0.2", "missed = -1.0", "missed=-1.0: wanted 0 or more"),
        ("ranks_per_node = 4", "ranks_per_node = 0", "ranks_per_node=0: wanted 1 or more"),
        ("ranks_per_node = 4", "ranks_per_node", "is no TOML"),
        ("ranks_per_node = 4", "ranks_per_node = 4\nmissed = inf", "missed=inf: wanted 0 or more"),
        ('"2 us"', "2", "node.latency=2.0: wanted a time such as '5 us' (the unit 'none' "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    good = GOOD.replace("10 Gbit/s", "10 GB/s")
    (tmp_path / "mine.toml").write_text(good.replace(old, new, 1))
    with pytest.raises(DistbenchError) as caught:
        read_cluster("mine.toml", tmp_path, KNOWN)

    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_an_unknown_cluster_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    text = r"cluster='h200': no file .*; wanted one ending in .toml, or one of h100-ib400"
    with pytest.raises(DistbenchError, match=text):
        read_cluster("h200", tmp_path, KNOWN)

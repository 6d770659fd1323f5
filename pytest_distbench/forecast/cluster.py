"""Cluster, a description in a TOML file: ranks of a node, links, and what a rank computes in a second."""

from __future__ import annotations

import math
from pathlib import Path

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.record import Record
from pytest_distbench.store.files import read_toml
from pytest_distbench.units import convert, parse_quantity

SHIPPED = Path(__file__).with_name("clusters")
_FLOPS = {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}
MEMORY = "memory"  # in ``[computing]``: the rate at which a rank reads and writes its memory
_COMPUTING = (MEMORY, "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")
"""Keys of ``computing``; a dtype that is not stated has the rate of float32."""
ALGORITHMS = ("ring", "tree")


class Terms(Record, frozen=True, kw_only=True):
    """Cost of a message: ``latency`` in seconds, plus its bytes over ``bandwidth`` in bytes per second."""

    latency: float
    bandwidth: float
    algorithm: str = ""  # that the collective uses; empty: the faster one


class Cluster(Record, frozen=True, kw_only=True):
    """Ranks and the links between them.

    Attributes:
        ranks_per_node: number of ranks that share a node; ranks fill the nodes in their order.
        within: largest error of the terms, as a fraction, with which forecasts are judged.
        missed: error of the terms, as a fraction, where they were compared with measurements; above ``within``
            forecasts are shown and not judged.
        node: terms of the link between ranks of a node.
        network: terms of the link from a rank to other nodes.
        collectives: collective -> measured terms, which replace those of the links.
        computing: dtype -> FLOP/s that a rank sustains, and ``memory`` -> bytes per second. Empty: computing is
            measured on this machine.
        prefetch: number of gathers begun before they are needed, as by FSDP2's implicit prefetching.
    """

    ranks_per_node: int
    within: float
    missed: float = 0.0
    node: Terms
    network: Terms
    collectives: dict[str, Terms] = {}
    computing: dict[str, float] = {}
    prefetch: int = 0


class _Stated(Record, frozen=True, kw_only=True):
    latency: str | float
    bandwidth: str | float
    algorithm: str = ""


class _File(Record, frozen=True, kw_only=True):
    ranks_per_node: int
    node: _Stated
    network: _Stated
    within: float = 0.25
    missed: float = 0.0
    collectives: dict[str, _Stated] = {}
    computing: dict[str, str | float] = {}
    prefetch: int = 0


def read_cluster(name: str, folder: Path, known: frozenset[str]) -> Cluster:
    """Read the description of a cluster: one that this package has, or a TOML file.

    Args:
        name: name of a cluster of this package, or path of a file relative to ``folder``.
        folder: folder of the test.
        known: names of the collectives whose time the model knows.

    Raises:
        ConfigurationError: there is no such cluster, or a term of it is missing or wrong.
    """
    path = SHIPPED / f"{name}.toml" if not name.endswith(".toml") else folder / name
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise ConfigurationError(f"cluster={name!r}: no file {path}; wanted one ending in .toml, or one of {shipped}")
    stated = read_toml(path, _File, next_step="distbench cluster prints such a file")

    def terms(key: str, given: _Stated) -> Terms:
        if given.algorithm not in ("", *ALGORITHMS):
            raise _refusal(path, f"{key}.algorithm", given.algorithm, f"one of {', '.join(ALGORITHMS)}")
        return Terms(
            latency=_quantity(path, f"{key}.latency", given.latency, "s"),
            bandwidth=_quantity(path, f"{key}.bandwidth", given.bandwidth, "B/s"),
            algorithm=given.algorithm,
        )

    for op in stated.collectives:
        if op not in known:
            raise _refusal(path, "collectives", op, f"one of {', '.join(sorted(known))}")
    for key, value, least in (
        ("ranks_per_node", stated.ranks_per_node, 1),
        ("prefetch", stated.prefetch, 0),
        ("missed", stated.missed, 0),
        ("within", stated.within, 0),
    ):
        if not least <= value < math.inf or (key == "within" and value >= 1):
            raise _refusal(path, key, value, "a fraction from 0 to below 1" if key == "within" else f"{least} or more")
    for key in (MEMORY, "float32") if stated.computing else ():
        if key not in stated.computing:
            raise ConfigurationError(f"{path}: computing has no {key!r}, which is needed; it has {[*stated.computing]}")
    for key in stated.computing:
        if key not in _COMPUTING:
            raise _refusal(path, "a key of computing", key, f"one of {', '.join(_COMPUTING)}")
    return Cluster(
        ranks_per_node=stated.ranks_per_node,
        within=stated.within,
        missed=stated.missed,
        node=terms("node", stated.node),
        network=terms("network", stated.network),
        collectives={op: terms(f"collectives.{op}", given) for op, given in stated.collectives.items()},
        computing={
            key: _quantity(path, f"computing.{key}", text, "B/s" if key == MEMORY else "FLOP/s")
            for key, text in stated.computing.items()
        },
        prefetch=stated.prefetch,
    )


def _quantity(path: Path, key: str, stated: str | float, unit: str) -> float:
    wanted = {"s": "a time such as '5 us'", "B/s": "a rate such as '50 GB/s'", "FLOP/s": "such as '400 TFLOP/s'"}[unit]
    try:
        value, given = parse_quantity(str(stated))
        given = given or "none"  # convert takes a number as one in the wanted unit
        found = value * _FLOPS[given] if unit == "FLOP/s" else convert(value, given, unit)
    except (ConfigurationError, KeyError) as error:
        raise _refusal(path, key, stated, f"{wanted} ({error})") from None
    if found <= 0:
        raise _refusal(path, key, stated, "more than 0")
    return found


def _refusal(path: Path, key: str, found: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{path}: {key}={show(found)}: wanted {wanted}")

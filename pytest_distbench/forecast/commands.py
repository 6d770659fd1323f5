"""``distbench cluster``: describes a cluster from the run record of a sweep on it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.commands import Subcommand
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.forecast.cluster import Terms
from pytest_distbench.forecast.model import COLLECTIVES, Point, fit
from pytest_distbench.records.kinds import grouped, median
from pytest_distbench.store.files import read_run_record
from pytest_distbench.units import format_percent

_FEWEST = 4
_RECEIVED = ("all_gather", "gather")  # whose message is what all ranks put in


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN.json", type=Path, help="of collective_sweep, by pytest --distbench-json")
    parser.add_argument("--ranks-per-node", metavar="N", type=int, required=True, help="ranks of the run on one node")


def _points(path: Path) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for result in read_run_record(path).results:
        op = str(result.case.params.get("collective", ""))
        if op not in COLLECTIVES:
            continue
        measured = (each for launch in result.launches for each in launch.measurements)
        sweep = (each for each in measured if each.name == "latency" and each.at.keys() == {"message_bytes"})
        by_size = grouped((int(each.at["message_bytes"]), each.value) for each in sweep)
        ranks = result.case.world_size
        for size, values in by_size.items():
            if ranks > 1 and (seconds := median(values)):
                own = size // ranks if op in _RECEIVED else size
                found.setdefault(op, []).append(Point(ranks, own, seconds))
    return found


def _run(given: argparse.Namespace) -> Iterator[str]:
    found = {op: points for op, points in _points(given.run).items() if len(points) >= _FEWEST}
    if not found:
        raise ConfigurationError(
            f"{given.run} has no sweep of a collective with {_FEWEST} sizes on 2 ranks or more: measure one with "
            "collective_sweep and --distbench-json"
        )
    fitted = {op: fit(op, points) for op, points in found.items()}
    if given.ranks_per_node < 1:
        raise ConfigurationError(f"--ranks-per-node {given.ranks_per_node}: wanted 1 or more")
    links = fitted.get("all_reduce") or next(iter(fitted.values()))
    yield f"# Fitted to {given.run.name}; what is furthest off: " + ", ".join(
        f"{op} {format_percent(miss)}" for op, (_, miss) in fitted.items()
    )
    yield "# [node] and [network] have the same terms: the run does not say which of its ranks shared a node"
    yield f"ranks_per_node = {given.ranks_per_node}"
    yield f"missed = {max(miss for _, miss in fitted.values()):.2f}"
    for name in ("node", "network"):
        yield from ("", f"[{name}]", *_terms(links[0]))
    for op, (terms, _) in fitted.items():
        yield from ("", f"[collectives.{op}]", *_terms(terms), f'algorithm = "{terms.algorithm}"')


def _terms(terms: Terms) -> list[str]:
    return [f'latency = "{terms.latency * 1e6:.4g} us"', f'bandwidth = "{terms.bandwidth / 1e9:.4g} GB/s"']


CLUSTER = Subcommand("describe a cluster for forecasts, by a sweep that ran on it", _add, _run)

"""``distbench baseline import --as bounds|baseline``: numbers of nccl-tests and rccl-tests become those of a test."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.case import BaselineEntry, Conditions, EntryName, key_text
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.perf_output import PerfOutput, Rows, baselines_of, bounds_of, read_perf_output
from pytest_distbench.units import parse_bytes, parse_quantity

_TEST = re.compile(r"(?P<test>[^[\]]+::[^[\]]+?)(?:\[(?P<case>.*)\])?")
_FEWEST_RUNS = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "of nccl-tests and rccl-tests", "what they print, or their JSON; several files are several runs of the same"
    )
    group.add_argument("--as", dest="kind", choices=("bounds", "baseline"), default="", help="what the numbers become")
    group.add_argument(
        "--test", metavar="NODEID", default="", help="whose they become: 'suites/a.py::test_b[float32-ws8]'"
    )
    group.add_argument("--world-size", metavar="N", type=int, help="ranks of that test (default: as the file says)")
    group.add_argument("--backend", metavar="NAME", default="nccl", help="of that test (default: nccl)")
    group.add_argument("--launcher", metavar="NAME", default="warm", help="of that test (default: warm)")
    group.add_argument(
        "--metric", choices=("latency", "busbw"), default="latency", help="what is bounded (default: latency)"
    )
    group.add_argument(
        "--margin", metavar="X", default="0%", help="of bounds, towards worse: 10%% or 0.1 (default: 0%%)"
    )
    group.add_argument(
        "--column",
        choices=("in-place", "out-of-place"),
        default="in-place",
        help="default: in-place, as the sweeps are",
    )
    group.add_argument("--dtype", metavar="NAME", default="", help="where the files have rows of several")
    group.add_argument("--redop", metavar="NAME", default="", help="where the files have rows of several")
    group.add_argument("--min-size", metavar="SIZE", default="1", help="smallest message, such as 64KiB")
    group.add_argument("--max-size", metavar="SIZE", default="", help="largest message, such as 64MiB")


def import_numbers(options: argparse.Namespace) -> Iterator[str]:
    name = _name(options)
    rows = Rows(
        in_place=options.column == "in-place",
        dtype=options.dtype,
        redop=options.redop,
        least=parse_bytes(options.min_size),
        most=parse_bytes(options.max_size) if options.max_size else None,
    )
    margin = _margin(options.margin)
    outputs = [output for source in options.source for output in read_perf_output(source)]
    chosen = [rows.of(output) for output in outputs]
    ranks = _ranks(outputs, options.world_size)
    first = chosen[0][0]
    runs = f"{len(outputs)} run{'s' * (len(outputs) != 1)}"
    facts = [outputs[0].program, f"{ranks} ranks", outputs[0].device, first.dtype, first.redop.replace("none", "")]
    yield f"{runs}: {', '.join(filter(None, [*facts, options.column]))}"
    if not all(output.is_whole for output in outputs):
        yield "? a run has no summary at its end: it may have been cut off, and its results were not checked"
    made: Mapping[str, Any]
    if options.kind == "bounds":
        made = bounds_of(chosen, metric=options.metric, margin=margin)
    elif len(outputs) < _FEWEST_RUNS:
        raise ConfigurationError(
            "--as baseline: one run says nothing about its noise: give the files of several runs, or --as bounds"
        )
    else:
        made = baselines_of(chosen, in_place=rows.in_place)
        yield "these tools time calls in a loop, the sweep each by itself: small messages take longer there"
    if left_out := len({row.size for run in chosen for row in run}) - len(made):
        yield f"{left_out} size{'s' * (left_out != 1)} left out: printed as 0, or not in every run"
    yield _store(options, name, ranks, made)


def _store(options: argparse.Namespace, name: EntryName, ranks: int, made: Mapping[str, Any]) -> str:
    store = BaselineStore(options.baselines, name.platform)
    stored = store.entry(name.test, name.key)
    entry = stored or BaselineEntry(
        workload="",
        conditions=Conditions(world_size=ranks, backend=options.backend, launcher=options.launcher),
        software={},
        metrics={},
    )
    if (stored_ranks := entry.conditions.world_size) != ranks:
        raise ConfigurationError(f"{name} is stored with {stored_ranks} ranks, the numbers are of {ranks}")
    field = "bounds" if options.kind == "bounds" else "metrics"
    before: dict[str, Any] = getattr(entry, field)
    both = {**before, **made} if options.existing == "replace" else {**made, **before}
    kept = sum(key in before for key in made) if options.existing == "keep" else 0
    changed = sum(before.get(key) != value for key, value in both.items())
    if changed:
        store.write(name.test, name.key, replace(entry, **{field: both}), sync=False)
    there = f", {kept} there already were kept (--existing replace)" if kept else ""
    done = "new" if stored is None else "changed" if changed else "kept"
    return f"{done}  {name.platform}  {name}: {changed} {field}{there}"


def _name(options: argparse.Namespace) -> EntryName:
    lacking = [option for option in ("test", "platform") if not getattr(options, option)]
    if lacking:
        raise ConfigurationError(
            f"import --as {options.kind}: such files do not say whose numbers they are: give "
            f"{' and '.join(f'--{option}' for option in lacking)}; 'distbench baseline list' shows both"
        )
    found = _TEST.fullmatch(options.test)
    if found is None:
        raise ConfigurationError(
            f"--test {options.test!r}: wanted a node id such as 'suites/a.py::test_b[float32-ws8]'"
        )
    key = key_text(found["case"] or "", options.backend, options.launcher)
    return EntryName(platform=options.platform, test=found["test"], key=key)


def _ranks(outputs: list[PerfOutput], given: int | None) -> int:
    for what, found in (
        ("programs", {_operation(output.program) for output in outputs if output.program}),
        ("numbers of ranks", {output.ranks for output in outputs if output.ranks is not None}),
    ):
        if len(found) > 1:
            raise ConfigurationError(
                f"the runs are of several {what}, {', '.join(map(str, sorted(found, key=str)))}: import one"
            )
    told = next((output.ranks for output in outputs if output.ranks is not None), None)
    if given is not None and told is not None and given != told:
        raise ConfigurationError(f"--world-size {given}: the numbers are of {told} ranks")
    if (ranks := given if given is not None else told) is None or ranks < 1:
        raise ConfigurationError("the files do not say how many ranks there were: give --world-size N")
    return ranks


def _operation(program: str) -> str:
    """One spelling for ``all_reduce_perf``, ``all_reduce_perf_mpi`` and ``AllReduce``."""
    return re.sub("[^a-z]", "", program.partition("_perf")[0].lower())


def _margin(text: str) -> float:
    value, unit = parse_quantity(text)
    share = value / 100 if unit == "%" else value
    if unit not in ("", "%") or not 0 <= share < 1:
        raise ConfigurationError(f"--margin {text!r}: wanted a share such as 10% or 0.1, from 0 to below 1")
    return share

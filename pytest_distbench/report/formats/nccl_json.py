"""The sweeps of a run in the JSON of nccl-tests (``-J FILE``, version 3), for tools that read that.

Its field of environment variables stays empty: they may hold secrets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, BinaryIO

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.perf_output import NCCL_DTYPES, NCCL_REDOPS
from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.tables.collectives import CollectiveRow, collective_rows, mean_busbw, wrong_elements
from pytest_distbench.report.tables.sweep import SweepPoint

VERSION = 3
_TIMES = "%Y-%m-%d %H:%M:%S"


def write_nccl_json(record: RunRecord, out: BinaryIO) -> None:
    """Write the rows that have numbers, of one kind of group: the file has room for one."""
    rows = [row for row in collective_rows(record.results) if row.sides]
    groups = sorted({(row.kind.backend, row.kind.world_size) for row in rows})
    if len(groups) != 1:
        found = ", ".join(f"{backend} on {ranks} ranks" for backend, ranks in groups) or "no sweep with numbers"
        raise DistbenchError(
            f"nccl-tests' JSON is of one process group, and this run has {found}; measure with one --world-size and "
            "one --distbench-backend, or take --format csv"
        )
    out.write(json.dumps(_document(record, rows, ranks=groups[0][1]), indent=1).encode() + b"\n")


def _document(record: RunRecord, rows: Sequence[CollectiveRow], *, ranks: int) -> dict[str, Any]:
    sizes = [row.message_bytes or 0 for row in rows]
    facts = rows[0].sides[next(iter(rows[0].sides))].time.facts
    params: Mapping[str, Any] = next((r.case.params for r in record.results if "collective" in r.case.params), {})
    wrong, mean = wrong_elements(rows), mean_busbw(rows)
    device = record.results[0].environment.device
    start = datetime.fromisoformat(record.started)
    return {
        "version": VERSION,
        "start_time": start.strftime(_TIMES),
        "args": [rows[0].kind.collective, *record.command.split()],
        "env": [],
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": min(sizes),
            "maximum_bytes": max(sizes),
            "step_factor": 0,
            "warmup_iters": params.get("warmup") or 0,
            "iterations": params.get("iterations") or 0,
            "aggregated_iterations": int(facts.get("parts", 1)),
            "validation": 1,
            "graph": int(rows[0].kind.mode == "graph"),
            "blocking_collectives": _text(rows[0].kind.mode == "per-iteration"),
            "per_iter_timing": "false",  # their -I, with which each result lists the time of every iteration
            "per_iter_skip": 0,
            "parallel_init": "false",
            "devices": [
                {"rank": rank, "group": 0, "pid": rank, "hostname": "", "device": rank, "device_info": device}
                for rank in range(ranks)
            ],
        },
        "results": [_result(row) for row in rows],
        "out_of_bounds": {"count": wrong, "okay": _text(not wrong)},
        "average_bus_bandwidth": {"bandwidth": mean if mean is not None else "nan", "okay": "unchecked"},
        "end_time": (start + timedelta(seconds=math.ceil(record.duration_s))).strftime(_TIMES),
    }


def _result(row: CollectiveRow) -> dict[str, Any]:
    kind = row.kind
    return {
        "size": row.message_bytes,
        "count": row.count,
        "type": NCCL_DTYPES.get(kind.dtype, kind.dtype),
        "redop": NCCL_REDOPS.get(kind.redop, kind.redop),
        "root": kind.root,
        "out_of_place": _side(row.sides.get(False)),
        "in_place": _side(row.sides.get(True)),
        "experiment_name": kind.collective,
    }


def _side(point: SweepPoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    return {
        "time": point.time_s * 1e6,
        "alg_bw": point.algbw,
        "bus_bw": point.busbw or 0.0,
        "nwrong": point.wrong_elements,
    }


def _text(is_so: bool) -> str:  # noqa: FBT001 as the tool writes its booleans
    return "true" if is_so else "false"

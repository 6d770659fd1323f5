"""Reads the JSON that nccl-tests (``-J FILE``) and rccl-tests (``-Z json -x FILE``) write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_distbench.errors import StoredFileError, show
from pytest_distbench.records.perf_output import PerfOutput, PerfRow
from pytest_distbench.store.perf_text import CPU_TIME_ONLY, WRONG_NEXT_STEP

_NEXT_STEP = "Give the file as the tool wrote it"


def read_perf_json(text: str, path: Path) -> PerfOutput:
    """The run in a file.

    Raises:
        StoredFileError: no JSON of these tools, a value is damaged, or a result was wrong; the message says where.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        place = Path(f"{path}:{error.lineno}")
        raise StoredFileError(place, f"no JSON: {error.msg}; the run may have been cut off", _NEXT_STEP) from None
    except RecursionError:
        raise StoredFileError(path, "no JSON of these tools: too deep", _NEXT_STEP) from None
    if isinstance(document, dict) and isinstance(document.get("results"), list):
        output = _read(path, "results", document["results"], _rows_of_nccl)
        config = document.get("config")
        config = config if isinstance(config, dict) else {}
        devices = [d for d in config.get("devices") or document.get("devices") or [] if isinstance(d, dict)]
        args = document.get("args") or [""]
        return PerfOutput(
            program=Path(str(args[0])).name,
            ranks=_ranks_of_nccl(config, devices),
            device=str(devices[0].get("device_info", "")) if devices else "",
            rows=output,
            is_whole="end_time" in document,
        )
    if isinstance(document, list) and document and all(isinstance(one, dict) and "busBw" in one for one in document):
        first = document[0]
        ranks = [first.get("ranks", 1), first.get("gpusPerRank", first.get("gpus"))]
        known = all(isinstance(n, int) for n in ranks)
        return PerfOutput(
            program=str(first.get("name", "")),
            ranks=math.prod(ranks) if known else None,
            device="",
            rows=_read(path, "", document, _rows_of_rccl),
            is_whole=True,
        )
    raise StoredFileError(path, "no JSON that nccl-tests or rccl-tests write", _NEXT_STEP)


def _ranks_of_nccl(config: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> int | None:
    """A rank per GPU: the file may name one device of each process only."""
    processes = len({(device.get("hostname"), device.get("pid")) for device in devices})
    threads, gpus = config.get("nthreads"), config.get("ngpus")
    return processes * threads * gpus if processes and isinstance(threads, int) and isinstance(gpus, int) else None


def _read(
    path: Path, name: str, found: Sequence[Any], rows_of: Callable[[Mapping[str, Any]], list[PerfRow]]
) -> list[PerfRow]:
    """The rows of every result, the damaged one named."""
    rows = []
    for i, one in enumerate(found):
        place = Path(f"{path}: {name}[{i}]")
        try:
            rows += rows_of(one)
        except Unusable as error:
            raise StoredFileError(place, *error.args) from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise StoredFileError(place, f"damaged: {what} in {show(one)}", _NEXT_STEP) from None
    if not rows:
        raise StoredFileError(path, "holds no results: the run failed", "Give the output of a whole run")
    return rows


class Unusable(Exception):
    """Numbers that must not be compared with: the problem, and what to do."""


def _rows_of_nccl(one: Mapping[str, Any]) -> list[PerfRow]:
    rows = []
    for key in ("out_of_place", "in_place"):
        side = one[key]
        if side is None:
            continue
        if "cpu_time" in side:
            raise Unusable(*CPU_TIME_ONLY)
        root = str(one["root"]).strip()
        rows.append(_row(one, side["time"], side["bus_bw"], side["nwrong"], in_place=key == "in_place", root=root))
    return rows


def _rows_of_rccl(one: Mapping[str, Any]) -> list[PerfRow]:
    wrong = None if one["wrong"] == "N/A" else float(one["wrong"])
    return [_row(one, one["time"], one["busBw"], wrong, in_place=bool(int(one["inPlace"])), root="")]


def _row(
    one: Mapping[str, Any], time_us: object, busbw: object, wrong: float | None, *, in_place: bool, root: str
) -> PerfRow:
    if wrong:
        raise Unusable(f"{wrong:g} wrong values", WRONG_NEXT_STEP)
    return PerfRow(
        size=int(_number(one["size"])),
        dtype=str(one["type"]),
        redop=str(one["redop"]),
        root=root,
        in_place=in_place,
        time_s=_number(time_us) / 1e6,
        busbw=_number(busbw),
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{show(value)} is no number")
    return float(value)

"""What a rank's flight recorders say of the collectives it has entered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_distbench.records.flight import FlightEntry, FlightRecording
from pytest_distbench.records.launch_files import LaunchFiles, open_left

_LARGEST_BYTES = 64 * 2**20

_Content = TypeVar("_Content")


class Entered(msgspec.Struct, frozen=True):
    """The collectives that a rank has entered.

    Groups have torch's name, which two backends may share: under NCCL it begins with ``nccl``.

    Attributes:
        number: of the one it waits in, or else of the last one, in its group, from 1; 0: none.
        what: it was, ``all_reduce of float32[8]``.
        is_over: it has ended, or was given up.
        numbers: group's name -> number of the last one there.
        unfinished: group's name -> number of the first one there that is not over.
        members: group's name -> its ranks; of the groups this rank belongs to.
        is_idle: NCCL's recorder is there, and nothing in it is unfinished: the rank waits for nobody by way of a GPU.
    """

    number: int
    what: str
    is_over: bool
    numbers: dict[str, int]
    members: dict[str, list[int]]
    unfinished: dict[str, int] = {}
    is_idle: bool = False


def read_entered(files: LaunchFiles, rank: int) -> Entered | None:
    """What a rank has entered; None where its recorders say nothing."""
    recordings = _read(files.flight(rank), dict[str, FlightRecording])
    if recordings is None:
        return None
    told = _read(files.groups(rank), dict[str, list[int]]) or {}
    by_group: dict[str, list[FlightEntry]] = {}
    for recorder, recording in recordings.items():
        for entry in recording.entries:
            if entry.group_name and not entry.is_p2p and entry.collective_seq_id > 0:
                by_group.setdefault(f"{recorder} {entry.group_name}".strip(), []).append(entry)
    waiting = {name: rest[0] for name, entries in by_group.items() if (rest := _unfinished(entries))}
    numbers = {name: max(e.collective_seq_id for e in entries) for name, entries in by_group.items()}
    members = {f"{recorder} {name}".strip(): ranks for recorder in ("", *recordings) for name, ranks in told.items()}
    if not by_group:
        return Entered(0, "none", is_over=True, numbers=numbers, members=members)
    # A GPU is given many, and works them off in order: the first that is not over is what it waits in.
    shown = min(waiting.values(), key=_moment) if waiting else max(chain(*by_group.values()), key=_moment)
    inputs = [f"{dtype}{size}" for dtype, size in zip(shown.dtypes, shown.input_sizes, strict=False)]
    of = f" of {', '.join(inputs)}" if inputs else ""
    within = "" if shown.group == "default" else f" in group {shown.group.removeprefix('group ')}"
    of_nccl = recordings.get("nccl", FlightRecording()).entries
    return Entered(
        shown.collective_seq_id,
        f"{shown.op}{of}{within}",
        is_over=not waiting,
        numbers=numbers,
        members=members,
        unfinished={name: entry.collective_seq_id for name, entry in waiting.items()},
        is_idle=bool(of_nccl) and all(e.is_over for e in of_nccl),
    )


def _unfinished(entries: Sequence[FlightEntry]) -> list[FlightEntry]:
    """Of one group's collectives those after the last that is over, in their order: it ends them one by one."""
    ended = max((e.collective_seq_id for e in entries if e.is_over), default=0)
    return sorted((e for e in entries if e.collective_seq_id > ended), key=lambda e: e.collective_seq_id)


def _moment(entry: FlightEntry) -> tuple[int, int]:
    return (entry.time_created_ns, entry.collective_seq_id)


def _read(path: Path, kind: type[_Content]) -> _Content | None:
    try:
        with open_left(path) as file:
            return msgspec.json.decode(file.read(_LARGEST_BYTES), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

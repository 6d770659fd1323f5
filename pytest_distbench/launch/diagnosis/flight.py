"""What a rank's flight recorder says of the collectives it has entered."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_distbench.records.flight import FlightRecording
from pytest_distbench.records.launch_files import LaunchFiles, open_left

_LARGEST_BYTES = 64 * 2**20

_Content = TypeVar("_Content")


class Entered(msgspec.Struct, frozen=True):
    """The collectives that a rank has entered.

    Attributes:
        number: of the last one in its group, from 1; 0: none.
        what: it was, ``all_reduce of float32[8]``.
        is_over: it has ended, or was given up.
        numbers: group's name -> number of the last one there.
        members: group's name -> its ranks; of the groups this rank belongs to.
    """

    number: int
    what: str
    is_over: bool
    numbers: dict[str, int]
    members: dict[str, list[int]]


def read_entered(files: LaunchFiles, rank: int) -> Entered | None:
    """What a rank has entered; None where its recorder says nothing."""
    recording = _read(files.flight(rank), FlightRecording)
    if recording is None:
        return None
    members = _read(files.groups(rank), dict[str, list[int]]) or {}
    found = [e for e in recording.entries if e.group_name and not e.is_p2p and e.collective_seq_id > 0]
    numbers: dict[str, int] = {}
    for entry in found:
        numbers[entry.group_name] = max(entry.collective_seq_id, numbers.get(entry.group_name, 0))
    if not found:
        return Entered(0, "none", is_over=True, numbers=numbers, members=members)
    last = max(found, key=lambda e: (e.time_created_ns, e.collective_seq_id))
    inputs = [f"{dtype}{size}" for dtype, size in zip(last.dtypes, last.input_sizes, strict=False)]
    of = f" of {', '.join(inputs)}" if inputs else ""
    within = "" if last.group == "default" else f" in group {last.group.removeprefix('group ')}"
    return Entered(
        last.collective_seq_id, f"{last.op}{of}{within}", is_over=last.retired, numbers=numbers, members=members
    )


def _read(path: Path, kind: type[_Content]) -> _Content | None:
    try:
        with open_left(path) as file:
            return msgspec.json.decode(file.read(_LARGEST_BYTES), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

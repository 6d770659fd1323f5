"""Devices that CUDA sees, and their order, by CUDA_VISIBLE_DEVICES, MIG and CUDA_DEVICE_ORDER.

CUDA_VISIBLE_DEVICES is read as torch reads it (``torch.cuda._parse_visible_devices``, against which tests check it);
MIG by NVIDIA's User Guide: one slice at most, and then nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pytest_distbench.records.environment import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"

_ENDS = "the list ends there"
_NOT_CUT = (
    "GPU {0}: MIG is on and it has no slice: sudo nvidia-smi mig -i {0} -lgip lists profiles, and -cgi PROFILE -C "
    "makes a slice; sudo nvidia-smi -i {0} -mig 0 turns MIG off"
)

_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_OLD_SLICE = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")


Cut = Mapping[str, Mapping[tuple[int, int], Gpu]]
"""UUID of a GPU that is divided by MIG -> its slices by (GPU instance, compute instance); CUDA offers these alone."""

Choice = tuple[list[Gpu], list[str]]
"""The visible devices in CUDA's order, and why other devices that the user named are not visible."""


def choose(cards: Sequence[Gpu], cut: Cut, setting: str | None) -> Choice:
    """Select the GPUs that the value of :data:`VARIABLE` makes visible; all of them if ``setting`` is None."""
    if setting is not None and setting.startswith("MIG-"):
        # The first name alone counts, in today's spelling or in that of drivers before 470.
        name, comma, _ = setting.partition(",")
        fitting = [piece for pieces in cut.values() for piece in pieces.values() if piece.uuid.startswith(name)]
        if (old := _OLD_SLICE.fullmatch(name)) is not None and any(card.uuid == old[1] for card in cards):
            fitting = [*filter(None, [cut.get(old[1], {}).get((int(old[2]), int(old[3])))])]
        if len(fitting) != 1:
            return [], [f"{VARIABLE}: {_why_not_one(name, len(fitting))}"]
        return fitting, [f"{VARIABLE}: of several MIG slices the first alone counts"] if comma else []
    chosen, why = (list(cards), "") if setting is None else listed(cards, setting)
    remarks = [f"{VARIABLE}: {why}"] if why else []
    for card in chosen:
        if pieces := cut.get(card.uuid):
            return [next(iter(pieces.values()))], remarks
    remarks += [_NOT_CUT.format(card.index) for card in chosen if card.uuid in cut]
    return [card for card in chosen if card.uuid not in cut], remarks


def listed(cards: Sequence[Gpu], setting: str) -> tuple[list[Gpu], str]:
    """GPUs by numbers, as C's strtoul reads them, or by UUIDs or their beginnings if the first is one.

    The list ends before the first name that fits no GPU or several; it is empty if a GPU is named twice.
    """
    by_uuid = setting.startswith("GPU-")
    names: list[str] = []
    why = ""
    for part in setting.split(","):
        number = _NUMBER.match(part)
        name = part if by_uuid else str(int(number[1]) if number else -1)
        if name in names:
            return [], f"{name} is named twice, and then there is none"
        if not name.startswith("GPU-" if by_uuid else tuple("0123456789")):
            what = "UUID such as the first" if by_uuid else "number of a GPU"
            why = f"{part!r} is no {what}; {_ENDS}" if setting.strip() else "it is empty, which hides all"
            break
        names.append(name)
    chosen: list[Gpu] = []
    for name in names:
        if by_uuid:
            fitting = [card for card in cards if card.uuid.startswith(name)]
        else:
            fitting = [*cards[int(name) : int(name) + 1]]
        if len(fitting) != 1:
            none = f"there is no GPU {name} of {len(cards)} that count from 0"
            return chosen, f"{_why_not_one(name, len(fitting)) if by_uuid else none}; {_ENDS}"
        if fitting[0] in chosen:
            return [], f"{name} names one twice, and then there is none"
        chosen += fitting
    return chosen, why


def _why_not_one(name: str, count: int) -> str:
    return f"{count} devices have a UUID that begins with {name}" if count else f"no device has the UUID {name}"

"""Which devices CUDA sees, in which order: CUDA_VISIBLE_DEVICES, MIG and CUDA_DEVICE_ORDER.

The reading of the variable is that of torch (``torch.cuda._parse_visible_devices``), against which tests check it; the
rules for MIG are those of NVIDIA's MIG User Guide: one slice at most, and none but it where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU of this machine, as far as visibility goes.

    Attributes:
        is_cut: MIG is on: CUDA does not offer it whole.
        slices: its MIG slices, by (GPU instance, compute instance), in the driver's order.
        speed: grows with what it can compute; 0.0: unknown.
    """

    gpu: Gpu
    is_cut: bool = False
    slices: Mapping[tuple[int, int], Gpu]
    speed: float = 0.0


def in_order(cards: Sequence[Card], variables: Mapping[str, str]) -> list[Card]:
    """The cards as CUDA counts them: by their place on the bus, or the fastest first where the user has chosen that."""
    by_bus = sorted(cards, key=lambda card: card.gpu.pci)
    if variables.get(ORDER, PCI_ORDER) == PCI_ORDER:
        return by_bus
    return sorted(by_bus, key=lambda card: -card.speed)


Choice = tuple[list[Gpu], list[str]]
"""What is visible, in the order in which CUDA numbers it, and why no more of what the user has named is."""


def choose(cards: Sequence[Card], setting: str | None) -> Choice:
    """The devices that are visible.

    Args:
        setting: the value of :data:`VARIABLE`; None: it is not set.
    """
    if setting is not None and setting.startswith("MIG-"):
        return _named_slice(cards, setting)
    why = ""
    if setting is None:
        chosen = list(cards)
    elif setting.startswith("GPU-"):
        chosen, why = _named(cards, setting)
    else:
        chosen, why = _numbered(cards, setting)
    remarks = [f"{VARIABLE}: {why}"] if why else []
    for card in chosen:
        if card.is_cut and card.slices:
            return [next(iter(card.slices.values()))], remarks
    remarks += [_NOT_CUT.format(card.gpu.index) for card in chosen if card.is_cut]
    return [card.gpu for card in chosen if not card.is_cut], remarks


def is_by_number(setting: str | None) -> bool:
    """Whether devices are named by their place in CUDA's order, and not by what they are."""
    return setting is None or not setting.startswith(("GPU-", "MIG-"))


def _numbered(cards: Sequence[Card], setting: str) -> tuple[list[Card], str]:
    """By numbers, as C's strtoul reads them, up to the first that is none or too large. Twice the same: none at all."""
    numbers: list[int] = []
    why = ""
    for part in setting.split(","):
        found = _NUMBER.match(part)
        number = int(found.group(1)) if found else -1
        if number in numbers:
            return [], f"{number} is named twice, and then there is none"
        if number < 0:
            why = f"{part!r} is no number of a GPU; {_ENDS}" if setting.strip() else "it is empty, which hides all"
            break
        numbers.append(number)
    valid = next((i for i, number in enumerate(numbers) if number >= len(cards)), len(numbers))
    if valid < len(numbers):
        why = f"there is no GPU {numbers[valid]} of {len(cards)} that count from 0; {_ENDS}"
    return [cards[number] for number in numbers[:valid]], why


def _named(cards: Sequence[Card], setting: str) -> tuple[list[Card], str]:
    """By UUIDs or the beginnings of such: up to the first that fits none or several. Twice the same: none."""
    names: list[str] = []
    why = ""
    for part in setting.split(","):
        if part in names:
            return [], f"{part} is named twice, and then there is none"
        if not part.startswith("GPU-"):
            why = f"{part!r} is no UUID such as the first; {_ENDS}"
            break
        names.append(part)
    chosen: list[Card] = []
    for name in names:
        fitting = [card for card in cards if card.gpu.uuid.startswith(name)]
        if len(fitting) != 1:
            return chosen, f"{_why_not_one(name, len(fitting))}; {_ENDS}"
        if fitting[0] in chosen:
            return [], f"{name} names one twice, and then there is none"
        chosen += fitting
    return chosen, why


def _named_slice(cards: Sequence[Card], setting: str) -> Choice:
    """The first name alone counts, in today's spelling or in that of drivers before 470."""
    name, comma, _ = setting.partition(",")
    old = _OLD_SLICE.fullmatch(name)
    fitting = [piece for card in cards for piece in card.slices.values() if piece.uuid.startswith(name)]
    for card in cards:
        if old is not None and card.gpu.uuid == old.group(1):
            fitting = list(filter(None, [card.slices.get((int(old.group(2)), int(old.group(3))))]))
    if len(fitting) != 1:
        return [], [f"{VARIABLE}: {_why_not_one(name, len(fitting))}"]
    return fitting, [f"{VARIABLE}: of several MIG slices the first alone counts"] if comma else []


def _why_not_one(name: str, count: int) -> str:
    return f"{count} devices have a UUID that begins with {name}" if count else f"no device has the UUID {name}"

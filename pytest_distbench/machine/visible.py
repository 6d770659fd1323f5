"""Which devices CUDA sees, in which order: CUDA_VISIBLE_DEVICES, MIG and CUDA_DEVICE_ORDER.

The reading of the variable is that of torch (``torch.cuda._parse_visible_devices``), against which tests check it; the
rules for MIG are those of NVIDIA's MIG User Guide: one slice at most, and none but it where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.records.gpu import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"

_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_OLD_SLICE = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU of this machine, as far as visibility goes.

    Attributes:
        gpu: itself.
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


def choose(cards: Sequence[Card], setting: str | None) -> list[Gpu]:
    """The devices that are visible, in the order in which CUDA numbers them.

    Args:
        cards: of the machine, as CUDA counts them.
        setting: the value of :data:`VARIABLE`; None: it is not set.
    """
    if setting is not None and setting.startswith("MIG-"):
        return list(_named_slice(cards, setting))
    if setting is None:
        chosen = list(cards)
    elif setting.startswith("GPU-"):
        chosen = _named(cards, setting)
    else:
        chosen = _numbered(cards, setting)
    for card in chosen:
        if card.is_cut and card.slices:
            return [next(iter(card.slices.values()))]
    return [card.gpu for card in chosen if not card.is_cut]


def is_by_number(setting: str | None) -> bool:
    """Whether devices are named by their place in CUDA's order, and not by what they are."""
    return setting is None or not setting.startswith(("GPU-", "MIG-"))


def _numbered(cards: Sequence[Card], setting: str) -> list[Card]:
    """By numbers, as C's strtoul reads them, up to the first that is none or too large. Twice the same: none at all."""
    numbers: list[int] = []
    for part in setting.split(","):
        found = _NUMBER.match(part)
        number = int(found.group(1)) if found else -1
        if number in numbers:
            return []
        if number < 0:
            break
        numbers.append(number)
    valid = next((i for i, number in enumerate(numbers) if number >= len(cards)), len(numbers))
    return [cards[number] for number in numbers[:valid]]


def _named(cards: Sequence[Card], setting: str) -> list[Card]:
    """By UUIDs or the beginnings of such: up to the first that fits none or several. Twice the same: none."""
    names: list[str] = []
    for part in setting.split(","):
        if part in names:
            return []
        if not part.startswith("GPU-"):
            break
        names.append(part)
    chosen: list[Card] = []
    for name in names:
        fitting = [card for card in cards if card.gpu.uuid.startswith(name)]
        if len(fitting) != 1:
            break
        if fitting[0] in chosen:
            return []
        chosen += fitting
    return chosen


def _named_slice(cards: Sequence[Card], setting: str) -> Iterator[Gpu]:
    """The first name alone counts, in today's spelling or in that of drivers before 470."""
    name = setting.partition(",")[0]
    old = _OLD_SLICE.fullmatch(name)
    for card in cards:
        if old is not None and card.gpu.uuid == old.group(1):
            yield from filter(None, [card.slices.get((int(old.group(2)), int(old.group(3))))])
            return
    fitting = [piece for card in cards for piece in card.slices.values() if piece.uuid.startswith(name)]
    if len(fitting) == 1:
        yield fitting[0]

"""Quantities as people read them. Inside the package everything is seconds and bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from pytest_distbench.errors import ConfigurationError

_BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SUFFIXES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

_DURATIONS = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SIZES = {
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9,
    "TB": 10**12,
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?")

GIGABYTE = 1e9  # bytes in the GB of algbw and busbw: decimal, as nccl-tests prints them


def parse_bytes(text: str) -> int:
    """Read ``"64MiB"``, ``"4 KiB"``, ``"1GB"`` (decimal) or a plain number of bytes.

    Raises:
        ConfigurationError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _SUFFIXES:
        raise ConfigurationError(f"{text!r} is not a size: write for example 4096, 64KiB, 1MiB or 2GiB")
    return int(float(match[1]) * _SUFFIXES[match[2].lower()])


def parse_quantity(text: str) -> tuple[float, str]:
    """Read a number and its unit, or "" if it has none: ``"200us"``, ``"10 GB/s"``, ``"2.5"``.

    Raises:
        ConfigurationError: the text is no finite number with or without a unit.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or not math.isfinite(float(match[1])):
        raise ConfigurationError(f"{text!r} is no number with a unit: write for example 200us, 10 GB/s, 64 MiB or 2.5")
    return float(match[1]), match[2] or ""


def convert(value: float, unit: str, wanted: str) -> float:
    """Convert a value to another unit of the same kind: 200 ``us`` are 0.0002 ``s``. ``unit=""`` is the wanted unit.

    Durations, sizes, and sizes over durations are converted; ``%`` is a hundredth where no unit is wanted. Any other
    unit converts to itself alone.

    Raises:
        ConfigurationError: the unit is of another kind than the wanted one.
    """
    if unit in ("", wanted):
        return value
    (kind, factor), (wanted_kind, wanted_factor) = _dimension(unit), _dimension(wanted)
    if kind != wanted_kind:
        examples = {"s": "a time such as 200us or 1.5 s", "B": "a size such as 64 MiB", "B/s": "a rate such as 10 GB/s"}
        like = examples.get(wanted_kind, f"{wanted!r}" if wanted else "a number without a unit")
        raise ConfigurationError(f"the unit {unit!r} does not fit: wanted {like}")
    return float(f"{value * factor / wanted_factor:.15g}")  # 200 us are 0.0002 s, not a bit less


def is_size(unit: str) -> bool:
    """Whether a unit measures bytes, not time or a rate: no load of the machine changes such a number."""
    return _dimension(unit)[0] == "B"


def is_duration(unit: str) -> bool:
    return _dimension(unit)[0] == "s"


def is_rate(unit: str) -> bool:
    return _dimension(unit)[0].endswith("/s")


def why_impossible(value: float, unit: str) -> str:
    """Why no measurement in this unit can have this value, in a clause, or "".

    A time is above 0 s, whatever was timed; a size is not below 0 B.
    """
    kind = _dimension(unit)[0]
    if kind == "s" and value <= 0:
        return f"{format_quantity(value, unit)} is no time that anything takes"
    if kind == "B" and value < 0:
        return f"{format_quantity(value, unit)} is no size"
    return ""


def _dimension(unit: str) -> tuple[str, float]:
    """Return (base unit, factor): ``GB/s`` is ("B/s", 1e9)."""
    if unit in _DURATIONS:
        return "s", _DURATIONS[unit]
    if unit in _SIZES:
        return "B", _SIZES[unit]
    if unit == "%":
        return "", 0.01
    amount, slash, duration = unit.partition("/")
    if slash and duration.strip() in _DURATIONS:
        kind, factor = _dimension(amount.strip())
        return f"{kind}/s", factor / _DURATIONS[duration.strip()]
    return unit, 1.0


def format_bytes(size: float) -> str:
    """Write a number of bytes in powers of two, without losing digits: 1536 is ``1.5 KiB``."""
    for name, factor in _BINARY:
        if size >= factor:
            return f"{size / factor:.4g} {name}"
    return f"{size:g} B"


def format_seconds(seconds: float) -> str:
    """Write a duration with four significant digits and its unit."""
    for factor, name in _TIMES:
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {name}"
    return f"{seconds:g} s"


def about(seconds: float) -> str:
    """Write a rounded duration: ``40 s``, ``2.5 min``, ``12 min``."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 5 else f"{minutes:.1f} min"


def format_moment(iso: str) -> str:
    """Write an ISO time of a record as ``2026-11-30 05:36:43 UTC``."""
    return f"{iso.replace('T', ' ').removesuffix('+00:00')} UTC"


def format_quantity(value: float, unit: str) -> str:
    """Write a value of a metric with its unit, scaled where the unit is seconds, bytes, or bytes per second."""
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    if unit == "B/s":
        return f"{value / GIGABYTE:.4g} GB/s"
    if isinstance(value, int):
        digits = f"{value:,d}"  # a float would not have all of them
    else:
        digits = f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    return f"{digits} {unit}".rstrip()


def quantity(value: float | None, unit: str) -> str:
    """Write a value with its unit, or ``-`` for None."""
    return "-" if value is None else format_quantity(value, unit)


def plural(number: int, noun: str) -> str:
    """The form of a noun behind a number: ``case`` and ``cases``, ``launch`` and ``launches``."""
    return noun if number == 1 else f"{noun}es" if noun.endswith("ch") else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Write a number of things: ``1 case``, ``3 launches``."""
    return f"{number} {plural(number, noun)}"


def and_more(names: Sequence[str], *, shown: int = 1) -> str:
    """Write the first names of a list, and how many more there are."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def format_values(values: Iterable[float | None], unit: str) -> str:
    """Write the first four different values of a metric; None is ``none``."""
    distinct = list(dict.fromkeys(values))
    return ", ".join("none" if v is None else format_quantity(v, unit) for v in distinct[:4])


def format_change(ratio: float) -> str:
    """Write a ratio current/baseline as a signed percentage: 1.125 is ``+12.5 %``."""
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f} %"  # plus zero: nothing is no decrease


def format_percent(share: float) -> str:
    """Write a minimum detectable effect as a percentage: ``40 %``."""
    return f"{share * 100:.0f} %" if share < 10 else "more than 1000 %"


def format_share(share: float) -> str:
    """Write a share without a sign: ``12.5 %``, or ``3.1e-08`` if a percentage would show 0."""
    return f"{share * 100:.1f} %" if share >= 5e-4 else f"{share:.1e}"


def as_float(value: object) -> float | None:
    """Convert a number of any library to a float, or None if it is no number. Booleans and text are none."""
    if _is_yes_or_no(value) or isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001 a tensor of several elements, a number beyond all floats
        return None


def as_share(value: object) -> float | None:
    """Convert a number, or text such as ``0.1``, ``10%`` or ``10 %``, to a fraction, or None if it is neither."""
    if not isinstance(value, str):
        return as_float(value)
    try:
        return convert(*parse_quantity(value), "")
    except ConfigurationError:
        return None


def as_int(value: object) -> int | None:
    """Convert an integer of any library to an int, or None if it is none. Booleans and 2.0 are none."""
    if _is_yes_or_no(value) or not hasattr(value, "__index__"):
        return None
    try:
        return int(value.__index__())
    except Exception:  # noqa: BLE001 whatever its class does, it is no number
        return None


def _is_yes_or_no(value: object) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")

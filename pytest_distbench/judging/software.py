"""Software drift: how the versions a baseline was taken with differ from today's. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping


def software_changes(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """What differs, by name: ``torch 2.12.0 -> 2.13.0``; ``-`` is what one side does not know.

    Ranks record only software that can change a result (worker.usage), so verdicts and reports mean the same by it.
    """
    names = sorted({*stored, *current})
    return [f"{n} {stored.get(n, '-')} -> {current.get(n, '-')}" for n in names if stored.get(n) != current.get(n)]

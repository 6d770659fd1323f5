"""Software drift: how the versions a baseline was taken with differ from today's. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_distbench.records.environment import SETTINGS


def software_changes(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """What differs, by name: ``torch 2.12.0 -> 2.13.0``; ``-`` is what one side does not know.

    Ranks record only software that can change a result (worker.usage).
    """
    names = sorted({*stored, *current})
    return [f"{n} {stored.get(n, '-')} -> {current.get(n, '-')}" for n in names if stored.get(n) != current.get(n)]


def version_changes(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """The same without what the code under test chooses. Where there is none, exact numbers have to be equal."""
    return software_changes(_versions(stored), _versions(current))


def _versions(software: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in software.items() if name not in SETTINGS}

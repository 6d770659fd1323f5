"""The same collectives called in other ways, each a measurement of its own."""

from typing import Any

import pytest

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "all_reduce-out-of-place": ("all_reduce", {"in_place": False}),
    "all_gather-in-place": ("all_gather", {"in_place": True}),
    "reduce_scatter-in-place": ("reduce_scatter", {"in_place": True}),
    "broadcast-root-shift": ("broadcast", {"root": "shift"}),
    "reduce-root-shift": ("reduce", {"root": "shift"}),
    "all_reduce-hot": ("all_reduce", {"cache": "hot"}),
    "all_reduce-batch": ("all_reduce", {"mode": "batch"}),
    "all_reduce-4-tensors": ("all_reduce", {"parts": 4}),
    "all_reduce-4-coalesced": ("all_reduce", {"parts": 4, "together": "coalesced"}),
    "all_reduce-4-at-once": ("all_reduce", {"parts": 4, "together": "async"}),
    "all_gather-4-coalesced": ("all_gather", {"parts": 4, "together": "coalesced"}),
    "send_recv-4-at-once": ("send_recv", {"parts": 4, "together": "async"}),
}


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
def test_form(collective_sweep, tolerance, form):
    collective, choices = FORMS[form]
    collective_sweep(collective, sizes="small", tolerance=tolerance, **choices)


@pytest.mark.full
@pytest.mark.world_size(min=4)
@pytest.mark.parametrize("group", ["half", "halves"])
def test_groups(collective_sweep, tolerance, group):
    """A group of half the ranks, and two of them at the same time."""
    collective_sweep("all_reduce", sizes="small", group=group, tolerance=tolerance)

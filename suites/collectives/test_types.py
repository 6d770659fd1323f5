"""Every element type and reduce operation: which of them the backend has, and whether the results are exact.

Pairs that it has not are rows that say so, with its reason. Times are shown and not judged: the messages have 4 KiB.
"""

import pytest

REDUCING = ["all_reduce", "reduce_scatter", "reduce"]
MOVING = ["all_gather", "broadcast", "gather", "scatter", "all_to_all", "all_to_all_v", "send_recv"]

LONG = pytest.mark.full
pytestmark = pytest.mark.distbench(metrics=["supported", "wrong_elements", "fingerprint"])
SHORT = {"sizes": [4096], "iterations": 5, "warmup": 1, "cache": "hot"}


@pytest.mark.parametrize("collective", [REDUCING[0], *(pytest.param(name, marks=LONG) for name in REDUCING[1:])])
def test_reductions(collective_sweep, collective):
    collective_sweep(collective, dtype="all", redop="all", **SHORT)


@LONG
@pytest.mark.parametrize("collective", MOVING)
def test_types(collective_sweep, collective):
    collective_sweep(collective, dtype="all", **SHORT)

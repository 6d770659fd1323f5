"""GPU memory that ended ranks held: awaited until it is back, and named where it does not come back.

A killed process is gone at once for the kernel, while the driver takes seconds to tear its context down. The next
launch would find the memory taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pytest_distbench.units import format_bytes, format_seconds

PATIENCE_S = 20.0
"""How long the driver may take. Contexts of tens of GiB were seen to need several seconds."""
SLACK_BYTES = 2**28
"""What other processes and the driver itself may take meanwhile."""
_PAUSE_S = 0.1


def await_memory(
    read: Callable[[], Mapping[str, int]],
    before: Mapping[str, int],
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, int]:
    """Wait until GPUs have about as much memory as before; GPU -> bytes that have not come back."""
    deadline = clock() + patience_s
    while True:
        now = read()
        held = {gpu: now[gpu] - used for gpu, used in before.items() if now.get(gpu, 0) > used + SLACK_BYTES}
        if not held or clock() >= deadline:
            return held
        sleep(_PAUSE_S)


def held_remark(gpu: str, held_bytes: int, users: list[str], *, patience_s: float = PATIENCE_S) -> str:
    """What is said of a GPU whose memory has not come back."""
    whose = f"on it: {', '.join(users)}" if users else "no process is on it"
    return (
        f"{gpu} holds {format_bytes(held_bytes)} more than before the launch, {format_seconds(patience_s)} after its "
        f"ranks were ended; {whose}. The next launch may find too little memory"
    )

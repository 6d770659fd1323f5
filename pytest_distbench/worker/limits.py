"""How long a rank waits for what, as shares of the launch's time: they nest, so that the inner one explains.

gloo raises where a rank has waited too long, and the traceback tells where: that comes before the launch's own end.
NCCL does not raise. Its watchdog ends the process a minute later (``launch/diagnosis/evidence.py``), and with it the
stacks and the recorder that tell which rank is missing: under NCCL the launch's own end comes first. Without torch:
pytest's process asks, too.
"""

from __future__ import annotations

from collections.abc import Mapping

_START_S = 120.0
_RANKS_A_SECOND = 100.0
_STORE_SHARE = 0.6
_GROUP_SHARE = 0.8
_BEYOND_S = 60.0
"""More than ranks need to show where they are when the launch's time is over."""
_HEARTBEAT_S = 480.0
"""torch's own limit for a watchdog that makes no progress."""
_YES = ("1", "y", "yes", "t", "true")


def start_s(ranks: int) -> float:
    """Seconds that ranks may need to come up, besides the launch's: torchrun imports torch in each of them."""
    return _START_S + ranks / _RANKS_A_SECOND


def store_s(timeout_s: float) -> float:
    """Seconds a rank waits for the others to meet, of the launch's seconds."""
    return timeout_s * _STORE_SHARE


def collective_s(backend: str, timeout_s: float, variables: Mapping[str, str]) -> float:
    """Seconds a rank waits in a collective: ``TORCH_NCCL_BLOCKING_WAIT`` makes NCCL raise as gloo does."""
    if backend == "nccl" and variables.get("TORCH_NCCL_BLOCKING_WAIT", "").lower() not in _YES:
        return timeout_s + _BEYOND_S
    return timeout_s * _GROUP_SHARE


def heartbeat_s(timeout_s: float) -> float:
    """Seconds after which a watchdog of NCCL's that makes no progress itself ends the rank: not before the launch."""
    return max(_HEARTBEAT_S, timeout_s + _BEYOND_S)

"""How a backend is to send: the table of transports, each by the variables that have it from the backend.

pytest's process reads it without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_distbench.errors import look_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """A way to send.

    Attributes:
        summary: for people.
        variables: of the ranks, by backend; a backend that is not there has no such way.
        collectives: that can be sent so; empty: all.
    """

    summary: str
    variables: Mapping[str, Mapping[str, str]]
    collectives: tuple[str, ...] = ()


def _nccl(summary: str, *collectives: str, **variables: str) -> Transport:
    return Transport(summary=summary, variables={"nccl": variables}, collectives=collectives)


TRANSPORTS: dict[str, Transport] = {
    "ring": _nccl("the algorithm Ring", NCCL_ALGO="Ring"),
    "tree": _nccl("the algorithm Tree, which NCCL has for all_reduce", "all_reduce", NCCL_ALGO="Tree"),
    "simple": _nccl("the protocol Simple: whole chunks, for bandwidth", NCCL_PROTO="Simple"),
    "ll": _nccl("the protocol LL: flags between the data, for latency", NCCL_PROTO="LL"),
    "ll128": _nccl("the protocol LL128: the same in lines of 128 bytes, over NVLink", NCCL_PROTO="LL128"),
    "shm": _nccl("through the host's memory, where GPUs of a host would reach each other", NCCL_P2P_DISABLE="1"),
    "socket": _nccl(
        "through sockets, also within a host", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_NET="Socket"
    ),
}
"""By the name that ``transport=`` takes. gloo has none: in torch's builds for Linux TCP is all there is."""


def transport_of(name: str) -> Transport:
    """Look a transport up."""
    return look_up(TRANSPORTS, name, "transport")

"""Stores on 127.0.0.1 only: torchrun's, by a rendezvous of one node, and those of forked ranks. Imports torch."""

from __future__ import annotations

import socket
import uuid

import msgspec
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from pytest_distbench.launch.starters import LOOPBACK_ADDRESS
from pytest_distbench.worker.torch_internals import store_on

_STORE_TIMEOUT_S = 60.0


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one node, whose store is a TCPStore that this process binds to a free port.

    Ranks join it as under torchrun (TORCHELASTIC_USE_AGENT_STORE). No port is probed for, and torch's random delay (0
    to 0.3 s) does not apply.
    """

    def __init__(self) -> None:
        self._run_id = uuid.uuid4().hex[:12]
        self._store: TCPStore | None = _new_store()
        self._rounds = 0

    def get_backend(self) -> str:
        return "distbench-loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        assert self._store is not None
        if self._rounds:
            self._store = _new_store()  # ranks that are started again find no keys of those before
        self._rounds += 1
        store = PrefixStore(f"agent/{self._run_id}", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK_ADDRESS, self._store.port))

    def is_closed(self) -> bool:
        return self._store is None

    def set_closed(self) -> None:
        self._store = None

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._store = None
        return True


def _new_store() -> TCPStore:
    return store_on(socket.create_server((LOOPBACK_ADDRESS, 0)), timeout_s=_STORE_TIMEOUT_S)


def keep_stores(descriptor: int) -> None:
    """Keep the store of one launch after the other, until the connection with that descriptor closes.

    Runs in its own process: a store has threads, and ranks are forked from a process without.
    """
    from pytest_distbench.launch.starters.parent import Order, Word  # late: torchrun has no use for them

    line = socket.socket(fileno=descriptor)
    store = None
    for order in line.makefile("rb"):
        store = None
        if msgspec.json.decode(order, type=Order).what == "make":
            try:
                store = _new_store()
                answer = Word(what="made", port=store.port)
            except Exception as error:  # noqa: BLE001 sent to pytest; the next may well work
                what = str(error).partition("\nException raised from")[0]  # then follow torch's frames of C++
                answer = Word(what="made", trouble=f"{type(error).__name__}: {' '.join(what.split())}")
            line.sendall(msgspec.json.encode(answer) + b"\n")

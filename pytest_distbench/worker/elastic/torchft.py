"""TorchftRank: what the body of a job under torchft is given, and the training that goes on from quorum to quorum."""

from __future__ import annotations

import inspect
import json
import logging
import os
import socket
from datetime import timedelta
from http.server import ThreadingHTTPServer
from typing import Any, NoReturn

import torchft
from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only
from torchft.checkpointing import HTTPTransport, http_transport
from torchft.coordination import ManagerServer

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.elastic import NO_QUORUM
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Discarded, Joined, Loaded, Rendezvous
from pytest_distbench.worker.clock.host import HostClock
from pytest_distbench.worker.elastic.rank import ElasticRank
from pytest_distbench.worker.elastic.training import Training
from pytest_distbench.worker.torch_internals import store_on

_LOOPBACK = "127.0.0.1"
_STORE_S = 300.0
"""How long peers wait for each other's store: torch's own."""
_MOST_DISCARDED = 100
"""Steps in a row: a node that is lost costs one or two, and more that never count come from the body."""


class TorchftRank(ElasticRank):
    """The :class:`ElasticRank` of torchft: its body runs once, and the quorum changes inside it, between two steps.

    ``rank`` and ``world_size`` are those of the quorum of the step under way; before the first a node is alone. There
    is no process group but that of torchft's Manager, which the gradients go through.

    Attributes:
        generation: number of the quorum, as the lighthouse counts.
    """

    def __init__(self, plan: LaunchPlan, slot: int) -> None:
        super().__init__(plan, slot, NO_QUORUM)
        if plan.backend != "gloo":
            raise RecordingError(f"engine='torchft' computes on gloo, found backend {plan.backend}: leave out --gpu")
        missing: Any = _NoGroup()
        self._side_group = missing

    def training(self, **parts: Any) -> TorchftTraining:
        """Take what must survive a change of membership: newcomers get it from a node that has it.

        Every part has ``state_dict`` and ``load_state_dict``: a model, an optimizer, a schedule. Step, epoch and place
        in the epoch are kept besides. The learning rate comes with the optimizer: where it depends on the world size,
        set it in each step.

        Args:
            parts: by name.

        Raises:
            RecordingError: a part cannot be kept.
        """
        if self._training is not None:
            raise RecordingError("rank.training(...) was called before in this body: one training keeps all parts")
        training = TorchftTraining(self, self._job, self._files, parts)
        self._training = training
        return training


class _NoGroup:
    """Takes the place of the ranks' side group: no group outlives a quorum, and each node has the whole model."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RecordingError(
            f"{name} over ranks: under engine='torchft' there is no group of all ranks. Each node has the whole model: "
            "let each compute the whole number"
        )


class StepManager(torchft.Manager):  # type: ignore[misc] # torchft has no types
    """A Manager whose quorum meets before a step's samples are chosen.

    torchft's Optimizer asks for the quorum in ``zero_grad``; then it has met, and nothing is left to do.

    ``was_asked``: the step may count, since the last quorum: its optimizer has come to its end.
    """

    was_asked = False

    def meet(self) -> None:
        """Wait for the next quorum, and take over a peer's state where this node has fallen behind."""
        self.was_asked = False
        super().start_quorum()

    def start_quorum(self, *args: object, **options: object) -> None:
        """It has met."""

    def should_commit(self, timeout: timedelta | None = None) -> bool:
        self.was_asked = True
        return bool(super().should_commit(timeout))


class TorchftTraining(Training):
    """A training whose processes outlive changes of membership: who stays keeps its state, who comes gets it of a peer.

    Attributes:
        manager: torchft's, for ``torchft.DistributedDataParallel(manager, model)`` and
            ``torchft.Optimizer(manager, optimizer)``.
    """

    def __init__(self, rank: ElasticRank, *args: Any) -> None:
        super().__init__(rank, *args)
        timers = self._job.timers
        limit = timedelta(seconds=timers["collective_s"])
        name = f"slot{rank.slot}"
        _close_doors()
        self._quorums = _Quorums(name)
        self._transport = _Transport(limit, num_chunks=0)
        self._healed: Loaded | None = None
        self._discarded = 0
        self.manager = _manage(
            pg=_Group(timeout=limit),
            load_state_dict=self._heal,
            state_dict=self._state,
            checkpoint_transport=self._transport,
            min_replica_size=self._job.least,
            use_async_quorum=False,  # who takes a step decides about its samples, and has to be known before them
            timeout=limit,
            connect_timeout=limit,
            quorum_timeout=timedelta(seconds=timers["settle_s"]),
            heartbeat_interval=timedelta(seconds=timers["heartbeat_interval_s"]),
            replica_id=name,
            hostname=_LOOPBACK,
        )

    def _meet(self, epochs: int) -> bool:
        began = HostClock.monotonic()
        self.manager.meet()
        if (met := self._quorums.take()) is not None:
            self._enter(began, *met)
        if self._healed is not None:
            self._note(replace(self._healed, generation=self._rank.generation))
            self._healed = None
        return self.epoch < epochs

    def _enter(self, began: float, met: float, number: int) -> None:
        """A new quorum: its number is the generation."""
        rank = self._rank
        rank.rank, rank.world_size = self.manager.participating_rank(), self.manager.num_participants()
        rank.generation = number
        self._note(Rendezvous(t=met, slot=rank.slot, seconds=met - began))
        self._note(
            Joined(
                t=HostClock.monotonic() if self._healed is None else self._healed.began_t,
                slot=rank.slot,
                pid=os.getpid(),
                generation=number,
                rank=rank.rank,
                world_size=rank.world_size,
                step=self.step,
            )
        )

    def _heal(self, state: dict[str, Any]) -> None:
        """Take over what a peer has sent."""
        self._take(state, "a peer")
        self._healed = Loaded(
            t=HostClock.monotonic(), slot=self._rank.slot, generation=0, began_t=self._transport.began_t, step=self.step
        )

    def _counts(self) -> bool:
        if not self.manager.was_asked:
            raise RecordingError(
                "a step is over, and torchft was not asked whether it counts: the optimizer has to be torchft's, "
                "torchft.Optimizer(training.manager, optimizer), and take one step for each batch"
            )
        is_taken = bool(self.manager.current_step() > self.step)
        if not is_taken:
            rank, now = self._rank, HostClock.monotonic()
            self._note(Discarded(t=now, slot=rank.slot, generation=rank.generation, step=self.step + 1))
        self._discarded = 0 if is_taken else self._discarded + 1
        if self._discarded > _MOST_DISCARDED:
            error = self.manager.errored()
            why = "too few nodes" if error is None else f"{type(error.original_exception).__name__}: {error}"
            raise RecordingError(f"torchft took none of {self._discarded} steps in a row, the last because of {why}")
        return is_taken

    def _keep(self) -> None:
        """Peers have it."""

    def _part(self) -> None:
        """All nodes have met once more behind the last step, so nobody is needed any longer."""
        self.manager.shutdown(wait=False)


class _Quorums(logging.Handler):
    """Hears of each new quorum of a node, when the lighthouse has answered and the group is not made yet."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._new: tuple[float, int] | None = None
        logger = logging.getLogger("torchft_quorums")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        if record.__dict__["replica_id"] == self._name:
            self._new = HostClock.monotonic(), int(record.__dict__["quorum_id"])

    def take(self) -> tuple[float, int] | None:
        """When it was told of a quorum since the last call, and its number; None: there is no new one."""
        found, self._new = self._new, None
        return found


class _Transport(HTTPTransport):  # type: ignore[misc] # torchft has no types
    """Notes when a peer's state begins to come, and serves this host alone: who is served unpickles what it gets."""

    began_t = 0.0

    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self._server.server_port}/checkpoint/"

    def recv_checkpoint(self, *args: Any, **options: Any) -> Any:
        self.began_t = HostClock.monotonic()
        return super().recv_checkpoint(*args, **options)


def _manage(**settings: Any) -> StepManager:
    """Make the Manager, where the torchft that is installed has such settings."""
    unknown = settings.keys() - inspect.signature(torchft.Manager).parameters.keys()
    if unknown:
        raise RecordingError(
            f"the Manager of the torchft that is installed takes no {', '.join(sorted(unknown))}: its interface is "
            "another than that of torchft-nightly 2026.10.26, which this engine was tested with; install that one"
        )
    return StepManager(**settings)


class _Group(torchft.ProcessGroupGloo):  # type: ignore[misc] # torchft has no types
    """Meets the others of a quorum where this host alone can: torchft's own has its store on every interface."""

    _rendezvous_store: TCPStore | None

    def get_reconfigure_handle(self) -> str:
        if self._rendezvous_store is None:
            self._rendezvous_store = store_on(socket.create_server((_LOOPBACK, 0)), timeout_s=_STORE_S)
        handle = json.loads(super().get_reconfigure_handle())
        return json.dumps({**handle, "store": f"{_LOOPBACK}:{self._rendezvous_store.port}"})


class _LoopbackServer(ThreadingHTTPServer):
    """Takes the place of the server that torchft sends a state with."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        super().__init__((_LOOPBACK, address[1]), handler)


def _close_doors() -> None:
    """From now on what torchft serves in this process is for this host alone: it asks for every interface."""

    def serve(**options: Any) -> ManagerServer:
        return ManagerServer(**{**options, "bind": f"{_LOOPBACK}:0"})

    torchft.manager.ManagerServer = serve
    http_transport._IPv6HTTPServer = _LoopbackServer

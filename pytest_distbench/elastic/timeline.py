"""The timelines of elastic jobs and pools: lines of JSON, each whole, that several processes append to one file.

In a job's these are its controller and its workers. Each line is of a slot and, from the moment a worker has joined its
group, of a generation. Times are CLOCK_MONOTONIC seconds, which all processes of a host share. In a pool's, which says
who has which slot and when servers are ready, they are its controller and the servers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from pytest_distbench.elastic.records import ChangeKind
from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.records.record import Record


class _Line(Record, frozen=True, kw_only=True, tag_field="what"):
    t: float


class _OfWorker(_Line, frozen=True, kw_only=True):
    slot: int
    generation: int


class _OfSlot(_Line, frozen=True, kw_only=True):
    owner: str
    slot: int


class Began(_Line, frozen=True, kw_only=True, tag="began"):
    slots: list[int]


class Changed(_Line, frozen=True, kw_only=True, tag="changed"):
    """The controller changes the membership now."""

    index: int
    kind: ChangeKind
    slots: list[int]
    expected: list[int]
    """Slots that should train from now on."""
    overlaps: bool = False


class Stable(_Line, frozen=True, kw_only=True, tag="stable"):
    """All slots that should train have taken steps in one generation."""

    index: int
    """Of the change that is over; -1: the start."""
    generation: int
    world_size: int


class Rendezvous(_Line, frozen=True, kw_only=True, tag="rendezvous"):
    """An agent has completed a rendezvous."""

    slot: int
    seconds: float


class AgentEnded(_Line, frozen=True, kw_only=True, tag="agent_ended"):
    slot: int
    code: int


class WorkerEnded(_Line, frozen=True, kw_only=True, tag="worker_ended"):
    """The process of a worker is gone, as the controller has seen."""

    slot: int
    pid: int


class Started(_Line, frozen=True, kw_only=True, tag="started"):
    """A worker runs and has imported what it needs."""

    slot: int
    pid: int
    process_t: float
    """When the process was made."""
    restarts: int
    """That its agent has used."""


class Joined(_Line, frozen=True, kw_only=True, tag="joined"):
    slot: int
    pid: int
    generation: int
    rank: int
    world_size: int
    called_t: float | None = None
    """Of a script: when it asked for its group. Until then it imports, and does what it does before."""


class Loaded(_OfWorker, frozen=True, kw_only=True, tag="loaded"):
    """A worker has what the newest good checkpoint held, or has found none."""

    began_t: float
    step: int
    """That the training goes on from; 0: from its beginning."""
    torn: list[str] = []
    """Names of newer checkpoints that were passed over, because they are not whole."""


class Batch(_OfWorker, frozen=True, kw_only=True, tag="batch"):
    """A worker was given samples for a step. Written before the step: what it trains on is known, however it ends."""

    step: int
    epoch: int
    samples: list[int]


class Wanted(_OfWorker, frozen=True, kw_only=True, tag="wanted"):
    """A body asks for batches: what the training is to have trained on when it is over."""

    samples: int
    epochs: int
    epoch: int = 0
    """That was under way then."""
    is_end: bool = False
    """The body ends on purpose with them: it need not be what was asked for before."""


class Drew(_OfWorker, frozen=True, kw_only=True, tag="drew"):
    """What a worker has trained on in a step, where it says so itself; it counts in place of the :class:`Batch`."""

    step: int
    samples: list[int]


class Fed(_OfWorker, frozen=True, kw_only=True, tag="fed"):
    """What a worker's model was given in one of the first steps of a generation."""

    step: int
    digest: str
    rows: dict[str, int] = {}
    """Of each model, over all its calls: the length of the first tensor that it was given."""
    of_samples: dict[str, list[str]] = {}
    """Of each model whose first call had a row for each sample of the batch: a digest of each, in the batch's order."""


class Stepped(_OfWorker, frozen=True, kw_only=True, tag="stepped"):
    step: int
    world_size: int
    samples: int | None = None
    """Of all ranks; None: nobody knows, as of a script."""
    epoch: int | None = None
    """Where it is not told by a :class:`Batch`."""
    is_laid: bool = False
    """Its number is the next one, and how many steps lie between them nobody knows: a script began an epoch."""
    loss: float | None = None
    """Of this rank."""
    accuracy: float | None = None
    top5: float | None = None
    lr: float | None = None
    updates: int | None = None
    """Steps that optimizers of torch took in it; None: nobody has looked."""
    is_given_up: bool = False
    """The gradient of the batch before was given up, and no optimizer had stepped with it."""


class Remembered(_OfWorker, frozen=True, kw_only=True, tag="remembered"):
    """What the optimizers of a worker remember at its first step of a generation: parameters with a state of theirs."""

    before: int
    after: int


HeldAt = Literal["save", "load", "begin", "step"]
"""When a worker was looked at: at a checkpoint; behind the load of one; before its first batch; before its optimizer's
first step."""


STEPS = "that steps"
"""Name of the first optimizer that stepped; of the second: ``that steps (2)``."""


RANDOM_PART = "random"
"""The part that keeps the random state is handed over under this name."""

OUTSIDE = "outside: "
"""What the name of an object begins with that a body has and did not hand over."""


class Held(_OfWorker, frozen=True, kw_only=True, tag="held"):
    """What a worker held of the training's state: digests of it, by the name of the part that it belongs to.

    At a checkpoint all of it; at the other times what nothing may have changed since the checkpoint, see
    :data:`HeldAt`. The first optimizer that stepped, and its parameters, are :data:`STEPS` too, whether or not the body
    handed it over.
    """

    rank: int
    at: HeldAt
    step: int
    """Of the training, as are the next two."""
    epoch: int
    position: int
    parameters: dict[str, str] = {}
    buffers: dict[str, str] = {}
    moved: dict[str, int] = {}
    """Of each model, at a checkpoint: tensors of parameters that are others than when they were looked at before."""
    fields: dict[str, dict[str, str]] = {}
    """Of each part that is neither a model nor an optimizer: what it has as attributes, by name, whatever its
    ``state_dict()`` has; and of each object of the body with such a method that was not handed over, its state."""
    options: dict[str, list[str]] = {}
    """Of each optimizer that was handed over, one group after the other: what it is set to, but for its rate."""
    built: dict[str, str] = {}
    """Of each buffer that no checkpoint keeps, as it is not persistent: each generation builds it anew."""
    moments: dict[str, dict[str, str]] = {}
    """Of each optimizer, by the names of its slots: ``exp_avg``."""
    steps: dict[str, str] = {}
    """That each optimizer has counted, in words."""
    rates: dict[str, list[float]] = {}
    """Learning rates of each optimizer, by group."""
    states: dict[str, str] = {}
    """Of what is neither a model nor an optimizer. Before the first batch those of ``fresh`` alone."""
    fresh: dict[str, str] = {}
    """Behind a load: of those parts right before it; of the part that keeps the random state, torch's stream."""
    per_rank: list[str] = []
    """Of those, the ones that each rank has of its own."""
    random: dict[str, str] = {}
    """Random streams of this process. Behind a load those that it has set."""


class LeftOut(_OfWorker, frozen=True, kw_only=True, tag="left_out"):
    """What takes part in a worker's first step of a generation, and its body did not hand over."""

    parts: list[str]
    """In words, each with the call that hands it over."""


class Saved(_OfWorker, frozen=True, kw_only=True, tag="saved"):
    step: int
    seconds: float


class Raised(_Line, frozen=True, kw_only=True, tag="raised"):
    slot: int
    pid: int
    generation: int | None
    """None: it had not joined a group yet, and torchrun tries again."""
    error: ErrorReport


class Progress(_Line, frozen=True, kw_only=True, tag="progress"):
    """What a body wants to be shown."""

    slot: int
    text: str


class Finished(_OfWorker, frozen=True, kw_only=True, tag="finished"):
    """A worker's body has returned, and its report is written."""


Line = (
    Began
    | Changed
    | Stable
    | Rendezvous
    | AgentEnded
    | WorkerEnded
    | Started
    | Joined
    | Loaded
    | Wanted
    | Batch
    | Drew
    | Fed
    | Stepped
    | Remembered
    | Held
    | LeftOut
    | Saved
    | Raised
    | Progress
    | Finished
)

_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)

AnyLine = TypeVar("AnyLine")


def append(path: Path, line: Record) -> None:
    """Append a line, in one write: it is whole or not there, and lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(descriptor)


class LineReader(Generic[AnyLine]):
    def __init__(self, path: Path, decoder: msgspec.json.Decoder[AnyLine]) -> None:
        self._path = path
        self._decoder = decoder
        self._offset = 0

    def read(self) -> list[AnyLine]:
        """The lines since the last call. What is not whole is read when it is; what is no line is passed over."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for text in whole.splitlines():
            try:
                found.append(self._decoder.decode(text))
            except msgspec.DecodeError:  # a worker was killed while it wrote
                continue
        return found


class TimelineReader(LineReader[Line]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, _DECODER)


def read_timeline(path: Path) -> list[Line]:
    return sorted(TimelineReader(path).read(), key=lambda line: line.t)


class ClockBegan(_Line, frozen=True, kw_only=True, tag="clock_began"):
    """The first job has taken its first step: what is said in seconds counts from here."""


class Submitted(_Line, frozen=True, kw_only=True, tag="submitted"):
    job: str


class Granted(_OfSlot, frozen=True, kw_only=True, tag="granted"):
    """A slot is somebody's."""


class Asked(_OfSlot, frozen=True, kw_only=True, tag="asked"):
    """Somebody is asked to give a slot back."""


class Freed(_OfSlot, frozen=True, kw_only=True, tag="freed"):
    """All that its owner ran in a slot has ended."""


class Ended(_Line, frozen=True, kw_only=True, tag="ended"):
    job: str


class Demanded(_Line, frozen=True, kw_only=True, tag="demanded"):
    """The serving should have so many slots from now on."""

    slots: int


class ServerReady(_Line, frozen=True, kw_only=True, tag="server_ready"):
    """A server of the serving has loaded what it needs."""

    slot: int


class ServerFailed(_Line, frozen=True, kw_only=True, tag="server_failed"):
    """What it was to load has raised."""

    slot: int
    error: str


PoolLine = ClockBegan | Submitted | Granted | Asked | Freed | Ended | Demanded | ServerReady | ServerFailed

POOL_LINES: msgspec.json.Decoder[PoolLine] = msgspec.json.Decoder(PoolLine)

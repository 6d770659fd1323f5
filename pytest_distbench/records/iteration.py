"""One iteration of a loop: its collectives in whole numbers, where its time goes, and how fast it is.

Torch's flight recorder has the last collectives of a process; they get torch.distributed's names here. Rates are named
as ranks and the fixture ``scaling`` write them, and tables read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Final, TypeVar

import msgspec

from pytest_distbench.records.record import Record

_DEFAULT_GROUP = "default_pg"
_UNNAMED = ("", "undefined")

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
"""The recorder's names; those not here are torch's in lower case, such as Float8_e4m3fn."""


_OPERATIONS = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather", "allgather_coalesced": "all_gather_coalesced",
    "allgather_base": "all_gather_into_tensor", "all_gather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all_single",
    "recv_any_source": "recv",
}  # fmt: skip
"""A collective in torch's operators, flight recorder and watchdog -> its name in torch.distributed, if that differs."""


def operation(name: str) -> str:
    """What torch.distributed calls a collective, from any of torch's names for it: ``ALLREDUCE``, ``allreduce_``."""
    bare = name.strip("_").lower()
    return _OPERATIONS.get(bare, bare)


def group_label(name: str, description: str) -> str:
    """Name of a process group for people: ``default``, its description, ``group 3``, or ``unnamed group``."""
    if description == _DEFAULT_GROUP:
        return "default"
    if description in _UNNAMED:
        return f"group {name}" if name else "unnamed group"
    return description


class FlightEntry(msgspec.Struct, frozen=True):
    """One collective in torch's flight recorder. Other fields are ignored: each release adds some."""

    record_id: int  # number among all that the process entered, from 0
    time_created_ns: int  # when it was entered, CLOCK_REALTIME
    profiling_name: str = ""
    collective_seq_id: int = 0  # its number in its group, from 1
    process_group: list[str] = []  # the group's name, and its description
    is_p2p: bool = False
    retired: bool = False  # it has ended, or was given up; under NCCL a thread looks ten times a second or less
    state: str = ""
    """State on the device: ``scheduled``, ``started`` or ``completed``. Other backends leave it unchanged."""
    input_dtypes: list[str] = []
    input_sizes: list[list[int]] = []

    @property
    def is_over(self) -> bool:
        return self.retired or self.state == "completed"

    @property
    def op(self) -> str:
        return operation(self.profiling_name.rpartition(":")[2] or "collective")

    @property
    def dtypes(self) -> list[str]:
        """Torch names of the inputs' dtypes: ``float32``."""
        return [_DTYPES.get(name, name.lower()) for name in self.input_dtypes]

    @property
    def group_name(self) -> str:
        """Torch's number of the group in this process, or "" if the recorder has none."""
        return self.process_group[0] if self.process_group else ""

    @property
    def group(self) -> str:
        return group_label(self.group_name, self.process_group[1] if len(self.process_group) > 1 else "")


def read_flight_recorder(recording: bytes | msgspec.Raw) -> list[FlightEntry]:
    """Collectives in a recorder's JSON, the oldest first."""
    found = msgspec.json.decode(recording, type=dict[str, msgspec.Raw])
    return msgspec.json.decode(found["entries"], type=list[FlightEntry]) if "entries" in found else []


NOT_RECORDED = "collectives are not recorded by"
"""Beginning of the sentence that says why this torch gives no fingerprint: it is printed once for a whole run."""

PICKLE = "pickle"
"""Dtype of a pickled Python object. Its size is recorded as 0 bytes, as it varies with the object's value."""

NOT_WAITED = "not waited for"
"""End of :attr:`Collective.how` if the iteration had ended before anybody waited for the collective."""

TRAINING_STEP = "optimizer_step"
"""Key of the fingerprint of one training step of a script: everything between two optimizer steps."""

ALL = "all"  # key of what all ranks share

_Part = TypeVar("_Part")
_RankKey = Annotated[str, msgspec.Meta(pattern=r"^(all|\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*)$")]


class Collective(Record, frozen=True, array_like=True):
    """Equal collectives in a row; in files a list: ``["all_reduce", "float32", 4096, "default", 2]``."""

    op: str
    dtype: str  # empty if nothing is sent, as in a barrier; ``pickle`` for a Python object
    message_bytes: Annotated[int, msgspec.Meta(ge=0)]  # bytes one rank puts in
    group: str  # ``default``, or the description or name of another process group
    count: Annotated[int, msgspec.Meta(ge=1)]
    how: str | None = None
    """Reduction, root or partner: ``sum``, ``root 0``, ``sum root 0``, ``to +1``; empty if it has none, or torch does
    not report it; None if not recorded. :data:`NOT_WAITED` may follow: ``sum, not waited for``."""

    @property
    def reduction(self) -> str:
        """Reduction operation, ``sum``, or "" if there is none or it is unknown."""
        first = self._words[0] if self._words else ""
        return "" if first in ("root", "to", "from") else first

    @property
    def root(self) -> int:
        """Rank of the root in its group, or 0 if unknown."""
        return int(self._words[-1]) if "root" in self._words else 0

    @property
    def partner(self) -> int | None:
        """Offset from the own rank to the one it sends to or receives from, or None if unknown."""
        return int(self._words[-1]) if {"to", "from"} & set(self._words) else None

    @property
    def _words(self) -> list[str]:
        return (self.how or "").removesuffix(NOT_WAITED).removesuffix(", ").split()


Group = tuple[str, Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=0)]]
"""Process group of a rank, ``("mesh_tp", 8, 1)``: name, size, and stride between its ranks, or 0 if that varies."""


class StepKind(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Steps of a loop that send something else than the described step, and all the same number of collectives."""

    collectives: list[Collective] | None = None  # those of the first such step; None: only their number is known
    entered: Annotated[int, msgspec.Meta(ge=0)]  # collectives in each such step, without send and recv
    steps: Annotated[int, msgspec.Meta(ge=1)]  # number of such steps
    first: Annotated[int, msgspec.Meta(ge=0)]
    """Number of the first such step, from 1; 0 is what a script does before its first step."""
    last: Annotated[int, msgspec.Meta(ge=0)]
    every: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Distance from each such step to the next, or 0 if there is one alone or distances differ."""


class Course(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All steps of a loop, by kind; steps that are not named send as many collectives as the described one.

    If the described kind is not the majority, it is named too.
    """

    steps: Annotated[int, msgspec.Meta(ge=0)]
    others: list[StepKind] = []  # in the order of their first step
    is_whole: bool = False  # it covers a script from start to exit, whose number of steps is its own


class Fingerprint(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What one iteration or training step does, in whole numbers that no noise changes."""

    collectives: dict[_RankKey, list[Collective]] = {}
    """Collectives in the order they were entered, by ranks: ``all``, or ``0`` and ``1-3`` if ranks differ."""
    groups: dict[_RankKey, list[Group]] = {}  # process groups but for that of all ranks, by the same ranks
    facts: dict[str, dict[_RankKey, int]] = {}
    """Numbers of a step by name and ranks, as :data:`pytest_distbench.worker.fingerprint.FACTS` counts them."""
    totals: dict[str, int] = {}  # the same, summed over all ranks: shows a step that one of them skips
    pickled_bytes: int = 0
    """Bytes of the largest pickled object of any rank in a step; sizes vary with values, so only multiples count."""
    in_backward: dict[_RankKey, int] = {}
    """Collectives issued before the end of the backward pass, by ranks; empty if there is none, or launches differ."""
    beyond: dict[_RankKey, tuple[int, Annotated[int, msgspec.Meta(ge=1)]]] = {}
    """Excess of ranks whose timed iterations differ: collectives above (or below) those of as many described iterations
    and the number of iterations."""
    course: dict[_RankKey, Course] = {}
    """Courses by ranks. Older baselines, loops in batches and graphs have none: then it is not compared."""
    course_missing: str = ""  # why there is none although steps were counted: launches differ
    is_full: bool = False
    """Whether groups, bytes and all other iterations were looked at. Older baselines lack them, and ``training_start``:
    what is missing there is not compared."""
    missing: str = ""  # why there is no fingerprint: it cannot be read here, or launches differ


def of_rank(by_ranks: Mapping[str, _Part], rank: int) -> _Part | None:
    """The value of one rank in a mapping by ranks, whose keys are ``all`` or such as ``0,2-3``; or None."""
    return next((part for who, part in by_ranks.items() if who == ALL or rank in named_ranks([who])), None)


def named_ranks(keys: Iterable[str]) -> list[int]:
    """The numbers of the ranks in keys such as ``0,2-3``; the key ``all`` adds none."""
    found = set()
    for key in keys:
        for run in key.split(",") if key != ALL else ():
            first, _, last = run.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return sorted(found)


def rank_ranges(ranks: Sequence[int], world_size: int | None = None) -> str:
    """Ranks as text, ``0,2-3``, or ``all`` if they are the whole world."""
    if len(ranks) == world_size:
        return ALL
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


UNACCOUNTED: Final = "unaccounted"
"""Name in tables of the time of a loop that belongs to no phase."""


class Breakdown(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Time of the iterations of one loop, or of a script, which is one iteration; or of a phase in them.

    Lists are by rank, means over iterations: so they add up.
    """

    path: list[str] = []
    """Names of the enclosing phases, outermost first, and its own; empty for the whole iteration."""
    times_s: list[float]
    waits_s: list[float] = []
    """Seconds of ``times_s`` that a rank may have waited for the last one to arrive; empty if it enters no collectives,
    or only its own parts do."""
    late_s: list[float] = []  # seconds after the first rank at which each arrived
    hosts_s: list[float] = []  # host seconds, if ``times_s`` are the device's
    is_apart: bool = False  # it runs outside the iteration, and is no part of its time
    parts: list[Breakdown] = []  # phases of the whole, at any depth

    @property
    def unaccounted_s(self) -> list[float]:
        """Seconds in no phase, by rank. Below 0 if phases on several streams of a device overlap."""
        top = [part.times_s for part in self.parts if len(part.path) == 1 and not part.is_apart]
        return [whole - sum(times) for whole, *times in zip(self.times_s, *top, strict=True)]


RATE = "samples_per_second"
SAMPLES = "samples_per_step"  # samples of all ranks in one iteration of the loop

CANDIDATE = "candidate"  # name of the side that is judged

WHOLE = ""  # key of a whole body, which is no loop


def name_in_trace(name: str) -> str:
    """Name of a part of a body in a trace: torch 2.13 writes names as they are, and quotes break its JSON."""
    return name.replace('"', "'").replace("\\", "/")


def iteration_name(loop: str, index: int) -> str:
    return name_in_trace(f"{loop} #{index}")


class BusyCommunication(Record, frozen=True, kw_only=True):
    """Time that collectives were under way in a loop under the profiler, whether hidden by computation or not."""

    ranks_s: list[float]  # by rank, seconds per iteration with at least one under way; mean over iterations
    totals_s: dict[str, float]
    """Collective -> seconds per iteration, mean over ranks. Concurrent ones count twice."""
    iterations: int
    iteration_s: float  # seconds of an iteration, mean over ranks; the profiler makes it longer

    @property
    def time_s(self) -> float:
        return fmean(self.ranks_s)

    @property
    def share(self) -> float:
        return self.time_s / self.iteration_s


class CaseTrace(Record, frozen=True, kw_only=True):
    path: str = ""  # empty if there is none
    of_ranks: list[str] = []  # folders with a file for each rank, one for each side; empty if none were asked for
    sides: dict[str, dict[str, BusyCommunication]] = {}
    """Sides that it holds, by name, :data:`CANDIDATE` last: collective time by the key of a loop's metric, without
    loops in which no collective was recorded."""
    why_not: str = ""  # why there is none, or one side is missing; empty if complete

    @property
    def busy(self) -> dict[str, BusyCommunication]:
        """The candidate's collective time, by the key of a loop's metric."""
        return self.sides.get(CANDIDATE, {})

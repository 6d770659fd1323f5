"""One iteration of a loop: which collectives it calls, in whole numbers, where its time goes, how fast it is.

Torch's flight recorder has the last collectives of a process, whose names are made ours here. The names of rates are
those that ranks and the fixture ``scaling`` write, and tables read.
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
    """What torch.distributed calls a collective, by whichever name torch has for it: ``ALLREDUCE``, ``allreduce_``."""
    bare = name.strip("_").lower()
    return _OPERATIONS.get(bare, bare)


def group_label(name: str, description: str) -> str:
    """How a process group is called here: ``default``, its description, ``group 3``, or that it has no name."""
    if description == _DEFAULT_GROUP:
        return "default"
    if description in _UNNAMED:
        return f"group {name}" if name else "unnamed group"
    return description


class FlightEntry(msgspec.Struct, frozen=True):
    """One collective; the fields we read. Others are passed over: torch adds some with every release."""

    record_id: int  # counts all that the process entered, from 0
    time_created_ns: int  # when it was entered, CLOCK_REALTIME
    profiling_name: str = ""
    collective_seq_id: int = 0  # its number in its group, from 1
    process_group: list[str] = []  # the group's name, and its description
    is_p2p: bool = False
    retired: bool = False  # it is over, or was given up; under NCCL a thread looks, ten times a second or less
    state: str = ""
    """``scheduled``, ``started`` or ``completed``: what the device says. Other backends leave it as it was."""
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
        """Of its inputs, by their torch names: ``float32``."""
        return [_DTYPES.get(name, name.lower()) for name in self.input_dtypes]

    @property
    def group_name(self) -> str:
        """As torch numbers it in this process; empty where the recorder does not say."""
        return self.process_group[0] if self.process_group else ""

    @property
    def group(self) -> str:
        return group_label(self.group_name, self.process_group[1] if len(self.process_group) > 1 else "")


def flight_entries(recording: bytes | msgspec.Raw) -> list[FlightEntry]:
    """What a recorder holds, the oldest first, of its JSON."""
    found = msgspec.json.decode(recording, type=dict[str, msgspec.Raw])
    return msgspec.json.decode(found["entries"], type=list[FlightEntry]) if "entries" in found else []


NOT_RECORDED = "collectives are not recorded by"
"""How the reason begins where this torch cannot give a fingerprint: true of a whole run, and told once in it."""

PICKLE = "pickle"
"""In place of the dtype of a pickled Python object, whose bytes are told as 0: they vary with the object's value."""

NOT_WAITED = "not waited for"
"""How :attr:`Collective.how` ends where the iteration was over before anybody had waited for it."""

TRAINING_STEP = "optimizer_step"
"""Key of the fingerprint of one training step of a script: what lies between two steps of an optimizer."""

ALL = "all"  # key of what every rank has

_Part = TypeVar("_Part")
_RankKey = Annotated[str, msgspec.Meta(pattern=r"^(all|\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*)$")]


class Collective(Record, frozen=True, array_like=True):
    """Equal collectives in a row; in files a list: ``["all_reduce", "float32", 4096, "default", 2]``."""

    op: str
    dtype: str  # empty where nothing is sent, as in a barrier; ``pickle`` where it is a Python object
    message_bytes: Annotated[int, msgspec.Meta(ge=0)]  # bytes one rank puts in
    group: str  # ``default``, or the description or name of another process group
    count: Annotated[int, msgspec.Meta(ge=1)]
    how: str | None = None
    """Reduction, root or partner: ``sum``, ``root 0``, ``sum root 0``, ``to +1``. Empty: it has none, or torch does not
    tell; None: not recorded. At its end may stand :data:`NOT_WAITED`: ``sum, not waited for``."""

    @property
    def reduction(self) -> str:
        """What it reduces by: ``sum``. Empty: nothing, or nobody knows."""
        first = self._words[0] if self._words else ""
        return "" if first in ("root", "to", "from") else first

    @property
    def root(self) -> int:
        """The rank of its group that is its root; 0 where nobody knows."""
        return int(self._words[-1]) if "root" in self._words else 0

    @property
    def partner(self) -> int | None:
        """How many ranks further the one is that it sends to or receives from; None: nobody knows."""
        return int(self._words[-1]) if {"to", "from"} & set(self._words) else None

    @property
    def _words(self) -> list[str]:
        return (self.how or "").removesuffix(NOT_WAITED).removesuffix(", ").split()


Group = tuple[str, Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=0)]]
"""A process group that a rank belongs to, ``("mesh_tp", 8, 1)``: its name, its size, and the stride from each of its
ranks to the next; 0: that is not the same everywhere."""


class StepKind(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Steps of a loop that send something else than the described one, and are alike in how many collectives."""

    collectives: list[Collective] | None = None  # of the first such step; None: it is known how many, and not which
    entered: Annotated[int, msgspec.Meta(ge=0)]  # how many each has, without send and recv
    steps: Annotated[int, msgspec.Meta(ge=1)]  # how many such steps there were
    first: Annotated[int, msgspec.Meta(ge=0)]
    """The number of the first, from 1; 0 is what a script does before its first step."""
    last: Annotated[int, msgspec.Meta(ge=0)]
    every: Annotated[int, msgspec.Meta(ge=0)] = 0
    """From each to the next; 0: there is one alone, or the distances differ."""


class Course(Record, frozen=True, kw_only=True, omit_defaults=True):
    """All steps of a loop, by kinds: those that are not named send as many collectives as the described one.

    Where the described kind is not most of them, it is named too.
    """

    steps: Annotated[int, msgspec.Meta(ge=0)]
    others: list[StepKind] = []  # in the order they first came
    is_whole: bool = False  # it is a script from its beginning to its end, whose number of steps is its own


class Fingerprint(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What one iteration or training step does, in whole numbers that no noise can move."""

    collectives: dict[_RankKey, list[Collective]] = {}
    """In the order they were entered, by ranks: ``all``, or ``0`` and ``1-3`` where ranks differ."""
    groups: dict[_RankKey, list[Group]] = {}  # besides that of all ranks, by the same ranks
    facts: dict[str, dict[_RankKey, int]] = {}
    """Of a step, by name and ranks; :data:`pytest_distbench.worker.fingerprint.FACTS` counts them."""
    totals: dict[str, int] = {}  # the same of all ranks together: the step that one of them skips is seen
    pickled_bytes: int = 0
    """Of a step, the largest pickled object of any rank: its size is the value's, and only a multiple of it counts."""
    in_backward: dict[_RankKey, int] = {}
    """By ranks, how many of the collectives were issued before the backward pass had ended. Empty: there is no such
    pass, nobody looked, or launches differ."""
    beyond: dict[_RankKey, tuple[int, Annotated[int, msgspec.Meta(ge=1)]]] = {}
    """By the ranks whose timed iterations were not all alike: how many collectives they had more, or fewer, than as
    many of the described one, and how many iterations there were."""
    course: dict[_RankKey, Course] = {}
    """By ranks. Older baselines do not hold it, nor do loops in batches and of graphs: then it is not compared."""
    course_missing: str = ""  # why there is none although steps were counted: it differs between launches
    is_full: bool = False
    """Whether groups, bytes, and the iterations beside the described one were looked at. Older baselines do not hold
    them, nor does ``training_start``: what is not there is not compared."""
    missing: str = ""  # why there is none: it cannot be read here, or differs between launches


def of_rank(by_ranks: Mapping[str, _Part], rank: int) -> _Part | None:
    """What one rank has of a part of a fingerprint; None where it has none."""
    return next((part for who, part in by_ranks.items() if who == ALL or rank in named_ranks([who])), None)


def named_ranks(keys: Iterable[str]) -> list[int]:
    """The ranks that keys such as ``0,2-3`` name; ``all`` names none."""
    found = set()
    for key in keys:
        for run in key.split(",") if key != ALL else ():
            first, _, last = run.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return sorted(found)


def rank_ranges(ranks: Sequence[int], world_size: int | None = None) -> str:
    """``0,2-3``; ``all`` where they are the whole world."""
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
"""What a table calls the time of a loop that no phase has, beside the names of its phases."""


class Breakdown(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where the iterations of one loop of a launch go, or its script, which is one iteration; or a part of them.

    Lists are by rank, means over iterations: so they add up.
    """

    path: list[str] = []
    """Names of the phases around a part, the outermost first, and its own; empty: it is the whole iteration."""
    times_s: list[float]
    waits_s: list[float] = []
    """Of that, what a rank may have waited for the last one to come; empty where it enters no collectives, or its own
    parts do."""
    late_s: list[float] = []  # by how much each came later than the first to come
    hosts_s: list[float] = []  # where the times are the device's: seconds of the host
    is_apart: bool = False  # it is beside the iteration, and no part of its time
    parts: list[Breakdown] = []  # of the whole, at whatever depth

    @property
    def unaccounted_s(self) -> list[float]:
        """By rank, what is in no part. Below 0 where parts on several streams of a device overlap."""
        top = [part.times_s for part in self.parts if len(part.path) == 1 and not part.is_apart]
        return [whole - sum(times) for whole, *times in zip(self.times_s, *top, strict=True)]


RATE = "samples_per_second"
SAMPLES = "samples_per_step"  # samples of all ranks in an iteration of the loop

CANDIDATE = "candidate"  # the name of the side that is judged

WHOLE = ""  # key of what is no loop: all of a body


def name_in_trace(name: str) -> str:
    """What a part of a body is called in a trace: torch 2.13 writes names as they are, and quotes break its JSON."""
    return name.replace('"', "'").replace("\\", "/")


def iteration_name(loop: str, index: int) -> str:
    return name_in_trace(f"{loop} #{index}")


class BusyCommunication(Record, frozen=True, kw_only=True):
    """Of the iterations of a loop under the profiler: how long collectives were under way, hidden or not."""

    ranks_s: list[float]  # by rank, seconds of an iteration in which at least one was; mean over iterations
    totals_s: dict[str, float]
    """By the name of a collective, seconds in an iteration, mean over ranks. What is under way at once counts twice."""
    iterations: int
    iteration_s: float  # of an iteration, mean over ranks: the profiler makes it longer

    @property
    def time_s(self) -> float:
        return fmean(self.ranks_s)

    @property
    def share(self) -> float:
        return self.time_s / self.iteration_s


class CaseTrace(Record, frozen=True, kw_only=True):
    path: str = ""  # empty: there is none
    of_ranks: list[str] = []  # folders with a file for each rank, one for each side; empty: none were asked for
    sides: dict[str, dict[str, BusyCommunication]] = {}
    """That it holds, by name, :data:`CANDIDATE` the last: what is busy by the key of a loop's metric; nothing where no
    collective was seen in it."""
    why_not: str = ""  # why there is none, or one side is missing; empty: it is whole

    @property
    def busy(self) -> dict[str, BusyCommunication]:
        """Of this tree, by the key of a loop's metric."""
        return self.sides.get(CANDIDATE, {})

"""What torch's flight recorder writes down: the last collectives of a process, and how they are named here."""

from __future__ import annotations

import msgspec

_DEFAULT_GROUP = "default_pg"
_UNNAMED = ("", "undefined")

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
"""The recorder's names; those not here are torch's in lower case, such as Float8_e4m3fn."""


_OPERATIONS = {
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
"""The recorder's names of those that it does not call as torch does."""


def group_label(name: str, description: str) -> str:
    """How a process group is called here: ``default``, its description, or ``group 3`` where it has none."""
    if description == _DEFAULT_GROUP:
        return "default"
    return f"group {name}" if description in _UNNAMED else description


class FlightEntry(msgspec.Struct, frozen=True):
    """One collective; the fields we read. Others are passed over: torch adds some with every release."""

    record_id: int
    """Counts all that the process entered, from 0."""
    time_created_ns: int
    """When it was entered, CLOCK_REALTIME."""
    profiling_name: str = ""
    collective_seq_id: int = 0
    """Its number in its group, from 1."""
    process_group: list[str] = []
    """The group's name, and its description."""
    is_p2p: bool = False
    retired: bool = False
    """It is over, or was given up; under NCCL a thread looks, ten times a second or less."""
    state: str = ""
    """``scheduled``, ``started`` or ``completed``: what the device says. Other backends leave it as it was."""
    input_dtypes: list[str] = []
    input_sizes: list[list[int]] = []

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.retired or self.state == "completed"

    @property
    def op(self) -> str:
        """By its torch name: ``all_reduce``."""
        name = self.profiling_name.rpartition(":")[2] or "collective"
        return _OPERATIONS.get(name, name)

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
        """``default``, a group's description, or ``group 3`` where it has none."""
        return group_label(self.group_name, self.process_group[1] if len(self.process_group) > 1 else "")


class FlightRecording(msgspec.Struct, frozen=True):
    """The recorder's content."""

    entries: list[FlightEntry] = []
    """The oldest first."""

"""Form: how one call of a collective is made: by whom, with which reduce operation, from which root."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_distbench.workloads.collectives.reductions import REDUCTIONS

if TYPE_CHECKING:
    import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a rank makes a call.

    Attributes:
        ranks: of the group, as the default group counts them.
        rank: this rank's place in the group.
        group: None: the default group.
        redop: name of the reduce operation.
        root: in the group.
        is_async: the call returns a work to wait for.
        op: the reduce operation as torch has it.
    """

    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None = None
    redop: str = "sum"
    root: int = 0
    is_async: bool = False
    op: Any = field(init=False)

    def __post_init__(self) -> None:
        import torch.distributed as dist

        object.__setattr__(self, "op", getattr(dist.ReduceOp, REDUCTIONS[self.redop].torch_name))

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    @property
    def global_root(self) -> int:
        """The root as the default group counts, which is what torch's calls take."""
        return self.ranks[self.root]

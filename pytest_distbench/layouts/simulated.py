"""Simulation of all ranks of a layout in one process, with true values, by torch's ``LocalTensorMode``."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pytest_distbench.errors import BodyError
from pytest_distbench.worker.membership import standing_group
from pytest_distbench.worker.torch_internals import replace_in_distributed

try:
    from torch.distributed import _local_tensor as local
except ImportError:
    local = None  # type: ignore[assignment] # a torch before 2.10


_ASKS = "a layout that asks which rank it is needs real ranks: leave simulated_ranks= out"


def _refusing(real: Callable[..., int]) -> Callable[..., int]:
    def refusing(group: dist.ProcessGroup | None = None) -> int:
        frame = inspect.currentframe()
        asking = frame.f_back if frame is not None else None
        if asking is not None and not str(asking.f_globals.get("__name__")).startswith("torch."):
            raise BodyError(_ASKS)
        return real(group)

    return refusing


@contextmanager
def _no_rank() -> Iterator[None]:
    """Refuse ``dist.get_rank`` to all but torch itself: it would return 0 for every simulated rank."""
    real, refused = dist.get_rank, _refusing(dist.get_rank)
    replace_in_distributed(real, refused)
    # From torch 2.14 on, the mode's own takes the place of dist's.
    of_mode: Any = getattr(local, "_LocalDist", None) or SimpleNamespace(get_rank=real)
    its, of_mode.get_rank = of_mode.get_rank, staticmethod(_refusing(of_mode.get_rank))
    try:
        yield
    finally:
        replace_in_distributed(refused, real)
        of_mode.get_rank = staticmethod(its)


class Simulation:
    """Simulated ranks of a group: a tensor holds the values of all of them.

    Attributes:
        ranks: number of ranks.
        index: index of all ranks at once.
        sent: collectives that they called, with their dtypes.

    Raises:
        SkipTest: torch has no ``LocalTensorMode``.
    """

    def __init__(self, ranks: int) -> None:
        if local is None:
            raise unittest.SkipTest("not available: this torch has no LocalTensorMode to simulate ranks with")
        self.ranks = ranks
        self.sent: dict[str, set[str]] = {}
        self.index = cast("int", EveryIndex(ranks))
        self._mode = local.LocalTensorMode(ranks)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Compute as all ranks meanwhile, in a default group of that size. Errors of torch become BodyError."""
        try:
            with standing_group(self.ranks), _no_rank(), self._mode, _Sent(self.sent):
                yield
        except (RuntimeError, AttributeError, AssertionError) as error:
            said = str(error).partition("\n")[0].rstrip(".")
            raise BodyError(
                f"on simulated ranks: {said}. DDP, FSDP2, a pipeline and parts of unequal size need real ranks: leave "
                "simulated_ranks= out"
            ) from error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Compute as one rank meanwhile."""
        with self._mode.disable(), _disable_current_modes():
            yield

    def spread(self, of_rank: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """Return a tensor with the value of ``of_rank`` on each rank."""
        return self._mode.rank_map(of_rank)

    def values(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the value of a tensor on each rank."""
        if not isinstance(tensor, local.LocalTensor):
            return [tensor] * self.ranks
        return [tensor._local_tensors[i] for i in range(self.ranks)]

    def model(self, model: nn.Module) -> nn.Module:
        """Give each rank its own parameters and buffers of a network. A tied weight stays one."""
        made: dict[int, torch.Tensor] = {}
        for module in model.modules():
            named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for name, tensor in named:
                if id(tensor) not in made:
                    each = self.spread(lambda _, tensor=tensor: tensor.detach().clone())  # type: ignore[misc]
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(each, tensor.requires_grad) if is_parameter else each
                setattr(module, name, made[id(tensor)])
        return model


class EveryIndex:
    """Index of all simulated ranks at once: usable for a seed and a share; other uses raise BodyError."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def __add__(self, number: int) -> torch.SymInt:
        return torch.SymInt(local.LocalIntNode({i: i + number for i in range(self._ranks)}))

    __radd__ = __add__

    def _refuse(self, *_: object) -> NoReturn:
        raise BodyError(_ASKS)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __hash__ = _refuse


class _Sent(TorchDispatchMode):
    """Collects the collectives that are called meanwhile, with their dtypes."""

    def __init__(self, sent: dict[str, set[str]]) -> None:
        super().__init__()
        self._sent = sent

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func.overloadpacket.__name__.rstrip("_").replace("allreduce", "all_reduce")
            tensors = [each for each in pytree.tree_leaves(args) if isinstance(each, torch.Tensor)]
            self._sent.setdefault(name, set()).update(str(each.dtype).removeprefix("torch.") for each in tensors)
        return func(*args, **(kwargs or {}))

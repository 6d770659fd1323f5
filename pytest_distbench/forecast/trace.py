"""One step of a rank among many, traced in one process: what the rank computes, sends, waits for and holds."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import distributed_c10d
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from pytest_distbench.errors import BodyError
from pytest_distbench.forecast.cluster import MEMORY
from pytest_distbench.forecast.model import Call, Event, Trace
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.worker import bodies
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.membership import standing_group
from pytest_distbench.worker.observer import Note, Observer, groups_here
from pytest_distbench.worker.torch_internals import (
    call_after_backward,
    finished_work,
    stand_around_rebuilds,
)

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_ANY_CPU = {MEMORY: 1e10, "float32": 5e10}
"""Assumed memory bytes/s and FLOP/s if the cluster states none: only shares of a step's measured time count then."""
_MOVES_NOTHING = ("c10d", "_c10d_functional", "prim", "profiler")
_aten = torch.ops.aten
_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}
_NO_DATA = "its data is not allocated yet"  # in what C++ says of a FakeTensor, as that of DistributedDataParallel does
_MOST_NUMBERS = 1 << 24  # of whole numbers, as of tokens: so many have data under ``fake_tensors``


class _WithoutData(TorchDispatchMode):
    """Runs over FakeTensors, and gives data to small tensors that are made of no FakeTensor.

    Small are tensors of whole numbers, as indices and tokens, and single numbers, as an optimizer's step; parameters
    are not. A number that is read from a tensor without data is 1. FakeTensorMode makes the result of a functional
    collective without calling it, so it is called here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._works = WeakIdKeyDictionary()  # by result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        has_data = not any(isinstance(each, FakeTensor | DTensor) for each in _tensors((args, kwargs)))
        if has_data and _is_from("torch.distributed.device_mesh", "torch.distributed._mesh_layout"):
            return self._with_data(func, args, kwargs)
        if func is _aten._local_scalar_dense.default:
            return self._with_data(func, args, kwargs) if has_data else 1.0 if args[0].is_floating_point() else 1
        found = func(*args, **kwargs)
        if func.namespace == "_c10d_functional":
            given = _arguments(func, args, kwargs)
            if func is not torch.ops._c10d_functional.wait_tensor.default:
                work = _issue(func.overloadpacket.__name__, given, _tensors(found))
                for result in _tensors(found):
                    self._works[result] = work
            elif work := self._works.get(given["tensor"]):
                work.wait()
        elif has_data and func.namespace == "aten":
            made = _tensors(found) or _tensors(args)  # those of _foreach_add_ are changed in place, and none returned
            if made and all(map(_is_small, made)):
                return self._with_data(func, args, kwargs)
        return found

    @staticmethod
    def _with_data(func: Any, args: Any, kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def _is_small(tensor: torch.Tensor) -> bool:
    is_number = not tensor.dim() and not tensor.requires_grad
    return is_number or (not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= _MOST_NUMBERS)


def _issue(name: str, given: Mapping[str, Any], results: list[Any]) -> Any:
    group = distributed_c10d._resolve_process_group(given["group_name"])  # type: ignore[attr-defined] # it is there
    inputs: list[Any] = _tensors(given.get("input", given.get("inputs")))
    op: Any = getattr(dist.ReduceOp, given["reduce_op"].upper()) if "reduce_op" in given else None
    match name.rstrip("_").removesuffix("_out").removesuffix("_coalesced"):
        case "all_reduce" if len(results) == 1:
            return dist.all_reduce(results[0], op, group, async_op=True)
        case "all_reduce":
            reduced = distributed_c10d.AllreduceCoalescedOptions()
            reduced.reduceOp = op
            return group.allreduce_coalesced(results, reduced)
        case "all_gather_into_tensor":
            return group.allgather_into_tensor_coalesced(results, inputs)
        case "reduce_scatter_tensor":
            scattered = distributed_c10d.ReduceScatterOptions()
            scattered.reduceOp = op
            return group.reduce_scatter_tensor_coalesced(results, inputs, scattered)
        case "all_to_all_single":
            splits = given["output_split_sizes"], given["input_split_sizes"]
            return dist.all_to_all_single(results[0], inputs[0], *splits, group=group, async_op=True)
        case "broadcast":
            return dist.broadcast(results[0], given["src"], group, async_op=True)
    raise BodyError(f"fake_tensors=True does not know the functional collective {name}")


@contextlib.contextmanager
def _without_data() -> Iterator[None]:
    library = torch.library.Library("c10d", "IMPL")
    for name in ("allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_", "allreduce_coalesced_"):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "Meta"):
            library.impl(name, finished_work, "Meta")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _WithoutData():
            yield
    except Exception as error:
        is_of_data = isinstance(error, DataDependentOutputException | DynamicOutputShapeException)
        if not is_of_data and _NO_DATA not in str(error):
            error.add_note("With fake_tensors=True the body's tensors have no data.")
            raise
        raise BodyError(
            "the body needs data, as DistributedDataParallel and shapes that depend on values do: leave "
            "fake_tensors=True out, and forecast a smaller network"
        ) from error
    finally:
        library._destroy()


class Chunks(Sequence[torch.Tensor]):
    """The shards of a tensor along a dimension, as FSDP2 pads their number, each made when it is read.

    torch makes one for each rank, of each parameter, and reads the first and this rank's.
    """

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(index, slice):
            return [self[each] for each in range(self._count)[index]]
        size = self._tensor.size(self._dim)
        length = math.ceil(size / self._count)
        start = range(self._count)[index] * length
        if start >= size > 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(length, size - start))


@contextlib.contextmanager
def _shards_made_when_read() -> Iterator[None]:
    chunk = _fsdp_param._chunk_with_empty  # type: ignore[attr-defined] # it is there
    _fsdp_param._chunk_with_empty = Chunks  # type: ignore[attr-defined,assignment] # a sequence, as torch indexes it
    try:
        yield
    finally:
        _fsdp_param._chunk_with_empty = chunk  # type: ignore[attr-defined]


class _StepTraced(BaseException):
    """The step is traced, and the body need not go on. It is no Exception, so that the body does not catch it."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What was recorded of one rank's step.

    Attributes:
        trace: what the rank computes, sends and waits for, and when.
        fingerprint: communication fingerprint of the step.
        gradient_bytes: bytes of the parameters' gradients.
        activation_bytes: bytes of tensors that the forward pass keeps for the backward pass.
        flops: floating-point operations of matrix products and convolutions.
    """

    trace: Trace
    fingerprint: Fingerprint
    gradient_bytes: int
    activation_bytes: int
    flops: int


class _Meter(TorchDispatchMode):
    """Sums seconds of operators by a roofline: the larger of the times for their FLOPs and for their memory.

    Source: S. Williams, A. Waterman, D. Patterson, Roofline, 2009.
    """

    def __init__(self, peaks: Mapping[str, float]) -> None:
        super().__init__()
        self.now_s = 0.0
        self.flops = 0
        self._peaks = peaks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its parts come by themselves
        found = func(*args, **(kwargs or {}))
        if func.namespace in _MOVES_NOTHING or "empty" in func.overloadpacket.__name__:
            return found
        tensors = _tensors((args, kwargs))
        flops = 0
        if (count := _FLOPS.get(func.overloadpacket)) is not None:
            flops = count(*args, **(kwargs or {}), out_val=found)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        rate = self._peaks.get(dtype) or self._peaks.get("float32", self._peaks[MEMORY])
        num_bytes = _traffic(func, args, kwargs or {}, found)
        self.now_s += max(flops / rate, num_bytes / self._peaks[MEMORY])
        self.flops += flops
        return found


def _tensors(tree: object) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**{each.name: value for each, value in zip(func._schema.arguments, args, strict=False)}, **kwargs}


_VIEWS = ("_unsafe_view",)  # operators that their schemas do not show
_TAKES_ROWS = ("embedding", "index", "index_select", "gather")  # they read as much of their first tensor as they give
_ONLY_WRITES = re.compile(r"^(_foreach_)?(copy|zero|fill|normal|uniform|random)_$")
"""Names of operators that do not read what they write to."""


def _traffic(func: Any, args: Any, kwargs: Mapping[str, Any], found: object) -> int:
    returned, name = func._schema.returns, func.overloadpacket.__name__
    is_view = any(result.alias_info is not None and not result.alias_info.is_write for result in returned)
    if is_view or name in _VIEWS:
        return 0
    read, written = [], [] if any(result.alias_info for result in returned) else _tensors(found)
    given = _arguments(func, args, kwargs)
    for each in func._schema.arguments:
        tensors = _tensors(given.get(each.name))
        is_written = each.alias_info is not None and each.alias_info.is_write
        if is_written:
            written += tensors
        if not (is_written and (each.kwarg_only or _ONLY_WRITES.match(name))):
            read += tensors
    if name in _TAKES_ROWS:
        read[:1] = written
    return sum(map(_bytes, (*read, *written)))


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor has in memory: expanded dimensions count once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    return math.prod(n for n, step in zip(tensor.shape, tensor.stride(), strict=True) if step) * tensor.element_size()


class _TracedNote:
    """A note of an issued collective that adds an event to the tracer when the collective is waited for."""

    def __init__(self, note: Note, tracer: _Tracer) -> None:
        self.at_ns, self.is_counted, self.collective = note.at_ns, note.is_counted, note.collective
        self.line, self.is_in_backward = note.line, note.is_in_backward
        self.is_sharding = _is_from("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
        self._note = note
        self._tracer = tracer

    @property
    def with_wait(self) -> Collective:
        return self._note.with_wait

    @property
    def is_waited_for(self) -> bool:
        return self._note.is_waited_for

    @is_waited_for.setter
    def is_waited_for(self, value: bool) -> None:
        if value and not self._note.is_waited_for and self._tracer.meter is not None:
            self._tracer.events.append((self, True, self._tracer.meter.now_s))
        self._note.is_waited_for = value
        if not value:
            self._tracer.in_hand.add(self)


class _Tracer(Observer):
    """Notes when the calls of a step are issued and waited for, in the seconds of a meter.

    Python has no handle of what C++ issues: DistributedDataParallel waits for it at the end of the backward pass.
    """

    def __init__(self) -> None:
        super().__init__(completes=True)
        self.meter: _Meter | None = None
        self.events: list[tuple[_TracedNote, bool, float]] = []
        self.in_hand: set[_TracedNote] = set()

    def note(self, name: str, given: Mapping[str, Any], reduction: str) -> Any:
        note = super().note(name, given, reduction)
        if note is None:
            return None
        traced = _TracedNote(note, self)
        self.notes[-1] = traced  # type: ignore[call-overload] # it has what others read of a note
        if self.meter is not None:
            self.events.append((traced, False, self.meter.now_s))
            if traced.is_in_backward:
                call_after_backward(self.wait_for_others)
        return traced

    def wait_for_others(self) -> None:
        """Wait for calls without a handle: after the backward pass that issued them, or where they were issued."""
        if self.meter is None:
            return
        waited = {note for note, is_wait, _ in self.events if is_wait} | self.in_hand
        for place, (note, is_wait, at_s) in reversed(list(enumerate(self.events))):
            if not is_wait and note not in waited:
                at = (len(self.events), self.meter.now_s) if note.is_in_backward else (place + 1, at_s)
                self.events.insert(at[0], (note, True, at[1]))


class _StepWatch(Watch):
    """Traces the step that a fingerprint describes, and ends the body after it."""

    def __init__(self, peaks: Mapping[str, float]) -> None:
        self.tracer = _Tracer()
        super().__init__(is_on=True, sees_all=True, observer=self.tracer)
        self.peaks = peaks
        self.traced: Traced | None = None
        self._kept = _Kept()
        self._gradients: dict[int, int] = {}
        self._during = contextlib.ExitStack()

    def begin(self, key: str) -> None:
        if self.traced is not None:
            raise _StepTraced  # the body went on
        super().begin(key)
        self._during.callback(register_optimizer_step_pre_hook(self._before_optimizer).remove)
        self._during.callback(register_module_forward_pre_hook(self._kept.see).remove)
        self._during.enter_context(saved_tensors_hooks(self._kept.pack, lambda held: held.tensor))
        self.tracer.meter = self._during.enter_context(_Meter(self.peaks))

    def end(self) -> None:
        meter = self.tracer.meter
        if meter is None:
            return
        self.tracer.wait_for_others()
        self.tracer.meter = None
        self._during.close()
        key = self.open_key
        super().end()
        sizes = {name: (size, stride) for name, size, stride in groups_here()}
        sizes["default"] = (dist.get_world_size(), 1)
        issued = [note for note, is_wait, _ in self.tracer.events if not is_wait]
        place = {note: i for i, note in enumerate(issued)}
        calls = [
            Call(
                (each := note.collective).op,
                each.dtype,
                each.message_bytes,
                each.group,
                *(
                    sizes.get(each.group, (dist.get_world_size(), 0))
                    if each.partner is None
                    else (2, each.partner % dist.get_world_size())
                ),
                note.is_sharding,
                note.is_in_backward,
            )
            for note in issued
        ]
        self.traced = Traced(
            trace=Trace(
                calls=calls,
                events=[
                    Event(place[note], is_wait, at_s) for note, is_wait, at_s in self.tracer.events if note in place
                ],
                computing_s=meter.now_s,
            ),
            fingerprint=self.found[key],
            gradient_bytes=sum(self._gradients.values()),
            activation_bytes=self._kept.most_bytes,
            flops=meter.flops,
        )
        raise _StepTraced

    def _before_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    own = _own(parameter.grad)
                    self._gradients[id(parameter)] = own.numel() * own.element_size()


class _Held:
    """A tensor that autograd saved for the backward pass; its bytes count until this object is deleted."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Kept:
    """Counts the bytes of storage that autograd saves for the backward pass, without parameters, and their maximum."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._now_bytes = 0
        self._holders: Counter[int] = Counter()
        self._parameters: set[int] = set()

    def see(self, module: torch.nn.Module, _given: object) -> None:
        """Note the storage of a module's DTensor parameters, which autograd saves as plain tensors; a forward hook."""
        for parameter in module.parameters(recurse=False):
            if isinstance(parameter, DTensor):
                self._parameters.add(_own(parameter).untyped_storage()._cdata)

    def pack(self, tensor: torch.Tensor) -> _Held:
        held, own = _Held(tensor), _own(tensor)
        if not (isinstance(tensor, torch.nn.Parameter) or isinstance(own._base, torch.nn.Parameter)):
            storage = own.untyped_storage()
            place, size = storage._cdata, storage.nbytes()
            if place in self._parameters:
                return held
            self._holders[place] += 1
            if self._holders[place] == 1:
                self._now_bytes += size
                self.most_bytes = max(self.most_bytes, self._now_bytes)
            weakref.finalize(held, self._let_go, place, size)
        return held

    def _let_go(self, place: int, size: int) -> None:
        self._holders[place] -= 1
        if not self._holders[place]:
            self._now_bytes -= size


def _is_from(*modules: str) -> bool:
    frame = inspect.currentframe()
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(modules):
        frame = frame.f_back
    return frame is not None


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trace_step(
    rank: RankContext,
    body: Callable[..., object],
    *,
    world_size: int,
    params: Mapping[str, Any],
    peaks: Mapping[str, float],
    is_fake: bool,
) -> Traced:
    """Run a body as rank 0 of many up to the end of the step that its fingerprint describes.

    Args:
        rank: this process, which is the only rank.
        body: function whose loop of ``rank.timed`` or ``rank.goal`` has the step.
        world_size: number of ranks to pretend.
        params: parameters of the body.
        peaks: FLOP/s by dtype and bytes/s of memory, or {} if only shares of a step are wanted.
        is_fake: whether tensors have no data, as torch's FakeTensors.

    Raises:
        BodyError: the body has no such step, or needs data that it does not get.
    """
    watch = _StepWatch(peaks or _ANY_CPU)
    standing = rank.standing_for(world_size, watch)
    rank.training_watch.finish()  # a forecast trains nothing
    standing.params = params
    torch.manual_seed(rank.seed)
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with standing_group(world_size):
            watch.look()
            end = stand_around_rebuilds(watch.apart)
            try:
                with _without_data() if is_fake else contextlib.nullcontext(), _shards_made_when_read():
                    bodies.call(body, standing)
            except _StepTraced:
                pass
            finally:
                watch.look_away()
                end()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    if watch.traced is None:
        raise BodyError("the body has no step to forecast: wanted a loop of rank.timed or rank.goal")
    return watch.traced

"""One step of a rank among many, traced in one process: what it computes, sends, waits for and holds."""

from __future__ import annotations

import contextlib
import inspect
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
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
from pytest_distbench.worker.torch_internals import call_after_backward, in_backward, stand_around_rebuilds

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_ANY_CPU = {MEMORY: 1e10, "float32": 5e10}
"""Where computing is measured, only the share of an operator in a step counts."""
_MOVES_NOTHING = ("c10d", "_c10d_functional", "prim", "profiler")
_aten = torch.ops.aten
_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}
_NO_DATA = "its data is not allocated yet"
"""In what C++ says of a FakeTensor, as that of DistributedDataParallel does."""


class _WithoutData(TorchDispatchMode):
    """Over FakeTensors: device meshes have data nevertheless, and what asks for a number gets 1.

    FakeTensorMode makes the result of a functional collective, and calls none; it is called here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._works = WeakIdKeyDictionary()  # by result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_from("torch.distributed.device_mesh", "torch.distributed._mesh_layout"):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is _aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        found = func(*args, **kwargs)
        if func.namespace == "_c10d_functional":
            given = _arguments(func, args, kwargs)
            if func is not torch.ops._c10d_functional.wait_tensor.default:
                self._works[found] = _issue(func.overloadpacket.__name__, given, found)
            elif work := self._works.get(given["tensor"]):
                work.wait()
        return found


def _issue(name: str, given: Mapping[str, Any], result: torch.Tensor) -> Any:
    """Call the collective that a functional one stands for; return its work."""
    group = distributed_c10d._resolve_process_group(given["group_name"])  # type: ignore[attr-defined] # it is there
    options: dict[str, Any] = {"group": group, "async_op": True}
    if "reduce_op" in given:
        options["op"] = getattr(dist.ReduceOp, given["reduce_op"].upper())
    match name.rstrip("_"):
        case "all_reduce":
            return dist.all_reduce(result, **options)
        case "all_gather_into_tensor":
            return dist.all_gather_into_tensor(result, given["input"], **options)
        case "reduce_scatter_tensor":
            return dist.reduce_scatter_tensor(result, given["input"], **options)
        case "all_to_all_single":
            splits = given["output_split_sizes"], given["input_split_sizes"]
            return dist.all_to_all_single(result, given["input"], *splits, **options)
        case "broadcast":
            return dist.broadcast(result, given["src"], **options)
    raise BodyError(f"fake_tensors=True does not know the functional collective {name}")


@contextlib.contextmanager
def _without_data() -> Iterator[None]:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _WithoutData():
            yield
    except RuntimeError as error:
        is_of_data = isinstance(error, DataDependentOutputException | DynamicOutputShapeException)
        if not is_of_data and _NO_DATA not in str(error):
            raise
        raise BodyError(
            "the body needs data, as DistributedDataParallel and shapes that depend on values do: leave "
            "fake_tensors=True out, and forecast a smaller network"
        ) from error


class _StepTraced(BaseException):
    """The step is traced: the body need not go on. No Exception, so that the body does not catch it."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A step of one rank.

    Attributes:
        trace: what is computed and sent.
        fingerprint: of the step.
        gradient_bytes: of the parameters' gradients.
        activation_bytes: that the backward pass keeps of the forward pass.
        flops: of matrix products and convolutions.
    """

    trace: Trace
    fingerprint: Fingerprint
    gradient_bytes: int
    activation_bytes: int
    flops: int


class _Meter(TorchDispatchMode):
    """Seconds of the operators so far, by a roofline: those of their FLOPs or of their memory, whichever are more.

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
        is_view = any(
            result.alias_info is not None and not result.alias_info.is_write for result in func._schema.returns
        )
        is_made = not any(result.alias_info for result in func._schema.returns)
        touched = [*tensors, *_written(func, args, kwargs or {}), *(_tensors(found) if is_made else [])]
        moved = 0 if is_view and not flops else sum(each.numel() * each.element_size() for each in touched)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        rate = self._peaks.get(dtype) or self._peaks.get("float32", self._peaks[MEMORY])
        self.now_s += max(flops / rate, moved / self._peaks[MEMORY])
        self.flops += flops
        return found


def _tensors(tree: object) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**{each.name: value for each, value in zip(func._schema.arguments, args, strict=False)}, **kwargs}


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Arguments that an operator writes to, which it has read, too."""
    given = _arguments(func, args, kwargs)
    return _tensors(
        [given.get(each.name) for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
    )


class _TracedNote:
    """A collective, and when anybody waits for it."""

    def __init__(self, note: Note, tracer: _Tracer) -> None:
        self.at_ns, self.is_counted, self.collective = note.at_ns, note.is_counted, note.collective
        self.in_backward = in_backward()
        self.is_sharding = _is_from("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
        self._note = note
        self._tracer = tracer

    @property
    def told(self) -> Collective:
        return self._note.told

    @property
    def is_waited_for(self) -> bool:
        return self._note.is_waited_for

    @is_waited_for.setter
    def is_waited_for(self, value: bool) -> None:
        if value and not self._note.is_waited_for:
            self._tracer.note_wait(self)
        self._note.is_waited_for = value
        if not value:
            self._tracer.in_hand.add(self)


class _Tracer(Observer):
    """Notes when the calls of a step are issued and waited for, by the time of a meter.

    Nobody has in hand what C++ issues: DistributedDataParallel waits for it at the end of the backward pass.
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
            if traced.in_backward:
                call_after_backward(self.wait_for_others)
        return traced

    def note_wait(self, note: _TracedNote) -> None:
        if self.meter is not None:
            self.events.append((note, True, self.meter.now_s))

    def wait_for_others(self) -> None:
        """Wait for what nobody has in hand: after a backward pass for what it issued, for others where they are."""
        if self.meter is None:
            return
        waited = {note for note, is_wait, _ in self.events if is_wait} | self.in_hand
        for place, (note, is_wait, at_s) in reversed(list(enumerate(self.events))):
            if not is_wait and note not in waited:
                at = (len(self.events), self.meter.now_s) if note.in_backward else (place + 1, at_s)
                self.events.insert(at[0], (note, True, at[1]))


class _StepWatch(Watch):
    """Traces the step that a fingerprint describes, and ends the body behind it."""

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
                    else (2, abs(each.partner))
                ),
                note.is_sharding,
                note.in_backward,
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
    """A tensor that the backward pass keeps of the forward pass."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Kept:
    """What the backward pass keeps: bytes of storages but for those of parameters, and the most of them at a time."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._now_bytes = 0
        self._holders: Counter[int] = Counter()

    def pack(self, tensor: torch.Tensor) -> _Held:
        held, own = _Held(tensor), _own(tensor)
        if not (isinstance(tensor, torch.nn.Parameter) or isinstance(own._base, torch.nn.Parameter)):
            storage = own.untyped_storage()
            place, size = storage._cdata, storage.nbytes()
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
    """Whether a function of one of these modules has called."""
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
        rank: of this process, which is alone.
        body: that has the step.
        world_size: how many ranks there are to be.
        params: of the body.
        peaks: of the rank; empty: only shares of a step are asked for.
        is_fake: tensors have no data, which torch calls FakeTensors.

    Raises:
        BodyError: the body has no such step, or needs data that it does not get.
    """
    watch = _StepWatch(peaks or _ANY_CPU)
    standing = rank.standing_for(world_size, watch)
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
                with _without_data() if is_fake else contextlib.nullcontext():
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

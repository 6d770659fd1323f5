"""Simulated CUDA: a CPU build of torch looks like CUDA to ranks, with simulated streams that keep real time.

Ranks of the launcher ``stand-in-cuda`` have it. Importing it changes the whole process, for good. Each stream has the
moment until which it is busy, on the clock that the host reads:

- ``launch(seconds)`` enqueues a kernel that runs so long, and returns at once. - What torch computes is computed on the
CPU, in the call, and keeps the stream busy for as long again; a collective, for a chosen time. Reading a tensor
(``item``, ``tolist``, ``cpu`` ...) waits for the device, as copying from it does. - A tensor for a CUDA device is made,
or stays, on the CPU: ``tensor.device`` says ``cpu``. - ``nccl`` becomes ``gloo``.

It shows what the host does about a device: order of calls, waits, what is timed, whose error an error is. It does not
show speeds, noise, frequencies that ramp up, memory that runs out, kernels that run side by side, or anything of NCCL
or the driver. A replay of a graph computes nothing again. ``torch.compile``, ``torch.autocast("cuda")``, generators of
a device, ``torch.accelerator`` and devices given as bare numbers (``model.to(0)``) do not work. Torch's calls are not
redirected in a body's own threads, nor in what autograd runs backward (as tensor parallelism does).
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from pytest_distbench.worker.torch_internals import replace_in_distributed
from pytest_distbench.workloads import calls as steady
from support.streams import (
    CALLS,
    DEVICE,
    STREAMS,
    CUDAGraph,
    Event,
    Stream,
    capture,
    synchronize,
    wait_until,
)

DEVICES = 8
CYCLES_PER_S = 1.5e9
"""Cycles per second of ``torch.cuda._sleep``."""
COLLECTIVE_S, BYTES_PER_S = 20e-6, 100e9
"""What a collective takes on the device, and how fast it moves its tensors: made up."""
L2_BYTES, MEMORY_BYTES = 50 * 2**20, 80 * 2**30

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)

calls = CALLS
"""What was asked of the device, in order, that has to come in an order: ``set_device 1``, ``init_process_group nccl``,
``synchronize``, ``begin capture``, ``end capture``, ``replay``."""


def launch(seconds: float, *, failure: Exception | None = None) -> None:
    """Enqueue a kernel of so many seconds on the current stream; ``failure`` is raised in later waits for it."""
    DEVICE.is_initialized = True
    DEVICE.enqueue(seconds, failure)


def allocate(num_bytes: int) -> None:
    """Have the allocator say that so much more is in use; less, where it is negative."""
    DEVICE.allocated_bytes += num_bytes
    DEVICE.peak_bytes = max(DEVICE.peak_bytes, DEVICE.allocated_bytes)


def record_nccl(recording: str | bytes | Callable[[], str | bytes]) -> None:
    """Have NCCL's flight recorder of this process hold this: JSON as torch dumps it, or what returns it."""

    def dump(*_: object, **__: object) -> str | bytes:
        return recording() if callable(recording) else recording

    torch._C._distributed_c10d._dump_nccl_trace_json = dump  # type: ignore[attr-defined]


def _index_of(device: Any) -> int:
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


def _set_device(device: Any) -> None:
    index = _index_of(device)
    calls.append(f"set_device {index}")
    if index >= _count_devices():
        raise RuntimeError("CUDA error: invalid device ordinal")
    DEVICE.is_initialized = True
    DEVICE.index = index


def _exchange_device(index: int) -> int:
    before, DEVICE.index = DEVICE.index, index if index >= 0 else DEVICE.index
    return before


def _set_stream(stream: Stream) -> None:
    DEVICE.current = stream


@contextlib.contextmanager
def _on_stream(stream: Stream | None) -> Iterator[None]:
    before = DEVICE.current
    DEVICE.current = stream or before
    try:
        yield
    finally:
        DEVICE.current = before


def _properties(device: object = None) -> SimpleNamespace:
    del device
    return SimpleNamespace(
        name="stand-in CUDA",
        major=9,
        minor=0,
        total_memory=MEMORY_BYTES,
        L2_cache_size=L2_BYTES,
        multi_processor_count=132,
        is_integrated=False,
        uuid=_uuid(DEVICE.index),
    )


def _visible() -> list[str]:
    """UUIDs or numbers of the devices that this process is given, or [] if unset."""
    return [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]


def _count_devices() -> int:
    return len(_visible()) or DEVICES


def _uuid(index: int) -> str:
    """UUID as torch spells it, without ``GPU-``, or "" if the device is not visible by one."""
    name = next(iter(_visible()[index : index + 1]), "")
    return name.removeprefix("GPU-") if name.startswith("GPU-") else ""


def _set_initialized() -> None:
    DEVICE.is_initialized = True


def _reset_peak(device: object = None) -> None:
    del device
    DEVICE.peak_bytes = DEVICE.allocated_bytes


def _do_nothing(*_: object, **__: object) -> None:
    """Random numbers are the CPU's, and there is no cache to be emptied."""


_IN_TORCH_CUDA: Mapping[str, object] = {
    "CUDAGraph": CUDAGraph,
    "Event": Event,
    "Stream": Stream,
    "_exchange_device": _exchange_device,
    "_lazy_init": _set_initialized,
    "_maybe_exchange_device": _exchange_device,
    "_sleep": lambda cycles: launch(cycles / CYCLES_PER_S),
    "current_device": lambda: DEVICE.index,
    "current_stream": lambda device=None: DEVICE.current,
    "default_stream": lambda device=None: STREAMS[0],
    "device_count": _count_devices,
    "empty_cache": _do_nothing,
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_name": lambda device=None: "stand-in CUDA",
    "get_device_properties": _properties,
    "graph": capture,
    "init": _set_initialized,
    "is_available": lambda: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_current_stream_capturing": lambda: DEVICE.captured is not None,
    "is_initialized": lambda: DEVICE.is_initialized,
    "manual_seed": _do_nothing,
    "manual_seed_all": _do_nothing,
    "max_memory_allocated": lambda device=None: DEVICE.peak_bytes,
    "max_memory_reserved": lambda device=None: DEVICE.peak_bytes,
    "mem_get_info": lambda device=None: (MEMORY_BYTES - DEVICE.allocated_bytes, MEMORY_BYTES),
    "memory_allocated": lambda device=None: DEVICE.allocated_bytes,
    "memory_reserved": lambda device=None: DEVICE.allocated_bytes,
    "reset_peak_memory_stats": _reset_peak,
    "set_device": _set_device,
    "set_stream": _set_stream,
    "stream": _on_stream,
    "synchronize": synchronize,
}

_is_in_collective = False

_READS = {
    getattr(torch.Tensor, name)
    for name in (
        "__array__",
        "__bool__",
        "__float__",
        "__index__",
        "__int__",
        "cpu",
        "item",
        "nonzero",
        "numpy",
        "tolist",
    )
} | {torch.equal, torch.Tensor.equal}
"""What waits for the device: the result is the host's."""


class _OnTheCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on CUDA, and keeps the stream busy for as long as that took."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda or func is torch.Tensor.pin_memory:
            return args[0]
        goes_to_host = func is torch.Tensor.to and _is_host([*args[1:], *(kwargs or {}).values()])
        args = tuple(_on_cpu(a) for a in args)
        named = {name: _on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if isinstance(named.get("device"), int):
            named["device"] = "cpu"
        if (func in _READS or goes_to_host) and DEVICE.is_initialized:
            wait_until(max(stream.busy_until for stream in STREAMS))
        start = time.perf_counter()
        result = func(*args, **named)
        is_collective = getattr(func, "__module__", "") == "torch.distributed.distributed_c10d"
        is_access = getattr(func, "__name__", "") in ("__get__", "__set__")
        if DEVICE.is_initialized and not is_access and not is_collective:
            DEVICE.enqueue(time.perf_counter() - start)
        return result


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return value


def _is_host(values: Sequence[Any]) -> bool:
    return any(isinstance(v, (str, torch.device)) and str(v) == "cpu" for v in values)


def _keeping_busy(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective that keeps the stream busy. Not for as long as gloo needs: that is mostly to wait for the others."""

    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        global _is_in_collective
        if _is_in_collective or not DEVICE.is_initialized:  # torch calls some of them again, for our mode
            return collective(*args, **kwargs)
        _is_in_collective = True
        try:
            return collective(*args, **kwargs)
        finally:
            _is_in_collective = False
            sent = sum(a.numel() * a.itemsize for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
            DEVICE.enqueue(COLLECTIVE_S + sent / BYTES_PER_S)

    return call


def _init_process_group(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(backend: str | None = None, *args: Any, device_id: object = None, **kwargs: Any) -> None:
        del device_id
        calls.append(f"init_process_group {backend}")
        original(_without_nccl(backend), *args, **kwargs)

    return init


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new(*args: Any, backend: str | None = None, device_id: object = None, **kwargs: Any) -> Any:
        del device_id
        return original(*args, backend=backend and _without_nccl(backend), **kwargs)

    return new


def _without_nccl(backend: str | None) -> str:
    return "gloo" if backend is None or "nccl" in backend else backend


def _make_replica(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: object, *args: Any, device_ids: object = None, output_device: object = None, **kwargs: Any) -> None:
        del device_ids, output_device
        original(self, *args, **kwargs)

    return init


def _put_in_place() -> None:
    for name, stand_in in _IN_TORCH_CUDA.items():
        setattr(torch.cuda, name, stand_in)
    torch.cuda.nccl.version = lambda: ("stand-in",)
    torch.version.cuda = "stand-in"
    torch.accelerator.current_accelerator = lambda check_available=False: None  # a build for GPUs would ask its driver
    steady.MOST_S = 0.0  # no clock to be raised; the host's restlessness would be waited for instead
    replace_in_distributed(dist.init_process_group, _init_process_group(dist.init_process_group))
    replace_in_distributed(dist.new_group, _new_group(dist.new_group))
    for collective in [getattr(dist, name) for name in _COLLECTIVES if hasattr(dist, name)]:  # some are of torch 2.13
        replace_in_distributed(collective, _keeping_busy(collective))
    with contextlib.suppress(ImportError):  # torch 2.8 and before have no NUMA binding
        from torch.numa import binding

        binding._get_numa_node_index_for_gpu_index = lambda *, gpu_index: 0
        # its name from torch 2.15 on, which counts accelerators
        binding._get_numa_node_index_for_device_index = lambda *, device_index: 0  # type: ignore[attr-defined]
        binding._get_device_count = _count_devices  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = _make_replica(DistributedDataParallel.__init__)  # type: ignore[method-assign]
    _OnTheCpu().__enter__()  # of this thread, and of those forked from it


_put_in_place()

"""Every private part of torch that ranks use, to be checked with each release of torch.

Differences between releases are found by looking for the part, as nightly and vendor builds carry their version before
they have everything. A test compares them with the table in ``releases.py``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined] # exported at run time only
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

_DUMPS = {"": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
"""torch's flight recorders: NCCL has its own, the other backends share one."""


def recordings(*, whole: bool) -> dict[str, bytes]:
    """torch's flight recorders as JSON: NCCL's as ``nccl``, that of all other backends as "".

    If not ``whole``, only the counts, in some ten microseconds.
    """
    found = {}
    for recorder, name in _DUMPS.items():
        dump = getattr(torch._C._distributed_c10d, name, None)
        if dump is not None:
            with contextlib.suppress(RuntimeError, TypeError):
                content: str | bytes = dump(includeCollectives=whole)
                found[recorder] = content.encode() if isinstance(content, str) else content
    return found


def group_members() -> dict[str, list[int]]:
    """Name of each process group that this process is in -> its ranks."""
    world = distributed_c10d._world
    known = {group: ranks for group, ranks in world.pg_group_ranks.items() if group in world.pg_names}
    return {world.pg_names[group]: sorted(ranks) for group, ranks in known.items()}


def cpus_near_gpu(index: int, mode: str) -> set[int]:
    """The CPUs that ``torchrun --numa-binding=MODE`` binds the process of a visible GPU to.

    torch binds only the processes it starts, differently in each release, and not all of forkserver's. Raises
    ImportError if this torch has no NUMA binding, OSError if the kernel does not say where the GPU is.
    """
    from torch.numa import binding  # not in torch 2.8 and before

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    find = binding._get_logical_cpus_to_bind_to
    name = next(iter(inspect.signature(find).parameters))  # gpu_index; from torch 2.15 on device_index
    return set(find(**{name: index}, numa_options=options))


def is_fork_poisoned() -> bool:
    """Whether this process has used CUDA, so that no fork of it can; torch only knows in a child.

    Asking for the number of devices is use enough.
    """
    child = os.fork()
    if child == 0:
        os._exit(bool(torch.cuda._is_in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def skips_of_torchs_tests() -> dict[int, str]:
    """Exit code by which a test of torch's own skips -> why, or {} if none was imported here."""
    table = getattr(sys.modules.get("torch.testing._internal.common_distributed"), "TEST_SKIPS", {})
    return {skip.exit_code: str(skip.message) for skip in table.values()}


def occupy_stream(cycles: int) -> None:
    """Enqueue a kernel that idles for so many cycles of the GPU's clock."""
    torch.cuda._sleep(cycles)


_AFTER_US = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_UNWATCHED = {"check_for_nan"}


class Issued(Protocol):
    """A collective, send or recv that :func:`watch_collectives` reported."""

    is_waited_for: bool


Reporter = Callable[[str, dict[str, Any], str], Issued | None]
"""Called with the operator's name, its arguments by name, and the reduction if Python has named one."""

_ASKING = ("wait", "synchronize", "is_completed", "result", "get_future", "get_future_result", "block_current_stream")
"""Methods of a work object after whose call the work counts as waited for: they wait, test, or return a future."""


class _Asked(threading.local):
    """The call of a process group's method in this thread: its reduction, and the operations it issued so far.

    ``together``: operations issued inside a coalescing, which returns one work at its end; None outside of one.
    """

    def __init__(self) -> None:
        self.reduction = ""
        self.issued: list[Issued] | None = None
        self.together: list[Issued] | None = None


class _Waits:
    """Notes whether anybody waits for issued operations.

    This is known for operations issued by Python, which gets a work or a functional collective's tensor. C++, such as
    DistributedDataParallel's reducer, waits for what it issues.
    """

    def __init__(self) -> None:
        self._by_work: weakref.WeakKeyDictionary[Any, list[Issued]] = weakref.WeakKeyDictionary()
        self._by_memory: dict[int, list[Issued]] = {}

    def hand_out(self, work: Any, issued: list[Issued]) -> None:
        self._leave(issued)
        self._by_work[work] = issued

    def hand_out_tensors(self, found: Any, issued: list[Issued], *, is_new: bool) -> None:
        self._leave(issued)
        for tensor in [found] if isinstance(found, torch.Tensor) else found or []:
            memory = _memory(tensor)
            self._by_memory[memory] = issued if is_new else [*self._by_memory.get(memory, ()), *issued]

    def ask(self, work: Any) -> None:
        for one in self._by_work.get(work, ()):
            one.is_waited_for = True

    def ask_tensor(self, tensor: torch.Tensor) -> None:
        for one in self._by_memory.pop(_memory(tensor), ()):
            one.is_waited_for = True

    def _leave(self, issued: list[Issued]) -> None:
        for one in issued:
            one.is_waited_for = False


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def watch_collectives(report: Reporter, *, completes: bool = False) -> Callable[[], None]:
    """Report every collective, send and recv of this process before its backend runs it; returns what ends this.

    All that Python or C++ (DistributedDataParallel's reducer) asks of a process group goes through operators of torch's
    namespace ``c10d``. Kernels of this module come first, at the key ``BackendSelect``: every call passes there, with
    and without autograd, and no other operator does. It takes some 50 us per collective, in whatever thread issues it.
    What ``report`` returns is marked if Python holds its work and does not wait for it.

    ``completes``: the backend moves no data; works are complete and have the tensors as result, which the ``fake``
    backend omits and DistributedDataParallel's reducer and hooks need.
    """
    asked, waits = _Asked(), _Waits()
    library = torch.library.Library("c10d", "IMPL")
    functional = torch.library.Library("_c10d_functional", "IMPL")
    collectives, functional_collectives = find_collectives()
    for name, operator in collectives.items():
        library.impl(
            name, _standing_before(operator, name, report, asked, completes), "BackendSelect", with_keyset=True
        )
    for name, operator in functional_collectives.items():
        functional.impl(name, _functional(operator, name, asked, waits), "BackendSelect", with_keyset=True)

    def asking(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def ask(self: Any, *args: Any, **options: Any) -> Any:
            waits.ask(self)
            return method(self, *args, **options)

        return ask

    # methods of a process group that give a work, and those around several of them
    methods = {name: method for name, method in vars(dist.ProcessGroup).items() if callable(method)}
    issuing = [name for name, m in methods.items() if "Work" in (m.__doc__ or "") or name == _BEGINS_TOGETHER]
    replaced = [
        *_replace_methods(dist.ProcessGroup, issuing, lambda m: _issuing_method(m, asked, waits)),
        *_replace_methods(dist.Work, _ASKING, asking),
    ]

    def end() -> None:
        for of, name, method in replaced:
            setattr(of, name, method)
        library._destroy()
        functional._destroy()

    return end


def _replace_methods(
    of: type, names: Iterable[str], make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    for name in names:
        if (method := vars(of).get(name)) is not None:
            setattr(of, name, make(getattr(of, name)))
            yield of, name, method


@functools.cache  # going through thousands of names takes 10 ms, and a sweep begins to look at each of its sizes
def find_collectives() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The watched operators of ``c10d`` and of ``_c10d_functional``, by name. torch defines them at import.

    An overload has a point in its name, and calls the operator without.
    """
    names = [name.partition("::") for name in torch._C._dispatch_get_all_op_names()]
    called = [name for space, _, name in names if space == "c10d" and name not in _UNWATCHED]
    functional = [name for space, _, name in names if space == "_c10d_functional" and "." not in name]
    return (
        {name: getattr(torch.ops.c10d, name).default for name in called},
        {name: getattr(torch.ops._c10d_functional, name).default for name in functional},
    )


def _standing_before(operator: Any, name: str, report: Reporter, asked: _Asked, completes: bool) -> Callable[..., Any]:  # noqa: FBT001 one of five that are all passed on
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keys: Any, *args: Any, **options: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | options
        issued = report(name, given, asked.reduction)
        if issued is not None and asked.issued is not None:
            asked.issued.append(issued)
        found = operator.redispatch(keys & _AFTER_US, *args, **options)
        if not completes or found is None:
            return found
        work = finished_work(*args[:1])
        return (*found[:-1], work) if isinstance(found, tuple) else work

    return kernel


def finished_work(results: Any = None, *_: object) -> Any:
    """Make a work object, as C++ takes it, that is complete and whose result is these tensors, or lists of tensors."""
    flat = [results] if isinstance(results, torch.Tensor) else list(results or [])
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result([t for r in flat for t in (r if isinstance(r, list) else [r])])
    return torch._C._distributed_c10d._create_work_from_future(done).boxed()  # type: ignore[attr-defined] # not in stubs


def _functional(operator: Any, name: str, asked: _Asked, waits: _Waits) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]
    is_new = not name.endswith(("_", "tensor_out"))

    def kernel(keys: Any, *args: Any, **options: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | options
        if name == "wait_tensor":
            waits.ask_tensor(given["tensor"])
            return operator.redispatch(keys & _AFTER_US, *args, **options)
        with _asking(asked, str(given.get("reduce_op", ""))) as issued:
            found = operator.redispatch(keys & _AFTER_US, *args, **options)
        waits.hand_out_tensors(found, issued, is_new=is_new)
        return found

    return kernel


@contextlib.contextmanager
def _asking(asked: _Asked, reduction: str) -> Iterator[list[Issued]]:
    before = asked.reduction, asked.issued
    issued: list[Issued] = []
    asked.reduction, asked.issued = reduction, issued
    try:
        yield issued
    finally:
        asked.reduction, asked.issued = before


_BEGINS_TOGETHER, _ENDS_TOGETHER = "_start_coalescing", "_end_coalescing"


def _issuing_method(method: Callable[..., Any], asked: _Asked, waits: _Waits) -> Callable[..., Any]:
    """Wrap a process group's method to note its reduction, and who waits for the work that it returns."""
    name = method.__name__

    @functools.wraps(method)
    def issuing(self: Any, *args: Any, **options: Any) -> Any:
        if name == _BEGINS_TOGETHER:
            asked.together = []
        with _asking(asked, _reduction((*args, *options.values()))) as issued:
            work = method(self, *args, **options)
        if name == _ENDS_TOGETHER:
            issued, asked.together = asked.together or [], None
        elif asked.together is not None:
            asked.together += issued
        if issued and isinstance(work, dist.Work):
            waits.hand_out(work, issued)
        return work

    return issuing


def _reduction(given: Iterable[Any]) -> str:
    for one in given:
        reduction = getattr(one, "reduceOp", one)
        if isinstance(reduction, dist.ReduceOp):
            return str(reduction.op.name).lower()  # type: ignore[attr-defined] # not in torch's stubs
        if isinstance(reduction, dist.ReduceOp.RedOpType):
            return reduction.name.lower()
    return ""


def group_facts() -> list[tuple[str, str, list[int]]]:
    """Name, description and ranks of each process group that this process belongs to."""
    world, me = distributed_c10d._world, dist.get_rank()
    known = [(group, sorted(ranks)) for group, ranks in world.pg_group_ranks.items() if group in world.pg_names]
    return [(world.pg_names[g], getattr(g, "group_desc", ""), ranks) for g, ranks in known if me in ranks]


def entered_in_all_groups() -> int | None:
    """Collectives entered so far, without send and recv, or None if a backend does not count; < 1 us a group."""
    try:
        groups: list[Any] = list(distributed_c10d._world.pg_names)
        return sum(group._get_sequence_number_for_group() for group in groups)
    except RuntimeError:
        return None


def process_groups() -> list[dist.ProcessGroup]:
    return list(distributed_c10d._world.pg_map)


def backends_of(group: dist.ProcessGroup) -> set[str]:
    """Names of the backends of a group's devices, or its own if it is written in Python.

    torch's name of a group is no answer: ``undefined``, ``cpu:gloo,cuda:nccl``, or whatever was registered.
    """
    made_of: list[Any] = [group._get_backend(device) for device in group._device_types] or [group]
    return {_backend_name(part) for part in made_of}


def _backend_name(part: Any) -> str:
    try:
        name: str = part.name()
    except RuntimeError:  # torch 2.8's fake group has none
        return "fake" if type(part).__name__ == "FakeProcessGroup" else type(part).__name__
    return name


def stand_around_rebuilds(around: Callable[[], contextlib.AbstractContextManager[None]]) -> Callable[[], None]:
    """Let DDP reducers rebuild their buckets inside ``around()``; returns a function that ends this.

    They do so once, at the first forward pass after the first reduction, and broadcast the sizes and parameters of the
    buckets, which is no property of the step in which it happens.
    """
    reducer: Any = torch._C._distributed_c10d.Reducer
    rebuild = reducer._rebuild_buckets

    @functools.wraps(rebuild)
    def rebuilding(self: Any) -> bool:
        with _without_compiler(), around():  # around a compiled DDP it would compile around()
            return bool(rebuild(self))

    rebuilding._torchdynamo_disable = True  # type: ignore[attr-defined] # a compiler takes it for the builtin that it was
    reducer._rebuild_buckets = rebuilding

    def end() -> None:
        reducer._rebuild_buckets = rebuild

    return end


def uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that the compiler of an optimizer's step calls without compiling it."""

    def call(*args: object) -> None:
        with _without_compiler():
            hook(*args)

    call._torchdynamo_disable = True  # type: ignore[attr-defined] # as torch._dynamo.disable does, without its import
    return call


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    compiler = torch._C._dynamo.eval_frame.set_eval_frame(None)
    try:
        yield
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(compiler)


_AVERAGING_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
_LOCAL = "post_localSGD"


def managed_by_ddp(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """The parameters that DDP keeps equal by averaging gradients, or [] under a hook that may not average."""
    hooks = [hook for hook, _ in getattr(ddp, "_comm_hooks", ())]
    if any(_LOCAL in h.__qualname__ or not h.__module__.startswith(_AVERAGING_HOOKS) for h in hooks):
        return []
    named = ddp.module.named_parameters()
    return [p for name, p in named if p.requires_grad and name not in ddp.parameters_to_ignore]


def graph_nodes() -> int | None:
    """Number of operations that autograd has recorded so far in this thread, or None if torch does not say."""
    count = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return int(count()) if count is not None else None


def forward_of_backward() -> int | None:
    """:func:`graph_nodes` before the operation whose backward pass runs in this thread now, or None."""
    running = getattr(torch._C, "_current_autograd_node", lambda: None)()
    return None if running is None else int(running._sequence_nr())


def record_allocations(*, is_on: bool) -> None:
    """Let the allocator of CUDA keep its history, with stacks of Python, or end that."""
    torch.cuda.memory._record_memory_history("all" if is_on else None, stacks="python")


def allocator_history() -> list[dict[str, Any]]:
    """Return the history of the current CUDA device, the ``device_traces`` of torch.cuda.memory's snapshot."""
    traces: list[list[dict[str, Any]]] = torch.cuda.memory._snapshot()["device_traces"]
    return traces[torch.cuda.current_device()]


def in_backward() -> bool:
    """Whether autograd's backward pass is the caller."""
    return bool(torch._C._current_graph_task_id() != -1)


def call_after_backward(function: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def replace_in_distributed(old: Callable[..., object], new: Callable[..., object]) -> None:
    """Put ``new`` where ``torch.distributed`` has ``old``, under whatever names."""
    for module, name in places_in_distributed(old):
        setattr(module, name, new)


def places_in_distributed(what: Callable[..., object]) -> list[tuple[ModuleType, str]]:
    """Modules of ``torch.distributed`` that have a function, and its names there."""
    modules = (dist, distributed_c10d)
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is what]


@functools.cache  # for the process that ranks are forked from: to look copies two hundred of its pages in each of them
def places_of_destroy() -> list[tuple[ModuleType, str]]:
    """:func:`places_in_distributed` of ``destroy_process_group``, before a body has changed one."""
    return places_in_distributed(dist.destroy_process_group)


def coalescing(group: dist.ProcessGroup | None, *, is_async: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Merge collectives of one kind that are called inside into one; it is complete at the end, unless ``is_async``."""
    return cast(
        "contextlib.AbstractContextManager[Any]", distributed_c10d._coalescing_manager(group, async_ops=is_async)
    )


def join_fake_group(*, rank: int, world_size: int) -> None:
    """Make the default group one that moves no data."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def fake_group_of_one() -> dist.ProcessGroup:
    """A group of this rank alone that moves no data."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 it registers the backend

    return dist.new_group([dist.get_rank()], backend="fake", use_local_synchronization=True)


@contextlib.contextmanager
def default_group(group: dist.ProcessGroup) -> Iterator[None]:
    """Make a group the default group inside."""
    world = distributed_c10d._world
    real = world.default_pg
    world.default_pg = group
    try:
        yield
    finally:
        world.default_pg = real


def join_fake_groups_only(*, rank: int, world_size: int) -> None:
    """Give a script groups that move no data, whatever it asks for from now on."""
    real = dist.init_process_group

    @functools.wraps(real)
    def joining(*_: object, **__: object) -> None:
        replace_in_distributed(joining, real)
        try:
            join_fake_group(rank=rank, world_size=world_size)
        finally:
            replace_in_distributed(real, joining)

    replace_in_distributed(real, joining)


def store_on(listener: socket.socket, *, timeout_s: float, multi_tenant: bool = False) -> TCPStore:
    """A TCPStore that serves on a given socket and closes it: torch's own would listen on every interface.

    ``timeout_s``: how long clients may wait. ``multi_tenant``: other stores of this process on the same port join it.
    """
    host, port = listener.getsockname()[:2]
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=multi_tenant,
        master_listen_fd=listener.detach(),
    )

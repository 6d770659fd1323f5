"""Recorder of places: which lines of the repository an iteration spends its time in, in a launch that is not judged.

Operators are counted and timed one by one, below autograd. An operator of a backward pass belongs to the line of its
forward pass. For what torch does not see, a thread samples the stack of the rank's main thread: time between two
samples that is in no operator belongs to the place of the second sample. A call that keeps the GIL is seen when it
returns, at its line. Workers of a data loader sample themselves: they get the time in which the rank waits for data.
"""

from __future__ import annotations

import bisect
import contextlib
import dis
import functools
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec
import torch
from torch.utils.data import DataLoader

from pytest_distbench.records.places import BACKWARD, DATA, WAITING, LoopPlaces, Place, RankPlaces, Spot
from pytest_distbench.worker.torch_internals import TorchDispatchMode, forward_of_backward, graph_nodes

RECORDED = 20  # iterations of each loop

_SAMPLED_S = 0.001
_SWITCHED_S = 50e-6  # with more, lines that release the interpreter are seen in place of those that keep it
_DEEPEST = 12  # lines of the repository that are kept of a stack
_MOST_NODES = 100_000  # operations of a forward pass whose lines are known
_LARGEST_SOURCE = 500_000  # bytes of a module

_WAITS = ("torch/distributed/distributed_c10d.py",)
_LOADER = "torch/utils/data/dataloader.py"
_ENGINE = "torch/autograd/graph.py"
_WAIT = "waiting "  # with it WAITING and DATA begin
_MARKS = "profiler::"  # operators that mark a part of the code

Stack = tuple[tuple[CodeType, int], ...]  # code and instruction, the innermost first
_Seen = dict[tuple[Stack, str], list[float]]  # calls and seconds
_Wait = tuple[float, float, Stack]  # begin, end and where
_Work = tuple[float, float, tuple[Place, ...]]  # of a worker: begin, end and where


class Stacks:
    """Reader of stacks of frames: which lines are the repository's, and what runs there."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._kind, self._place = functools.cache(self._find_kind), functools.cache(self._find_place)

    def of(self, frame: FrameType | None) -> tuple[Stack, bool]:
        """Return the repository's lines, innermost first, and whether a backward pass runs inside of the innermost."""
        stack: list[tuple[CodeType, int]] = []
        in_backward = False
        while frame is not None:
            kind = self._kind(frame.f_code)
            if kind == "own":
                stack.append((frame.f_code, frame.f_lasti))
            elif kind == BACKWARD:
                in_backward |= not stack
            frame = frame.f_back
        return tuple(stack[:_DEEPEST]), in_backward

    def what(self, frame: FrameType | None) -> str:
        """Return what runs at the innermost line of the repository: a library's function that it calls, or Python."""
        found = "Python"
        while frame is not None and (kind := self._kind(frame.f_code)) != "own":
            if kind == BACKWARD:
                return BACKWARD
            if kind and (kind.startswith(_WAIT) or not found.startswith(_WAIT)):  # wrappers are around it
                found = kind
            frame = frame.f_back
        return found

    def _find_kind(self, code: CodeType) -> str:
        file = code.co_filename
        if is_own(file, self._root):
            return "own"
        if file == __file__ or file.startswith("<"):
            return ""
        if file.endswith((_ENGINE, _LOADER)):
            return BACKWARD if file.endswith(_ENGINE) else DATA
        return f"{WAITING * file.endswith(_WAITS)}{code.co_qualname}"

    def _find_place(self, code: CodeType, instruction: int) -> Place:
        lines = [line for start, line in dis.findlinestarts(code) if start <= instruction and line is not None]
        file = str(Path(code.co_filename).relative_to(self._root))
        name = code.co_qualname.partition(".<")[0]  # of the function that a lambda or a comprehension is in
        return file, lines[-1] if lines else code.co_firstlineno, name

    def places(self, stack: Stack) -> tuple[Place, ...]:
        return tuple(self._place(*line) for line in stack)


class Callers:
    """Finder of the line that an operator belongs to; an operator of a backward pass to that of its forward pass."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._forward: dict[int, Stack] = {}

    def clear(self) -> None:
        self._forward.clear()

    def of(self, frame: FrameType) -> tuple[Stack, bool]:
        """Return the repository's lines, innermost first, and whether this is a backward pass."""
        stack, in_backward = self._stacks.of(frame)
        node, number = forward_of_backward(), graph_nodes()
        if node is not None and in_backward:
            stack = self._forward.get(node, stack)
        elif number is not None and not in_backward:
            if len(self._forward) > _MOST_NODES:
                self.clear()
            self._forward.setdefault(number - 1, stack)  # one without gradient follows that of the node before it
        return stack, in_backward


class _Iteration(NamedTuple):
    wall_s: float  # without waits
    own_s: float  # of the recorder
    seen: _Seen
    waits: list[_Wait]  # for data


class PlaceRecorder(TorchDispatchMode):
    """Recorder of the iterations of one loop: their operators, samples and waits for data."""

    def __init__(self, loop: str, root: str, synchronize: Callable[[], None]) -> None:
        super().__init__()
        self._loop = loop
        self._stacks = Stacks(root)
        self._synchronize = synchronize
        self._callers = Callers(self._stacks)
        self._operators: _Seen = defaultdict(lambda: [0.0, 0.0])
        self._samples: _Seen = defaultdict(lambda: [0.0, 0.0])
        self._waits: list[_Wait] = []
        self._iterations: list[_Iteration] = []
        self._apart_s = self._own_s = self._left_s = self._began_at = 0.0
        self._is_inside = False
        self._main = threading.get_ident()
        self._ended = threading.Event()
        self._sampled: tuple[float, float] | None = None

    def start(self) -> None:
        self._switched_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCHED_S)
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=functools.partial(setattr, self, "_sampled", None))  # it records no worker

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        sys.setswitchinterval(self._switched_s)

    @contextlib.contextmanager
    def iteration(self, name: str) -> Iterator[None]:
        del name
        for before in (self._operators, self._samples, self._callers, self._waits):
            before.clear()
        began, own_s = time.perf_counter(), self._own_s
        self._began_at, self._sampled = began, (began - self._left_s, self._apart_s)
        try:
            with self:
                yield
        finally:
            last, self._sampled = self._sampled, None
            ended = time.perf_counter()
            self._left_s = ended - last[0] - (self._apart_s - last[1])  # for the next sample, or short ones have none
            wall_s = ended - began - sum(end - begin for begin, end, _ in self._waits)
            seen = {key: [*values] for found in (self._operators, self._samples) for key, values in [*found.items()]}
            self._iterations.append(_Iteration(wall_s, self._own_s - own_s, seen, [*self._waits]))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        name = func.name().partition(".")[0]
        name += " (.item())" * (name == "aten::_local_scalar_dense")
        if self._is_inside or self._sampled is None or name.startswith(_MARKS):
            return func(*args, **(kwargs or {}))
        self._is_inside = True
        entered = time.perf_counter()
        stack, in_backward = self._callers.of(sys._getframe(1))
        began = time.perf_counter()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._synchronize()
            ended = time.perf_counter()
            seen = self._operators[stack, f"{name} ({BACKWARD})" if in_backward else name]
            seen[0] += 1
            seen[1] += ended - began
            now = time.perf_counter()
            self._apart_s += now - entered
            self._own_s += (now - ended) + (began - entered)
            self._is_inside = False

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLED_S):
            before, frame = self._sampled, sys._current_frames().get(self._main)
            apart_s, now = self._apart_s, time.perf_counter()
            if before is None or frame is None or self._is_inside or apart_s != self._apart_s:
                continue  # the main thread was at an operator meanwhile: the next sample has this time
            stack, what = self._stacks.of(frame)[0], self._stacks.what(frame)
            passed_s = now - before[0] - (apart_s - before[1])
            if what == DATA:
                self._waits.append((max(self._began_at, now - passed_s), now, stack))
            else:
                self._samples[stack, what][1] += passed_s
            if self._sampled is before:
                self._sampled = now, apart_s

    def places(self, work: Sequence[_Work] = ()) -> LoopPlaces:
        """Return means over the faster half of the iterations: the others were disturbed.

        Waits for data are a mean over all iterations, as not each waits. They go to the places of workers, whose
        ``work`` is sorted by end.
        """
        kept = sorted(self._iterations, key=lambda one: one.wall_s - one.own_s)
        kept = kept[: max(1, (len(kept) + 1) // 2)]
        each, each_of_all = (1 / max(1, len(of)) for of in (kept, self._iterations))
        totals: dict[tuple[tuple[Place, ...], str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for one in kept:
            for (stack, what), (calls, seconds) in one.seen.items():
                total = totals[self._stacks.places(stack), what]
                total[0] += calls * each
                total[1] += seconds * each
        longest_s = max((end - begin for begin, end, _ in work), default=0.0)
        waits = [wait for one in self._iterations for wait in one.waits]
        for begin, end, stack in waits:
            own, rest_s = self._stacks.places(stack), end - begin
            for behind, seconds in _share(work, longest_s, begin, end).items():
                totals[(*behind, *own), DATA][1] += seconds * each_of_all
                rest_s -= seconds
            totals[own, DATA][1] += rest_s * each_of_all
        waited_s = sum(end - begin for begin, end, _ in waits) * each_of_all
        return LoopPlaces(
            loop=self._loop,
            iterations=len(self._iterations),
            iteration_s=sum(one.wall_s - one.own_s for one in kept) * each + waited_s,
            wall_s=sum(one.wall_s for one in kept) * each + waited_s,
            spots=[Spot(stack=[*s], what=what, calls=n, amount=t) for (s, what), (n, t) in totals.items()],
        )


def _share(work: Sequence[_Work], longest_s: float, begin: float, end: float) -> dict[tuple[Place, ...], float]:
    """Return the seconds of workers at each place in an interval, which workers of the same time share."""
    found: dict[tuple[Place, ...], float] = defaultdict(float)
    for at in range(bisect.bisect_left(work, begin, key=lambda one: one[1]), len(work)):
        began, ended, stack = work[at]
        if ended > end + longest_s:
            break
        if (both_s := min(end, ended) - max(begin, began)) > 0:
            found[stack] += both_s
    several = max(1.0, sum(found.values()) / (end - begin)) if found else 1.0
    return {stack: seconds / several for stack, seconds in found.items()}


@dataclass(frozen=True)
class InWorker:
    """Initialiser of a data loader's worker: the worker begins to sample itself."""

    then: Callable[[int], None] | None
    path: str
    root: str

    def __call__(self, worker: int) -> None:
        sys.setswitchinterval(_SWITCHED_S)
        threading.Thread(target=self._sample, args=(threading.get_ident(),), daemon=True).start()
        if self.then is not None:
            self.then(worker)

    def _sample(self, main: int) -> None:
        stacks, before = Stacks(self.root), time.perf_counter()  # one clock in all processes
        with Path(f"{self.path}.{os.getpid()}").open("wb", buffering=0) as out:
            while frame := sys._current_frames().get(main):
                now, stack = time.perf_counter(), stacks.of(frame)[0]
                if stack:
                    out.write(msgspec.json.encode((before, now, stacks.places(stack))) + b"\n")
                before = now
                time.sleep(_SAMPLED_S)


@contextlib.contextmanager
def sampled_workers(path: Path, root: str) -> Iterator[None]:
    """Let workers that data loaders start meanwhile sample themselves, and warm the recorder of this rank up."""
    with PlaceRecorder("", root, lambda: None):
        torch.empty(0)  # what the first operator imports is no iteration's

    def begin(loader: DataLoader[Any]) -> Callable[[int], None] | None:
        then: Callable[[int], None] | None = vars(loader).get("worker_init_fn")
        return InWorker(then, str(path), root) if loader.num_workers else then

    def keep(loader: DataLoader[Any], then: Callable[[int], None] | None) -> None:
        vars(loader)["worker_init_fn"] = then

    # subclasses that start their workers themselves (torchdata's StatefulDataLoader) read the attribute, too
    DataLoader.worker_init_fn = property(begin, keep)  # type: ignore[assignment]
    try:
        yield
    finally:
        del DataLoader.worker_init_fn  # type: ignore[misc]


def read_work(path: Path) -> list[_Work]:
    """Read what workers did, sorted by end."""
    decoder = msgspec.json.Decoder(_Work)
    files = [file.read_bytes() for file in path.parent.glob(f"{path.name}.*")]
    whole = [one for lines in files for one in decoder.decode_lines(lines.rpartition(b"\n")[0])]
    return sorted(whole, key=lambda one: one[1])


def is_own(file: str, root: str) -> bool:
    """Whether a file is the repository's: below its root, and not installed there."""
    is_ours = file.startswith(str(Path(__file__).parent))
    return bool(root) and file.startswith(f"{root}/") and "site-packages" not in file and not is_ours


def root_of(file: str) -> str:
    """Return the root of the repository that a file is in, or ""."""
    return next((str(folder) for folder in Path(file).resolve().parents if (folder / ".git").exists()), "")


def sources_below(root: str) -> dict[str, list[str]]:
    """Return the lines of the repository's loaded modules, by file."""
    found = {}
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not is_own(file, root):
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if Path(file).stat().st_size < _LARGEST_SOURCE:
                found[str(Path(file).relative_to(root))] = Path(file).read_text().splitlines()
    return found


def encode(recorders: Iterable[PlaceRecorder], peaks: dict[str, list[Spot]], root: str, work: Sequence[_Work]) -> bytes:
    loops = [recorder.places(work) for recorder in recorders]
    return msgspec.json.encode(RankPlaces(loops=loops, peaks=peaks, sources=sources_below(root)))

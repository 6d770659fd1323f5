"""Recorder of places: which lines of the repository an iteration spends its time in, in a launch that is not judged.

Operators are counted and timed one by one, below autograd. One of a backward pass belongs to the line whose forward
pass it is of. For what torch does not see a thread samples the stack of the rank's main thread: time between two
samples that is in no operator belongs to the place that the second one sees. A call that keeps the interpreter to
itself is seen when it returns, at its line.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

from pytest_distbench.records.places import BACKWARD, WAITING, LoopPlaces, Place, RankPlaces, Spot
from pytest_distbench.worker.torch_internals import TorchDispatchMode, forward_of_backward, graph_nodes

RECORDED = 20  # iterations of each loop

_SAMPLED_S = 0.001
_DEEPEST = 12  # lines of the repository that are kept of a stack
_LARGEST_SOURCE = 500_000  # bytes of a module

_WAITS = ("torch/distributed/distributed_c10d.py", "torch/utils/data/dataloader.py")
_ENGINE = "torch/autograd/graph.py"
_MARKS = "profiler::"  # operators that mark a part of the code

_Stack = tuple[tuple[CodeType, int], ...]  # code and instruction, the innermost first
_Seen = dict[tuple[_Stack, str], list[float]]  # calls and seconds


class PlaceRecorder(TorchDispatchMode):
    """Records the iterations of one loop."""

    def __init__(self, loop: str, root: str, synchronize: Callable[[], None]) -> None:
        super().__init__()
        self._loop = loop
        self._root = root
        self._synchronize = synchronize
        self._kinds: dict[CodeType, str] = {}
        self._forward: dict[int, _Stack] = {}
        self._operators: _Seen = defaultdict(lambda: [0.0, 0.0])
        self._samples: _Seen = defaultdict(lambda: [0.0, 0.0])
        self._iterations: list[tuple[float, float, _Seen]] = []
        self._apart_s = self._own_s = self._left_s = 0.0
        self._is_inside = False
        self._main = threading.get_ident()
        self._ended = threading.Event()
        self._sampled: tuple[float, float] | None = None

    def start(self) -> None:
        self._switched_s = sys.getswitchinterval()
        sys.setswitchinterval(_SAMPLED_S / 2)
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        sys.setswitchinterval(self._switched_s)

    @contextlib.contextmanager
    def iteration(self, name: str) -> Iterator[None]:
        del name
        for before in (self._operators, self._samples, self._forward):
            before.clear()
        began, own_s = time.perf_counter(), self._own_s
        self._sampled = began - self._left_s, self._apart_s
        try:
            with self:
                yield
        finally:
            last, self._sampled = self._sampled, None
            ended = time.perf_counter()
            self._left_s = ended - last[0] - (self._apart_s - last[1])  # for the next sample, or short ones have none
            wall_s = ended - began
            seen = {key: [*values] for found in (self._operators, self._samples) for key, values in [*found.items()]}
            self._iterations.append((wall_s, self._own_s - own_s, seen))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        name = func.name().partition(".")[0]
        if self._is_inside or self._sampled is None or name.startswith(_MARKS):
            return func(*args, **(kwargs or {}))
        entered = time.perf_counter()
        stack, in_backward = self._stack_of(sys._getframe(1))
        node, number = forward_of_backward(), graph_nodes()
        if node is not None and in_backward:
            stack = self._forward.get(node, stack)
        elif number is not None and not in_backward:
            self._forward.setdefault(number - 1, stack)  # one without gradient follows that of the node before it
        self._is_inside = True
        began = time.perf_counter()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._synchronize()
            ended = time.perf_counter()
            self._is_inside = False
            seen = self._operators[stack, f"{name} ({BACKWARD})" if in_backward else name]
            seen[0] += 1
            seen[1] += ended - began
            now = time.perf_counter()
            self._apart_s += now - entered
            self._own_s += (now - ended) + (began - entered)

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLED_S):
            before, frame = self._sampled, sys._current_frames().get(self._main)
            if before is None or frame is None or self._is_inside:
                continue
            now, apart_s = time.perf_counter(), self._apart_s
            self._samples[self._stack_of(frame)[0], self._what(frame)][1] += now - before[0] - (apart_s - before[1])
            if self._sampled is before:
                self._sampled = now, apart_s

    def _stack_of(self, frame: FrameType | None) -> tuple[_Stack, bool]:
        """Lines of the repository up to the backward pass, or all; whether that pass calls the innermost of them."""
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

    def _what(self, frame: FrameType | None) -> str:
        """What runs at the innermost line of the repository: the function of a library that it calls, or Python."""
        found = "Python"
        while frame is not None and (kind := self._kind(frame.f_code)) != "own":
            if kind == BACKWARD:
                return BACKWARD
            if kind and not (found.startswith(WAITING) and not kind.startswith(WAITING)):  # wrappers are around it
                found = kind
            frame = frame.f_back
        return found

    def _kind(self, code: CodeType) -> str:
        if (known := self._kinds.get(code)) is None:
            known = self._kinds[code] = self._find_kind(code)
        return known

    def _find_kind(self, code: CodeType) -> str:
        file = code.co_filename
        if is_own(file, self._root):
            return "own"
        if file == __file__ or file.startswith("<"):
            return ""
        if file.endswith(_ENGINE):
            return BACKWARD
        return f"{WAITING * file.endswith(_WAITS)}{code.co_qualname}"

    def places(self) -> LoopPlaces:
        """Means over the faster half of the iterations: the others were disturbed."""
        kept = sorted(self._iterations, key=lambda iteration: iteration[0] - iteration[1])
        kept = kept[: max(1, (len(kept) + 1) // 2)]
        each = 1 / len(kept) if kept else 0.0
        totals: dict[tuple[tuple[Place, ...], str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for *_, seen in kept:
            for (stack, what), (calls, seconds) in seen.items():
                total = totals[tuple(self._place(*line) for line in stack), what]
                total[0] += calls * each
                total[1] += seconds * each
        return LoopPlaces(
            loop=self._loop,
            iterations=len(self._iterations),
            iteration_s=sum(wall_s - own_s for wall_s, own_s, _ in kept) * each,
            wall_s=sum(wall_s for wall_s, *_ in kept) * each,
            spots=[Spot(stack=[*s], what=what, calls=n, time_s=t) for (s, what), (n, t) in totals.items()],
        )

    def _place(self, code: CodeType, instruction: int) -> Place:
        lines = [line for start, line in dis.findlinestarts(code) if start <= instruction and line is not None]
        file = str(Path(code.co_filename).relative_to(self._root))
        name = code.co_qualname.partition(".<")[0]  # of the function that a lambda or a comprehension is in
        return file, lines[-1] if lines else code.co_firstlineno, name


def is_own(file: str, root: str) -> bool:
    """Whether a file is the repository's: below its root, and not installed there."""
    is_ours = file.startswith(str(Path(__file__).parent))
    return bool(root) and file.startswith(f"{root}/") and "site-packages" not in file and not is_ours


def root_of(file: str) -> str:
    """The root of the repository that a file is in; empty: it is in none."""
    return next((str(folder) for folder in Path(file).resolve().parents if (folder / ".git").exists()), "")


def sources_below(root: str) -> dict[str, list[str]]:
    """The lines of loaded modules of the repository, by file."""
    found = {}
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not is_own(file, root):
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if Path(file).stat().st_size < _LARGEST_SOURCE:
                found[str(Path(file).relative_to(root))] = Path(file).read_text().splitlines()
    return found


def encode(recorders: Iterable[PlaceRecorder], root: str) -> bytes:
    loops = [recorder.places() for recorder in recorders]
    return msgspec.json.encode(RankPlaces(loops=loops, sources=sources_below(root)))

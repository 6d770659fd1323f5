"""What forked processes inherit with torch loaded, and how each becomes a process as torchrun starts it.

The parent process imports ``distbench_preload`` once for all ranks. No rank can use CUDA if the parent has, so that is
checked after each module, and the module is named.

Ranks share no random state: generators seeded before the fork would give every rank of every launch the same weights,
shuffles and dropout, and hide a forgotten seed or broadcast. This module is imported before torch.

Every private part of Python that ranks and their parent use is here, to be checked with each release of Python. All of
it exists from Python 3.11 to 3.13, and has no public equivalent.
"""

from __future__ import annotations

import _io
import atexit
import contextlib
import functools
import importlib
import logging
import multiprocessing
import multiprocessing.util
import os
import random
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any

from pytest_distbench.errors import ConfigurationError

TEMPORARY_FILE: type[Any] = tempfile._TemporaryFileWrapper  # what ``NamedTemporaryFile`` returns
FILE: type[Any] = _io._IOBase  # what all files inherit from; ``io.IOBase`` looks through all of its subclasses


_PARENTS: list[Any] = []


def place_sockets(folder: str) -> None:
    multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]


def name_semaphores(prefix: str) -> None:
    """Set the prefix of names of multiprocessing's semaphores, beginning with a slash; also for forked processes."""
    multiprocessing.current_process()._config["semprefix"] = prefix  # type: ignore[attr-defined]


def forget_parents_exit() -> None:
    """Leave exit handlers, finalizers and the resource tracker to the parent process."""
    atexit._clear()
    _PARENTS.append(weakref.finalize._registry)  # type: ignore[attr-defined] # to free it would copy its pages
    weakref.finalize._registry = {}  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None


def wait_for_threads() -> None:
    """Wait for non-daemon threads and the workers of concurrent.futures, as the interpreter does at its end."""
    threading._shutdown()  # type: ignore[attr-defined]


def run_exit_handlers() -> None:
    atexit._run_exitfuncs()


def open_descriptors() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {number for number in found if os.path.exists(f"/proc/self/fd/{number}")}  # not the list's own


NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Variable; at 1 ``torch.cuda.is_available()`` asks NVML instead of CUDA, so that forks can still use CUDA."""

POISONED_BY: list[str] = []  # the module whose import used CUDA, if any

_AS_IMPORTED: dict[str, Callable[[], None]] = {}
"""Generator that a module of the project seeded at its import -> function that restores its state after a fork."""

_UNSEEDED: list[Any] = []  # generators that such a module made without a seed


def load(names: Sequence[str]) -> None:
    """Import modules; missing ones are skipped, as a rank that needs one reports it."""
    if not names:
        return
    from pytest_distbench.worker.torch_internals import is_fork_poisoned

    with _watched_seeds():
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
            if not POISONED_BY and is_fork_poisoned():
                POISONED_BY.append(name)


def make_independent() -> None:
    """Make a forked process independent: drop the parent's exit handlers, and reseed all generators.

    A parent's temporary folder would be removed while other ranks use it. A rank that needs a resource tracker starts
    its own, which cleans up when this rank ends.
    """
    import torch

    forget_parents_exit()
    multiprocessing.current_process().authkey = os.urandom(32)
    # As Python does for its own generator at a fork; those of devices are seeded when the device is first used.
    if "torch" not in _AS_IMPORTED:
        torch.default_generator.seed()
    numpy = sys.modules.get("numpy.random")  # where it is loaded; else it is seeded when it is
    if numpy is not None and "numpy" not in _AS_IMPORTED:
        numpy.seed(int.from_bytes(os.urandom(4), "little"))  # without a number it takes three times as long
    for generator in _UNSEEDED:
        generator.bit_generator.state = type(generator.bit_generator)().state
    sympy = sys.modules.get("sympy.core.random")  # torch._dynamo has loaded it
    if sympy is not None:
        sympy.seed()
    for restore in _AS_IMPORTED.values():
        restore()


def check_fork() -> None:
    if POISONED_BY:
        raise ConfigurationError(
            f"importing {POISONED_BY[0]} (distbench_preload) used CUDA in the process that all ranks are forked from, "
            "which leaves the ranks without: let it ask for CUDA in a function, not when it is imported, or take it "
            "out of distbench_preload"
        )


@contextlib.contextmanager
def _watched_seeds() -> Iterator[None]:
    """Note which generators the modules imported inside seed: those keep their seed, as if each rank imported them."""
    import torch

    before = torch.initial_seed()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_looking_at(random, "seed", functools.partial(_note_seed, "random")))
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            stack.enter_context(_looking_at(numpy, "seed", functools.partial(_note_seed, "numpy")))
            stack.enter_context(
                _looking_at(numpy, "default_rng", lambda made, is_seeded: None if is_seeded else _UNSEEDED.append(made))
            )
        yield
    if torch.initial_seed() != before:
        _AS_IMPORTED["torch"] = lambda: None
    if "random" in _AS_IMPORTED:  # the state when all are imported; Python seeds it again at each fork
        _AS_IMPORTED["random"] = functools.partial(random.setstate, random.getstate())


def _note_seed(name: str, _: object, is_seeded: bool) -> None:  # noqa: FBT001 as _looking_at passes it
    if is_seeded:
        _AS_IMPORTED[name] = lambda: None


@contextlib.contextmanager
def _looking_at(module: Any, name: str, look: Callable[[Any, bool], None]) -> Iterator[None]:
    own = getattr(module, name)

    def looking(*args: Any, **options: Any) -> Any:
        found = own(*args, **options)
        look(found, any(given is not None for given in (*args[:1], *options.values())))
        return found

    setattr(module, name, looking)
    try:
        yield
    finally:
        setattr(module, name, own)

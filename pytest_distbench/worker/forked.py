"""Makes a process that was forked with torch loaded into one as torchrun starts it: it shares no state with the others.

Above all no chance. Generators that were seeded once, in the process they were all forked from, would give every rank
of every launch the same weights, shuffles and dropout, and hide a seed or a broadcast that was forgotten.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pytest_distbench.worker.python_internals import forget_parents_exit

_AS_IMPORTED: dict[str, Callable[[], None]] = {}
"""Generator that a module of the project has seeded when it was imported -> what makes it so again after a fork."""

_UNSEEDED: list[Any] = []
"""Generators of its own that such a module has made without a seed."""


def begin_anew() -> None:
    """Leave to the process that this one was forked from what is that one's, and seed all generators by chance.

    A handler that removes a temporary folder would remove it under the other ranks. And a rank that needs a resource
    tracker, for shared memory say, starts its own, which cleans up when this rank ends, not when all do.
    """
    forget_parents_exit()
    multiprocessing.current_process().authkey = os.urandom(32)
    _seed_anew()


@contextlib.contextmanager
def watched_seeds() -> Iterator[None]:
    """Meanwhile a project's modules are imported: what they seed stays seeded, as if each rank imported them."""
    before = torch.initial_seed()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_telling(random, "seed", lambda: _keep("random")))
        numpy = _numpy_random()
        if numpy is not None:
            stack.enter_context(_telling(numpy, "seed", lambda: _keep("numpy")))
            stack.enter_context(_collecting(numpy, "default_rng"))
        yield
    if torch.initial_seed() != before:
        _keep("torch")
    if "random" in _AS_IMPORTED:  # the state when all are imported; Python seeds it anew at each fork
        _keep("random", functools.partial(random.setstate, random.getstate()))


def _seed_anew() -> None:
    """What Python does for its own generator at a fork."""
    if "torch" not in _AS_IMPORTED:
        torch.default_generator.seed()  # those of devices are seeded when the device is first used
    numpy = _numpy_random()
    if numpy is not None and "numpy" not in _AS_IMPORTED:
        numpy.seed(int.from_bytes(os.urandom(4), "little"))  # without a number it takes three times as long
    for generator in _UNSEEDED:
        generator.bit_generator.state = type(generator.bit_generator)().state
    sympy = sys.modules.get("sympy.core.random")  # torch._dynamo has loaded it
    if sympy is not None:
        sympy.seed()
    for restore in _AS_IMPORTED.values():
        restore()


def _numpy_random() -> Any:
    """The generators of numpy, where it is loaded; else they are seeded when it is."""
    return sys.modules.get("numpy.random")


def _keep(name: str, restore: Callable[[], None] = lambda: None) -> None:
    _AS_IMPORTED[name] = restore


@contextlib.contextmanager
def _telling(module: Any, name: str, tell: Callable[[], None]) -> Iterator[None]:
    """Meanwhile a function that seeds tells when it is given a seed."""
    own = getattr(module, name)

    def seed(*args: Any, **options: Any) -> Any:
        found = own(*args, **options)
        if any(given is not None for given in (*args[:1], *options.values())):
            tell()
        return found

    setattr(module, name, seed)
    try:
        yield
    finally:
        setattr(module, name, own)


@contextlib.contextmanager
def _collecting(module: Any, name: str) -> Iterator[None]:
    """Meanwhile generators that a function makes without a seed are collected."""
    own = getattr(module, name)

    def make(seed: Any = None) -> Any:
        found = own(seed)
        if seed is None:
            _UNSEEDED.append(found)
        return found

    setattr(module, name, make)
    try:
        yield
    finally:
        setattr(module, name, own)

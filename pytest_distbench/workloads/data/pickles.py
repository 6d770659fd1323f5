"""Pickled arrays, read without running anything: of all that a pickle can call, only uint8 arrays are made.

What numpy would be called with is kept as data and checked, so no state of a hostile file reaches its code.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from pytest_distbench.workloads.data.files import CUT, damaged


def unpickle_arrays(path: Path) -> dict[str, Any]:
    """A pickled dictionary of arrays (uint8), numbers, texts and lists of them; keys in bytes become texts.

    Raises:
        DataError: it is cut off, goes on behind its end, or wants anything else.
    """
    content = path.read_bytes()
    stream = io.BytesIO(content)
    reader = _Arrays(stream)
    try:
        found = reader.load()
        if not isinstance(found, dict):
            raise _RefusedError(f"a {type(found).__name__}")  # noqa: TRY301 one way to say what is wrong
        made = {_text(key): value.array() if isinstance(value, _Array) else value for key, value in found.items()}
    except _RefusedError as refused:
        hint = "CIFAR-10 needs nothing else; do not load this file by other means"
        wanted = "a pickled dictionary of arrays and lists"
        raise damaged(f"{path}, byte {stream.tell()}", wanted=wanted, found=str(refused), hint=hint) from None
    except Exception as error:  # noqa: BLE001 a damaged pickle raises whatever its bytes lead to
        found = f"{type(error).__name__}: {error}"
        hint = CUT if stream.tell() >= len(content) else ""
        place = f"{path}, byte {stream.tell()}"
        raise damaged(place, wanted="a pickled dictionary of arrays and lists", found=found, hint=hint) from None
    if rest := len(content) - stream.tell():
        raise damaged(f"{path}, byte {stream.tell()}", wanted="the end of the file", found=f"{rest} more bytes")
    return made


class _RefusedError(Exception):
    """What the pickle wanted to call."""


class _Array:
    """An array that is being unpickled: numpy's state of it, as data."""

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, kind, is_fortran, content = self.state
        if not isinstance(kind, _Kind) or kind.name != "u1":
            raise _RefusedError("an array of other numbers than uint8")
        if is_fortran or not isinstance(content, bytes) or any(type(size) is not int or size < 0 for size in shape):
            raise _RefusedError("an array that is not stored row by row")
        if math.prod(shape) != len(content):
            raise _RefusedError(f"an array {list(shape)} of {len(content)} bytes")
        return np.frombuffer(content, np.uint8).reshape(shape)


class _Kind:
    """The type of an array's numbers: its name; its state says the byte order, which a single byte has not."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None: ...


class _Arrays(pickle.Unpickler):
    """An unpickler that gives its own functions in place of numpy's, and refuses every other name."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="bytes")
        self._known = {
            ("numpy.core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy", "ndarray"): self._refuse_call,
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
        }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._known[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None

    def persistent_load(self, pid: object) -> Any:  # noqa: ARG002 as the base has it
        raise _RefusedError("a reference to an object elsewhere")

    def _reconstruct(self, kind: object, *_: object) -> _Array:
        if kind != self._refuse_call:
            raise _RefusedError("an array of another class")
        return _Array()

    def _dtype(self, name: object, *_: object) -> _Kind:
        return _Kind(_text(name))

    def _encode(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise _RefusedError("a call of _codecs.encode with something else than bytes")
        return text.encode("latin1")

    def _refuse_call(self, *_: object) -> None:
        raise _RefusedError("numpy.ndarray called as a function")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

"""Pickles of arrays: read as they are, without running anything."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data.pickles import unpickle_arrays

CONTENT = {b"data": np.arange(24, dtype=np.uint8).reshape(4, 6), b"labels": [3, 1, 4, 1], b"filenames": [b"a.png"]}

PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05U\x01b\x87"
    b"Rq\x06(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x07U\x02u1K\x00K\x01\x87Rq\x08(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff"
    b"\xffK\x00tb\x89U\x06\x00\x01\x02\x03\xfe\xfftbU\x06labels]q\t(K\x07K\x09eu."
)
"""What cPickle of Python 2 wrote: texts are bytes."""


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_numbers_and_texts_are_read_whoever_wrote_them(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(CONTENT, protocol))
    found = unpickle_arrays(path)

    assert found["data"].tolist() == CONTENT[b"data"].tolist()  # type: ignore[union-attr]
    assert (found["labels"], found["filenames"]) == ([3, 1, 4, 1], [b"a.png"])


def test_what_python_2_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(PYTHON_2)
    found = unpickle_arrays(path)

    assert (found["data"].tolist(), found["labels"]) == ([[0, 1, 2], [3, 254, 255]], [7, 9])


class Calls:
    """Is pickled as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Calls(os.system, "touch was-here"), "(posix|os).system"),
        (Calls(eval, "open('was-here', 'w')"), "(builtins|__builtin__).eval"),
        (Calls(np.fromfile, "x"), r"numpy.*fromfile"),
        (Calls(getattr, "text", "upper"), "(builtins|__builtin__).getattr"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (Path("x"), "pathlib"),
        (torch.zeros(2), "torch"),
        (np.float64(1.0), r"numpy.*scalar"),
        (np.zeros(3, dtype=object), "an array of other numbers than uint8"),
        (np.zeros(3), "an array of other numbers than uint8"),
        (np.ma.zeros(3, dtype=np.uint8), r"numpy.ma"),
        (np.zeros((2, 3), dtype=np.uint8, order="F"), "an array that is not stored row by row"),
    ],
)
def test_what_calls_anything_is_refused_before_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object, found: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": value}, protocol))

    with pytest.raises(
        DataError, match=rf"batch, byte \d+: wanted a pickled dictionary of arrays.*, found .*({found})?"
    ):
        unpickle_arrays(path)
    assert not (tmp_path / "was-here").exists()


REFUSED = {
    "numpy's own functions with hostile arguments": b"cnumpy\nndarray\n(I1\ntR.",
    "another class of arrays": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.",
    "bytes that are none": b"c_codecs\nencode\n(S'cm0='\nS'base64'\ntR.",
    "an object elsewhere": b"S'pid'\nQ.",
    "an attribute of a module": b"\x80\x04\x8c\x05numpy\x8c\x0blib.io.load\x93.",
    "state for a function": b"cnumpy\ndtype\n}S'__call__'\nI1\nsb.",
    "a list": b"(lI1\na.",
    "no pickle": b"\xff\xd8\xff\xe0JFIF",
    "an end at once": b".",
    "a memory for ever": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "an array of more bytes than it has": PYTHON_2.replace(b"K\x02K\x03\x86", b"K\x09K\x03\x86"),
    "an array of less than nothing": PYTHON_2.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\xffJ\xfa\xff\xff\xff\x86"),
    "an array of other numbers": PYTHON_2.replace(b"U\x02u1", b"U\x02O8"),
    "more behind its end": PYTHON_2 + b"\n",
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_what_is_no_dictionary_of_arrays_is_named_with_its_byte(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "batch"
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"batch, byte \d+: wanted "):
        unpickle_arrays(path)


def test_wherever_it_was_cut_off_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for length in range(len(PYTHON_2)):
        path.write_bytes(PYTHON_2[:length])
        with pytest.raises(DataError, match=r"batch, byte \d+: wanted .*the file was cut off"):
            unpickle_arrays(path)

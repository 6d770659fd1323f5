"""CIFAR-10: its two layouts, binary and pickled, read and checked."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data import cifar10
from pytest_distbench.workloads.data.cifar10 import RECORD_BYTES, count_records, load, unpickle_arrays

CONTENT = {b"data": np.arange(24, dtype=np.uint8).reshape(4, 6), b"labels": [3, 1, 4, 1], b"filenames": [b"a.png"]}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_numbers_and_texts_are_read_whoever_wrote_them(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(CONTENT, protocol))
    found = unpickle_arrays(path)

    assert found["data"].tolist() == CONTENT[b"data"].tolist()  # type: ignore[union-attr]
    assert (found["labels"], found["filenames"]) == ([3, 1, 4, 1], [b"a.png"])


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
        (Calls(getattr, "text", "upper"), "(builtins|__builtin__).getattr"),
        (Path("x"), "pathlib"),
        (torch.zeros(2), "torch"),
        (np.zeros(3, dtype=object), "an array of other numbers than uint8"),
        (np.zeros(3), "an array of other numbers than uint8"),
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


RECORD = bytes([7, *([1] * 1024), *([2] * 1024), *range(256), *([3] * 768)])
"""Label 7; all red is 1, all green 2, blue counts up along its first eight rows."""


def test_a_record_is_a_label_and_three_planes_counted_file_by_file() -> None:
    image, label = cifar10.decode(RECORD, "here")
    assert label == 7
    assert (image.shape, image.dtype) == ((3, 32, 32), torch.uint8)
    assert [image[0].unique().tolist(), image[1].unique().tolist()] == [[1], [2]]
    assert image[2, :8].flatten().tolist() == list(range(256))
    assert image[2, 8:].unique().tolist() == [3]

    sizes = {"data_batch_2.bin": 2 * RECORD_BYTES, "test_batch.bin": 5, "data_batch_1.bin": RECORD_BYTES, "readme": 3}
    assert list(count_records(sizes, "here").items()) == [("data_batch_1.bin", 1), ("data_batch_2.bin", 2)]


FIRST = "data_batch_1.bin"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({FIRST: RECORD_BYTES + 5}, f"{FIRST}, record 1: .* found 3078 bytes, 5 more than 1 records"),
        ({FIRST: 0}, r"found 0 bytes"),
        ({"train-00001-of-01024": 9}, f"here: wanted .* {FIRST} to data_batch_5.bin.* found train-00001.*tar.gz"),
        ({}, r"found no file"),
    ],
)
def test_what_is_no_training_set_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        count_records(sizes, "here")


def test_an_image_is_cropped_or_mirrored_within_four_pixels_and_normalised() -> None:
    torch.manual_seed(0)
    white = torch.full((3, 32, 32), 255, dtype=torch.uint8)
    brightest = (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2470, 0.2435, 0.2616])
    left_half = white.clone()
    left_half[:, :, 16:] = 0
    seen = [cifar10.augment(left_half) for _ in range(50)]

    assert {(s.shape, s.dtype) for s in seen} == {((3, 32, 32), torch.float32)}
    for image in seen:
        assert torch.allclose(image.amax((1, 2)), brightest)
    is_left = [bool(image[0, 16, 10] > 0) for image in seen]
    assert {True, False} == set(is_left), "half of them are mirrored"
    bright = {int((image[0, 16] > 0).sum()) for image in seen}
    assert len(bright) > 3, "crops differ"
    assert bright <= set(range(12, 21))


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """Five files of two images each, and one of three to test with: image n is n, its label n modulo 10."""
    for number, name in enumerate(cifar10.TRAINING):
        content = b"".join(bytes([n % 10, *([n] * 3072)]) for n in (2 * number, 2 * number + 1))
        (tmp_path / f"{name}.bin").write_bytes(content)
    (tmp_path / "test_batch.bin").write_bytes(b"".join(bytes([n % 10, *([n] * 3072)]) for n in (100, 101, 109)))
    return tmp_path


@pytest.fixture
def pickled(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images, as the archive for Python has them."""
    folder = tmp_path_factory.mktemp("pickled")
    for path in binary.glob("*.bin"):
        records = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, RECORD_BYTES)
        write(folder / path.stem, data=records[:, 1:].copy(), labels=records[:, 0].tolist())
    return folder


def write(path: Path, **content: object) -> None:
    path.write_bytes(pickle.dumps({key.encode(): value for key, value in content.items()}, protocol=4))


def test_both_layouts_give_the_same_images(binary: Path, pickled: Path) -> None:
    for found in (load(binary), load(pickled)):
        assert found.train.inputs.shape == (10, 3, 32, 32)
        assert (found.train.inputs.dtype, found.train.labels.dtype) == (torch.uint8, torch.int64)
        assert found.train.inputs.flatten(1).unique(dim=1).flatten().tolist() == list(range(10))
        assert found.train.labels.tolist() == list(range(10))
        assert found.test.inputs[:, 0, 0, 0].tolist() == [100, 101, 109]
        assert found.test.labels.tolist() == [0, 1, 9]
    assert cifar10.count(pickled) == {"training images": 10, "test images": 3}


def change(path: Path, edit: Callable[[bytes], bytes]) -> None:
    path.write_bytes(edit(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("data_batch_3", lambda c: b"", r"data_batch_3.bin: wanted a file of the data set, found an empty file"),
        ("data_batch_3", lambda c: c[:-1], r"data_batch_3.bin, record 1: wanted whole records .* found 6145 bytes"),
        ("test_batch", lambda c: c + b"\n", r"test_batch.bin, record 3: .* 1 more than 3 records have: .* cut off"),
        ("test_batch", lambda c: c[:3073] + b"\n" + c[3074:], r"record 1: wanted a label from 0 to 9, found 10: .*100"),
    ],
)  # fmt: skip
def test_damage_of_a_binary_file_is_named_with_its_record(
    binary: Path, name: str, edit: Callable[[bytes], bytes], message: str
) -> None:
    change(binary / f"{name}.bin", edit)

    with pytest.raises(DataError, match=message):
        load(binary)


IMAGES = np.zeros((2, 3072), np.uint8)
NOT_ROWS = r": wanted as many rows of 3072 bytes in 'data' as whole numbers in 'labels'"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": IMAGES}, NOT_ROWS),
        ({"labels": [1, 2]}, NOT_ROWS),
        ({"data": IMAGES[:, 1:], "labels": [1, 2]}, NOT_ROWS),
        ({"data": IMAGES[0, 0].tolist(), "labels": [1, 2]}, NOT_ROWS),
        ({"data": IMAGES, "labels": [1]}, NOT_ROWS),
        ({"data": IMAGES[:0], "labels": []}, NOT_ROWS),
        ({"data": IMAGES, "labels": [1, 10]}, r", label 1: wanted a label from 0 to 9, found 10"),
        ({"data": IMAGES, "labels": [1, 2**70]}, r", label 1: wanted a label from 0 to 9, found 11805916207174"),
        ({"data": IMAGES, "labels": [1, "2"]}, NOT_ROWS),
    ],
)  # fmt: skip
def test_damage_of_a_pickled_file_is_named(pickled: Path, content: dict[str, object], message: str) -> None:
    write(pickled / "data_batch_2", **content)

    with pytest.raises(DataError, match=rf"data_batch_2{message}"):
        load(pickled)


def test_the_generated_set_shows_the_digits_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    cifar10.generate(tmp_path, 0)
    train, test = load(tmp_path)
    digits = load_digits()
    known = {(image.tobytes(), int(label)) for image, label in zip(digits.images, digits.target, strict=True)}
    small = (
        torch.cat([train.inputs, test.inputs]).float().unfold(2, 4, 4).unfold(3, 4, 4).mean((4, 5)) / 255 * 16
    ).round()
    drawn = zip(small.double().numpy(), [*train.labels.tolist(), *test.labels.tolist()], strict=True)

    assert (len(train.labels), len(test.labels)) == (1437, 360)
    assert {(image[channel].tobytes(), label) for image, label in drawn for channel in range(3)} == known


PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85q\x05U\x01b\x87"
    b"Rq\x06(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x07U\x02u1K\x00K\x01\x87Rq\x08(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff"
    b"\xffK\x00tb\x89U\x06\x00\x01\x02\x03\xfe\xfftbU\x06labels]q\t(K\x07K\x09eu."
)


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


@pytest.mark.parametrize("missing", ["data_batch_2", "test_batch"])
def test_a_set_without_one_of_its_files_is_no_set(binary: Path, pickled: Path, missing: str) -> None:
    (binary / f"{missing}.bin").unlink()
    (pickled / missing).unlink()

    for folder in (binary, pickled):
        with pytest.raises(DataError, match=rf"{missing}(.bin)?: wanted a file of the data set, found none"):
            load(folder)


def test_wherever_it_was_cut_off_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for length in range(len(PYTHON_2)):
        path.write_bytes(PYTHON_2[:length])
        with pytest.raises(DataError, match=r"batch, byte \d+: wanted .*the file was cut off"):
            unpickle_arrays(path)


def test_generated_files_are_read_as_real_ones_and_are_the_same_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "FILE_RECORDS", 4)
    files = dict(cifar10.generate_noise(10, seed=1))

    assert count_records({name: len(content) for name, content in files.items()}, "") == {
        "data_batch_1.bin": 4, "data_batch_2.bin": 4, "data_batch_3.bin": 2,
    }  # fmt: skip
    for content in files.values():
        for start in range(0, len(content), RECORD_BYTES):
            cifar10.decode(content[start : start + RECORD_BYTES], "")
    assert dict(cifar10.generate_noise(10, seed=1)) == files
    assert dict(cifar10.generate_noise(10, seed=2)) != files

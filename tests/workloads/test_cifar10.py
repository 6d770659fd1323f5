"""CIFAR-10's binary format."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads import cifar10
from pytest_distbench.workloads.cifar10 import RECORD_BYTES, augment, count_records, decode, generate

RECORD = bytes([7, *([1] * 1024), *([2] * 1024), *range(256), *([3] * 768)])
"""Label 7; all red is 1, all green 2, blue counts up along its first eight rows."""


def test_a_record_is_a_label_and_three_planes_row_by_row() -> None:
    image, label = decode(RECORD, "here")

    assert label == 7
    assert (image.shape, image.dtype) == ((3, 32, 32), torch.uint8)
    assert [image[0].unique().tolist(), image[1].unique().tolist()] == [[1], [2]]
    assert image[2, :8].flatten().tolist() == list(range(256))
    assert image[2, 8:].unique().tolist() == [3]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (RECORD[:-1], r"file, record 3: wanted a record of 3073 bytes, found 3072"),
        (b"", r"found 0"),
        (bytes([10]) + RECORD[1:], r"file, record 3: wanted a label from 0 to 9, found 10.*CIFAR-100"),
    ],
)
def test_a_damaged_record_is_told_with_its_place(record: bytes, message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        decode(record, "file, record 3")


def test_records_are_counted_file_by_file_in_the_order_of_the_set() -> None:
    sizes = {"data_batch_2.bin": 2 * RECORD_BYTES, "test_batch.bin": 5, "data_batch_1.bin": RECORD_BYTES, "readme": 3}

    assert list(count_records(sizes, "here").items()) == [("data_batch_1.bin", 1), ("data_batch_2.bin", 2)]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data_batch_1.bin": RECORD_BYTES + 5}, r"here/data_batch_1.bin: .* found 3078 bytes, 5 more than 1 records"),
        ({"data_batch_1.bin": 0}, r"found 0 bytes"),
        (
            {"train-00001-of-01024": 9},
            r"here: wanted .* data_batch_1.bin to data_batch_5.bin.* found train-00001.*tar.gz",
        ),
        ({}, r"found no file"),
    ],
)
def test_what_is_no_training_set_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        count_records(sizes, "here")


def test_generated_files_are_read_as_real_ones_and_are_the_same_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "FILE_RECORDS", 4)
    files = dict(generate(10, seed=1))

    assert count_records({name: len(content) for name, content in files.items()}, "") == {
        "data_batch_1.bin": 4, "data_batch_2.bin": 4, "data_batch_3.bin": 2,
    }  # fmt: skip
    for content in files.values():
        for start in range(0, len(content), RECORD_BYTES):
            decode(content[start : start + RECORD_BYTES], "")
    assert dict(generate(10, seed=1)) == files
    assert dict(generate(10, seed=2)) != files


def test_an_image_is_cropped_or_mirrored_within_four_pixels_and_normalised() -> None:
    torch.manual_seed(0)
    white = torch.full((3, 32, 32), 255, dtype=torch.uint8)
    brightest = (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2470, 0.2435, 0.2616])
    left_half = white.clone()
    left_half[:, :, 16:] = 0
    seen = [augment(left_half) for _ in range(50)]

    assert {(s.shape, s.dtype) for s in seen} == {((3, 32, 32), torch.float32)}
    for image in seen:
        assert torch.allclose(image.amax((1, 2)), brightest)
    is_left = [bool(image[0, 16, 10] > 0) for image in seen]
    assert {True, False} == set(is_left), "half of them are mirrored"
    bright = {int((image[0, 16] > 0).sum()) for image in seen}
    assert len(bright) > 3, "crops differ"
    assert bright <= set(range(12, 21))

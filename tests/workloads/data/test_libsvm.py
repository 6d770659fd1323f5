"""libsvm's text: read in bounded memory, once; what is wrong in it is named with its line and pair."""

from __future__ import annotations

import bz2
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data import Parts, libsvm
from pytest_distbench.workloads.data.libsvm import TEST, TRAIN, cache_of, count, load

TEXT = b"""\
+1 1:0.5 2:-1 3:1e-3 4:2
-1 1:1 2:2 3:3 4:4

# a row that lacks two features, one without any, and what else is allowed
1 2:7.25 4:-.5  # a comment
-1
-1\t1:1  2:0 3:0 4:0 \r
"""
FEATURES = [[0.5, -1, 1e-3, 2], [1, 2, 3, 4], [0, 7.25, 0, -0.5], [0, 0, 0, 0], [1, 0, 0, 0]]
LABELS = [1, 0, 1, 0, 0]


def read(folder: Path) -> Parts:
    return load(folder, features=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / TRAIN).write_bytes(TEXT)
    (tmp_path / TEST).write_bytes(b"-1 4:1\n")
    return tmp_path


def test_rows_are_dense_and_labels_zero_and_one(folder: Path) -> None:
    train, test = read(folder)

    assert (train.inputs.dtype, train.labels.dtype) == (torch.float32, torch.float32)
    assert torch.equal(train.inputs, torch.tensor(FEATURES))
    assert train.labels.tolist() == LABELS
    assert (test.inputs.tolist(), test.labels.tolist()) == ([[0, 0, 0, 1]], [0])
    assert count(folder, features=4) == {"training rows": 5, "test rows": 1}


def test_compressed_text_is_read_as_plain_is(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    packed = tmp_path_factory.mktemp("packed")
    for name in (TRAIN, TEST):
        content = (folder / name).read_bytes()
        (packed / f"{name}.bz2").write_bytes(bz2.compress(content[:20]) + bz2.compress(content[20:]))

    for one, other in zip(read(folder), read(packed), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda text: b"", "wanted a file of the data set, found an empty file"),
    "no row": (lambda text: b"# nothing\n\n", "wanted rows, found none"),
    "cut in a number": (lambda text: text[:20], "line 1: wanted a line that ends, found the end of the file"),
    "label outside": (lambda text: text.replace(b"+1", b"3"), "line 1: wanted a label -1 or"),
    "no label": (lambda text: text.replace(b"-1 1:1", b"1:1"), "line 2: wanted a label -1 or"),
    "index zero": (lambda text: text.replace(b"2:7.25", b"0:7.25"), "line 5: wanted a label"),
    "index too large": (lambda text: text.replace(b"4:-.5", b"5:-.5"), "line 5: wanted a label"),
    "index endless": (lambda text: text.replace(b"4:-.5", b"9" * 5000 + b":1"), "line 5: wanted a label"),
    "duplicate index": (lambda text: text.replace(b"2:2", b"1:2"), "line 2: wanted a label"),
    "nan": (lambda text: text.replace(b"3:1e-3", b"3:nan"), "line 1: wanted a label"),
    "too large": (lambda text: text.replace(b"3:3", b"3:1e39"), "line 2: wanted a label"),
    "python's own numbers": (lambda text: text.replace(b"3:3", b"3:1_0"), "line 2: wanted a label"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "bz2"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_with_its_line(folder: Path, damage: str, packed: bool) -> None:
    change, message = DAMAGE[damage]
    content = change(TEXT)
    if packed:
        (folder / TRAIN).unlink()
        (folder / f"{TRAIN}.bz2").write_bytes(bz2.compress(content))
        if not content:
            message = "wanted rows, found none"
    else:
        (folder / TRAIN).write_bytes(content)
    for reads in (read, lambda where: count(where, features=4)):
        with pytest.raises(DataError, match=rf"{TRAIN}(.bz2)?(, |: ){message}"):
            reads(folder)
    assert sorted(p.name for p in folder.iterdir() if ".rows" in p.name and not p.name.endswith("lock")) == []


def test_a_cache_is_used_until_its_text_changes(folder: Path) -> None:
    read(folder)
    cache = cache_of(folder / TRAIN)
    first = cache.stat()
    assert first.st_mode == (folder / TRAIN).stat().st_mode, "who may read the text may read it"
    read(folder)
    assert cache.stat().st_ino == first.st_ino

    changed = TEXT.replace(b"7.25", b"8.25")
    (folder / TRAIN).write_bytes(changed)
    assert read(folder).train.inputs[2, 1] == 8.25, "as many bytes"
    os.utime(folder / TRAIN, ns=(0, 0))
    (folder / TRAIN).write_bytes(changed + b"-1 1:1\n")
    os.utime(folder / TRAIN, ns=(0, 0))
    assert len(read(folder).train.labels) == 6, "as old"
    with pytest.raises(DataError, match=r"line 1: wanted .* rise from 1 to 3: .*, found '.1 1:"):
        load(folder, features=3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cache: cache.write_bytes(b""),
        lambda cache: cache.write_bytes(cache.read_bytes()[:-4]),
        lambda cache: cache.write_bytes(cache.read_bytes() + b"more"),
        lambda cache: cache.write_bytes(b"{" + cache.read_bytes()[1:].replace(b'"rows"', b'"row_"')),
        lambda cache: cache.write_bytes(bytes(len(cache.read_bytes()))),
    ],
    ids=["empty", "cut off", "longer", "another header", "zeros"],
)
def test_a_cache_that_is_no_whole_one_is_made_again(folder: Path, spoil: Callable[[Path], None]) -> None:
    read(folder)
    spoil(cache_of(folder / TRAIN))

    assert torch.equal(read(folder).train.inputs, torch.tensor(FEATURES))


def test_a_cache_whose_numbers_changed_is_an_error_when_it_is_verified(folder: Path) -> None:
    read(folder)
    cache = cache_of(folder / TRAIN)
    numbers = np.memmap(cache, np.float32, "r+", 4096)
    numbers[4 * 2] += 1
    numbers.flush()

    with pytest.raises(DataError, match=rf"{cache.name}, row 2: wanted the row of {TRAIN}, found another: delete"):
        count(folder, features=4)


READ = """
    import re, sys
    from pathlib import Path
    from pytest_distbench.workloads.data import libsvm
    def peak_kib():  # not ru_maxrss, which begins at that of the process that started this one
        return re.search("VmHWM:[^0-9]*([0-9]+)", Path("/proc/self/status").read_text())[1]
    before = peak_kib()
    train, test = libsvm.load(Path(sys.argv[1]))
    print(before, peak_kib(), *train.inputs.shape, float(train.inputs[-1, -1]))
"""


@pytest.mark.parametrize("rows", [500, pytest.param(12_000, marks=pytest.mark.nightly)])
def test_memory_is_bounded_however_long_the_text_is(tmp_path: Path, rows: int) -> None:
    """A text of 13 MB needs less memory than its size; at 320 MB the process, with torch, needs less than 300 MB."""
    line = b" ".join(b"%d:%.6f" % (index, index / 3e3) for index in range(1, libsvm.FEATURES + 1))
    with (tmp_path / TRAIN).open("wb") as file:
        for row in range(rows):
            file.write((b"+1 ", b"-1 ")[row % 2] + line + b"\n")
    (tmp_path / TEST).write_bytes(b"+1 1:1\n")
    command = [sys.executable, "-c", textwrap.dedent(READ), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before_kib, peak_kib, *shape, last = map(float, done.stdout.split())

    assert ([int(n) for n in shape], round(last, 5)) == ([rows, libsvm.FEATURES], 0.66667)
    assert peak_kib - before_kib < 8 * 1024
    assert peak_kib < 300e6 / 1024


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-9], r"line \d: wanted the rest of the bz2 stream, found the end of the file"),
        (lambda content: content[:3] + b"x" + content[4:], r"line 1: wanted a bz2 stream"),
        (lambda content: content[:40] + bytes([content[40] ^ 255]) + content[41:], r"line 1: wanted a bz2 stream"),
        (lambda content: TEXT, r"line 1: wanted a bz2 stream"),
    ],
    ids=["cut off", "another magic", "a byte changed", "not compressed"],
)
def test_a_damaged_stream_is_named(folder: Path, change: Callable[[bytes], bytes], message: str) -> None:
    (folder / TRAIN).unlink()
    (folder / f"{TRAIN}.bz2").write_bytes(change(bz2.compress(TEXT)))

    with pytest.raises(DataError, match=f"{TRAIN}.bz2, {message}"):
        read(folder)


def test_where_no_cache_can_be_written_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(libsvm, "written_whole", refuse)
    with pytest.raises(DataError, match=rf"{TRAIN}.rows: wanted a folder .*, found .*Permission denied"):
        read(folder)


def test_more_rows_than_are_read_at_once_keep_their_order(folder: Path) -> None:
    many = 2 * 256 + 3
    lines = [f"{'+1' if n % 3 else '-1'} {n % 4 + 1}:{n}\n" for n in range(many)]
    (folder / TRAIN).write_text("".join(lines))
    train = read(folder).train

    assert train.inputs.argmax(1).tolist() == [0, *(n % 4 for n in range(1, many))]
    assert train.inputs.sum(1).tolist() == list(range(many))
    assert train.labels.tolist() == [float(n % 3 > 0) for n in range(many)]


def test_of_ranks_that_begin_at_once_one_reads_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = libsvm.written_whole
    monkeypatch.setattr(libsvm, "written_whole", lambda cache: (written.append(cache), write(cache))[1])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: read(folder), range(8)))

    assert sorted(written) == sorted(cache_of(folder / name) for name in (TRAIN, TEST))
    assert all(torch.equal(one.train.inputs, torch.tensor(FEATURES)) for one in found)

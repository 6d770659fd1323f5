"""Pairs of sentences in index and binary files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data import pairs as module
from pytest_distbench.workloads.data.pairs import generate_indexed, load_indexed, load_text, write_indexed

SOURCE, TARGET = "train.en-de.en", "train.en-de.de"
TOKENS = ["<pad>_", "<EOS>_", "new", "est_", "haus_"]
SENTENCES = [[3, 4, 5, 2], [5, 2], [2], [4, 4, 2]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").write_text("".join(f"'{token}'\n" for token in TOKENS))
        write_indexed(tmp_path / f"train.en-de.{language}", SENTENCES)
        write_indexed(tmp_path / f"test.en-de.{language}", [[5, 2]])
    return tmp_path


def test_sentences_are_read_without_their_ends(folder: Path) -> None:
    pairs = load_indexed(folder, "train")

    assert list(pairs) == [([4, 5, 6],) * 2, ([6],) * 2, ([],) * 2, ([5, 5],) * 2]
    assert [pairs.vocabulary.decode(one) for one in pairs.source] == ["newest haus", "haus", "", "est est"]
    assert len(pairs.vocabulary) == 8
    assert module.count(folder, load_indexed) == {"training pairs": 4, "test pairs": 1}


def number(at: int, value: int) -> Callable[[bytes], bytes]:
    """Replace a number of an index: 0 is its version, from 5 on offsets of dimensions, 10 of data, 15 sizes."""
    return lambda content: content[: 8 + 8 * at] + struct.pack("<q", value) + content[16 + 8 * at :]


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "no index": (f"{SOURCE}.idx", lambda c: b"", "wanted a file of the data set, found an empty file"),
    "another magic": (f"{SOURCE}.idx", lambda c: b"MMIDIDX\0" + c[8:], r"byte 0: wanted the magic .*TNTIDX"),
    "cut in the header": (f"{SOURCE}.idx", lambda c: c[:40], "byte 40: wanted a header of 48 bytes"),
    "cut in the offsets": (f"{TARGET}.idx", lambda c: c[:100], "wanted 160 bytes .*, found 100"),
    "longer": (f"{SOURCE}.idx", lambda c: c + bytes(8), "wanted 160 bytes .* 4 sentences, found 168 bytes$"),
    "another version": (f"{SOURCE}.idx", number(0, 2), "byte 8: wanted version 1, .*found 2, 4"),
    "fractions": (f"{SOURCE}.idx", number(1, 6), "byte 8: .*a type of whole numbers.*found 1, 6, 4"),
    "unknown code": (f"{SOURCE}.idx", number(1, 99), "byte 8: .*found 1, 99, 4"),
    "no sentence": (f"{SOURCE}.idx", number(3, 0), "byte 8: .* sentences, found 1, 4, 4, 0, 4"),
    "more than it has": (
        f"{SOURCE}.idx",
        lambda c: number(4, 2**60)(number(3, 2**60)(c)),
        r"wanted \d+ bytes for 1152921504606846976 sentences",
    ),
    "offset of dimensions": (f"{SOURCE}.idx", number(7, 9), "offset of the dimensions of sentence 2: .* 2, found 9"),
    "offset behind the end": (f"{SOURCE}.idx", number(11, 10**9), "offset of sentence 1: wanted 4, found 1000000000"),
    "offsets descend": (f"{SOURCE}.idx", number(12, 3), "offset of sentence 2: wanted 6, found 3"),
    "size of nothing": (
        f"{SOURCE}.idx", lambda c: number(12, 4)(number(16, 0)(c)), "offset of sentence 3|size of sentence 1"
    ),
    "no data": (f"{SOURCE}.bin", lambda c: b"", "wanted a file of the data set, found an empty file"),
    "data cut off": (f"{SOURCE}.bin", lambda c: c[:18], "wanted 40 bytes.*, found 18 bytes"),
    "data longer": (f"{TARGET}.bin", lambda c: c + b"\n", "wanted 40 bytes.*, found 41 bytes"),
    "no end": (f"{SOURCE}.bin", lambda c: c[:20] + b"\5" + c[21:], "sentence 1: wanted the id 2 .*, found 5 at byte"),
    "an end inside": (f"{SOURCE}.bin", lambda c: c[:4] + b"\2" + c[5:], "sentence 0, byte 4: .* from 3 to 5, found 2"),
    "padding inside": (f"{SOURCE}.bin", lambda c: c[:28] + b"\1" + c[29:], "sentence 3, byte 28: .*, found 1"),
    "id outside": (f"{SOURCE}.bin", lambda c: c[:32] + b"\6" + c[33:], "sentence 3, byte 32: .* from 3 to 5, found 6"),
    "no quotes": ("dict.en.txt", lambda c: c.replace(b"'", b""), "line 1: wanted a token in single quotes"),
    "token twice": ("dict.en.txt", lambda c: c + b"'new'\n", "line 6: wanted a token .* in no other line, found .*new"),
    "another first": ("dict.en.txt", lambda c: c[9:], "line 1: wanted '<pad>_', found"),
    "another second": ("dict.en.txt", lambda c: c[:9] + c[18:], "line 2: wanted '<EOS>_', found"),
    "dictionaries differ": ("dict.de.txt", lambda c: c.replace(b"new", b"neu"), "wanted what dict.en.txt has"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_with_its_place(folder: Path, damage: str) -> None:
    name, change, message = DAMAGE[damage]
    path = folder / name
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(DataError, match=rf"{name}(, |: )({message})"):
        load_indexed(folder, "train")


def test_both_sides_have_equally_many_sentences(folder: Path) -> None:
    write_indexed(folder / TARGET, SENTENCES[:-1])

    with pytest.raises(DataError, match=rf"{TARGET}.idx: wanted 4 sentences, as in .*{SOURCE}.idx, found 3"):
        load_indexed(folder, "train")


def test_generated_sentences_are_those_of_the_generated_text(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    generate_indexed(tmp_path, 0)
    module.generate_text(tmp_path / "text", 0)
    for split in ("train", "test"):
        indexed, text = load_indexed(tmp_path, split), load_text(tmp_path / "text", split)
        texts = [[tuple(map(pairs.vocabulary.decode, pair)) for pair in (*pairs,)] for pairs in (indexed, text)]

        assert texts[0] == texts[1]


def test_a_dictionary_may_have_the_line_that_makes_ids_count_from_one(folder: Path) -> None:
    for language in ("en", "de"):
        path = folder / f"dict.{language}.txt"
        path.write_text("'<lua_index_compat>'\n" + path.read_text())

    assert list(load_indexed(folder, "train"))[1] == ([6], [6])


@pytest.mark.parametrize(("code", "kind"), [(1, "u1"), (2, "i1"), (3, "<i2"), (5, "<i8")])
def test_ids_have_the_type_that_the_index_says(folder: Path, code: int, kind: str) -> None:
    bytes_each = np.dtype(kind).itemsize
    index, content = folder / f"{SOURCE}.idx", folder / f"{SOURCE}.bin"
    index.write_bytes(index.read_bytes()[:16] + struct.pack("<2Q", code, bytes_each) + index.read_bytes()[32:])
    content.write_bytes(np.fromfile(content, "<i4").astype(kind).tobytes())

    assert [pair[0] for pair in load_indexed(folder, "train")] == [[4, 5, 6], [6], [], [5, 5]]


def test_ids_at_the_end_of_a_small_type_do_not_wrap_round(folder: Path) -> None:
    for language in ("en", "de"):
        tokens = TOKENS + [f"t{n}_" for n in range(250)]
        (folder / f"dict.{language}.txt").write_text("".join(f"'{token}'\n" for token in tokens))
        index, content = folder / f"train.en-de.{language}.idx", folder / f"train.en-de.{language}.bin"
        index.write_bytes(index.read_bytes()[:16] + struct.pack("<2Q", 1, 1) + index.read_bytes()[32:])
        content.write_bytes(bytes([255, 4, 5, 2, 5, 2, 2, 4, 4, 2]))

    assert load_indexed(folder, "train")[0][0] == [256, 5, 6]

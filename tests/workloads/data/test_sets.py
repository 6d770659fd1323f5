"""The table of data sets, and what all formats share: archives, damaged files, text line by line."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_distbench.errors import ConfigurationError, DataError
from pytest_distbench.workloads.data import lines_of, pairs, unpack, written_whole
from pytest_distbench.workloads.data.sets import GENERATED, SETS, find, folder_of, generate_into, layout_in, verify

NAMES = list(SETS)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name in NAMES:
        folder_of(rank_of(root), name)
    return root


def rank_of(data_dir: Path, *, local_rank: int = 0, data: str = "") -> Any:
    rank = SimpleNamespace(data_dir=data_dir, local_rank=local_rank, params={"data": data}, barriers=0)
    rank.barrier = lambda: setattr(rank, "barriers", rank.barriers + 1)
    return rank


@pytest.mark.parametrize("name", NAMES)
def test_a_generated_set_is_whole_and_says_that_it_is_generated(generated: Path, name: str) -> None:
    folder = generated / name

    assert all(number > 0 for number in verify(folder, SETS[name]).values())
    assert layout_in(folder, SETS[name])
    assert (folder / GENERATED).read_text().startswith("Made by pytest-distbench")
    assert find(generated, name) == folder


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_same_each_time(generated: Path, tmp_path: Path, name: str) -> None:
    generate_into(tmp_path / name, SETS[name])

    for file in layout_in(tmp_path / name, SETS[name]):
        assert (tmp_path / name / file).read_bytes() == (generated / name / file).read_bytes()


def test_one_rank_of_a_host_makes_it_and_all_wait(tmp_path: Path) -> None:
    second = rank_of(tmp_path, local_rank=1)
    assert (folder_of(second, "wikitext2"), second.barriers) == (tmp_path / "wikitext2", 1)
    assert list(tmp_path.iterdir()) == []

    first = rank_of(tmp_path)
    folder = folder_of(first, "wikitext2")
    made = [path.stat().st_mtime_ns for path in folder.iterdir()]
    assert folder_of(first, "wikitext2") == folder
    assert ([path.stat().st_mtime_ns for path in folder.iterdir()], first.barriers) == (made, 2)


def test_what_cannot_be_made_whole_is_not_there(tmp_path: Path) -> None:
    def stop(folder: Path, seed: int) -> None:
        (folder / "half").write_text("")
        raise OSError(28, "No space left on device")

    row = msgspec.structs.replace(SETS["wmt16"], generate=stop)
    with pytest.raises(OSError, match="No space left"):
        generate_into(tmp_path / "wmt16", row)
    assert list(tmp_path.iterdir()) == []


def test_of_processes_that_make_it_at_once_the_first_counts(tmp_path: Path) -> None:
    folder = tmp_path / "wmt16"

    def generate_second(making: Path, seed: int) -> None:
        generate_into(folder, SETS["wmt16"])
        pairs.generate_text(making, seed + 1)

    generate_into(folder, msgspec.structs.replace(SETS["wmt16"], generate=generate_second))
    generate_into(tmp_path / "first", SETS["wmt16"])

    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "wmt16"]
    for file in layout_in(folder, SETS["wmt16"]):
        assert (folder / file).read_bytes() == (tmp_path / "first" / file).read_bytes()


def test_what_has_its_name_and_is_not_whole_stays_and_is_named(tmp_path: Path) -> None:
    generate_into(tmp_path / "wmt16", SETS["wmt16"])
    (tmp_path / "wmt16" / pairs.VOCABULARY).unlink()
    left = sorted(path.name for path in (tmp_path / "wmt16").iterdir())

    with pytest.raises(DataError, match="wmt16: wanted nothing, or all files of the set, found something else"):
        generate_into(tmp_path / "wmt16", SETS["wmt16"])
    assert sorted(path.name for path in (tmp_path / "wmt16").iterdir()) == left


@pytest.mark.parametrize("inside", ["wmt16", "wmt16_en_de", "."])
def test_the_users_folder_is_that_of_the_set_of_its_archive_or_one_of_sets(
    generated: Path, tmp_path: Path, inside: str
) -> None:
    shutil.copytree(generated / "wmt16", tmp_path / inside, dirs_exist_ok=True)
    rank = rank_of(tmp_path / "unused", data=str(tmp_path))

    assert folder_of(rank, "wmt16") == tmp_path / inside
    assert not (tmp_path / "unused").exists()


def test_where_it_lies_in_no_folder_it_says_what_to_get_from_where(generated: Path, tmp_path: Path) -> None:
    shutil.copytree(generated / "wmt16", tmp_path / "wmt16")
    (tmp_path / "wmt16" / pairs.VOCABULARY).unlink()

    for data, message in (
        (str(tmp_path), r"wanted vocab.bpe.32000, train.tok.clean.bpe.32000.en, .*found wmt16: .*from https://"),
        (str(tmp_path / "nowhere"), r"nowhere: wanted vocab.*, found no such folder"),
    ):
        with pytest.raises(DataError, match=message):
            folder_of(rank_of(tmp_path, data=data), "wmt16")
    with pytest.raises(ConfigurationError, match="unknown data set 'mnist': known are cifar10, "):
        find(tmp_path, "mnist")


def test_an_incomplete_real_set_is_an_error_when_it_is_verified(generated: Path, tmp_path: Path) -> None:
    shutil.copytree(generated / "wikitext2", tmp_path / "wikitext2")
    (tmp_path / "wikitext2" / GENERATED).unlink()

    with pytest.raises(DataError, match=r"wikitext2: wanted 2088628 training words, found 40001: the set is not whole"):
        verify(tmp_path / "wikitext2", SETS["wikitext2"])


WANTED = {"a.bin", "b.bin"}
CONTENT = {"set/a.bin": os.urandom(50_000), "set/inner/b.bin": b"b" * 10, "set/readme": b"read me"}


def make(archive: Path, files: dict[str, bytes]) -> Path:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for name, content in files.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(archive, f"w:{archive.suffix[1:]}") as tape:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tape.addfile(entry, io.BytesIO(content))
    return archive


def unpacked(archive: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    unpack(archive, WANTED, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tar.bz2", "set.zip"])
def test_the_wanted_files_come_out_wherever_they_lie(tmp_path: Path, name: str) -> None:
    archive = make(tmp_path / name, CONTENT)

    assert unpacked(archive, tmp_path / "to") == {"a.bin": CONTENT["set/a.bin"], "b.bin": b"b" * 10}


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
@pytest.mark.parametrize("path", ["../a.bin", "/tmp/a.bin", "x/../../a.bin", "to/../a.bin"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str, path: str) -> None:
    archive = make(tmp_path / name, {path: b"hostile", "../evil.py": b"hostile"})

    assert unpacked(archive, tmp_path / "to") == {"a.bin": b"hostile"}
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "to"}


def test_links_and_devices_are_left_where_they_are(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    with tarfile.open(archive, "w") as tape:
        for name, kind in (("a.bin", tarfile.SYMTYPE), ("b.bin", tarfile.FIFOTYPE), ("x/a.bin", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            tape.addfile(entry)

    assert unpacked(archive, tmp_path / "to") == {}


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-6],
        lambda content: content[:3],
        lambda content: b"",
        lambda content: b"<html>404</html>",
        lambda content: content[:20_000] + bytes([content[20_000] ^ 1]) + content[20_001:],
    ],
    ids=["half", "cut at the end", "cut at the start", "empty", "a page", "a bit"],
)
def test_a_damaged_archive_is_named(tmp_path: Path, name: str, spoil: Callable[[bytes], bytes]) -> None:
    archive = make(tmp_path / name, CONTENT)
    archive.write_bytes(spoil(archive.read_bytes()))

    with pytest.raises(DataError, match=rf"{name}, .*: wanted a whole archive, found .*the file was cut off, or is"):
        unpacked(archive, tmp_path / "to")


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\x85c\x0bd\n\n \ufeffe\n".encode())

    assert list(lines_of(path)) == [(1, "a\u2028b\x85c\x0bd"), (2, ""), (3, " \ufeffe")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text: wanted a file of the data set, found an empty file: the file was cut off"),
        (b"a\nb", r"text, line 2: wanted a line that ends, found the end of the file: the file was cut off"),
        (b"a\nb\r\nc\n", r"text, line 2: wanted a line that ends in \\n, found \\r\\n: its lines were converted"),
        (b"a\nsch\xf6n\n", r"text, line 2: wanted UTF-8, found byte 0xf6 at byte 3: it has another encoding"),
        (b"a\n\xe2\x82\n", r"text, line 2: wanted UTF-8, found byte 0xe2 at byte 0"),
        ("\ufeffa\n".encode(), r"text, line 1: wanted UTF-8 text, found a byte order mark"),
        ("a\n".encode("utf-16-le"), r"text, line 1: wanted UTF-8 text, found a byte 0x00"),
        (b"a\n\x00\x00\x00\n", r"text, line 2: wanted UTF-8 text, found a byte 0x00"),
    ],
)
def test_what_is_no_whole_text_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)

    with pytest.raises(DataError, match=message):
        list(lines_of(path))


def test_what_is_not_written_to_its_end_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.write_bytes(b"old")

    def write_half() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            file.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("cache", b"old")]
    with written_whole(path) as file:
        file.write(b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("cache", b"new")]


def test_a_folder_or_nothing_is_no_file(tmp_path: Path) -> None:
    for name in (".", "nothing"):
        with pytest.raises(DataError, match="wanted a file of the data set, found none"):
            list(lines_of(tmp_path / name))

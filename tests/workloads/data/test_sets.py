"""The table of data sets: found where the user has them, else generated, once."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_distbench.errors import ConfigurationError, DataError
from pytest_distbench.workloads.data import pairs
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


def test_a_real_set_that_is_not_whole_is_told_when_it_is_verified(generated: Path, tmp_path: Path) -> None:
    shutil.copytree(generated / "wikitext2", tmp_path / "wikitext2")
    (tmp_path / "wikitext2" / GENERATED).unlink()

    with pytest.raises(DataError, match=r"wikitext2: wanted 2088628 training words, found 40001: the set is not whole"):
        verify(tmp_path / "wikitext2", SETS["wikitext2"])

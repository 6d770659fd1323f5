"""distbench data: what is there, made ready, and checked."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_distbench.commands.cli import main
from pytest_distbench.workloads.data.sets import GENERATED, SETS, generate_into

Data = Callable[..., tuple[int, str]]


@pytest.fixture
def data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Data:
    """Run ``distbench data`` on a folder: exit code and everything printed."""

    def call(command: str, *arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["data", command, "--data", str(tmp_path), *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


def archive(folder: Path, name: str, packed: str, *without: str) -> None:
    """A set in its archive, as it is published: in a folder of its own."""
    made = folder / "made"
    generate_into(made, SETS[name])
    with tarfile.open(folder / packed, "w:gz") as tape:
        for path in sorted(made.iterdir()):
            if path.name not in {GENERATED, *without}:
                tape.add(path, f"inner/{path.name}")
            path.unlink()
    made.rmdir()


def test_each_set_is_listed_with_where_it_lies_and_comes_from(data: Data, tmp_path: Path) -> None:
    generate_into(tmp_path / "wmt16_en_de", SETS["wmt16"])
    code, text = data("list")

    assert code == 0
    assert [line.partition(":")[0] for line in text.splitlines()[::2]] == list(SETS)
    assert "wmt16: WMT16, English to German" in text
    assert f"  in {tmp_path}/wmt16_en_de; from https://" in text
    assert f"  not in {tmp_path}; from https://www.cs.toronto.edu/~kriz/cifar.html (cifar-10-binary.tar.gz or " in text
    assert data("list", "epsilon")[1].count("\n") == 2


def test_generated_sets_are_made_and_are_whole(data: Data, tmp_path: Path) -> None:
    assert data("prepare", "wmt17", "epsilon", "--generated") == (
        0, f"wmt17: generated, in {tmp_path}/wmt17\nepsilon: generated, in {tmp_path}/epsilon\n"
    )  # fmt: skip
    assert (tmp_path / "epsilon" / "epsilon_normalized.rows").exists(), "the cache"
    assert data("prepare", "wmt17", "--generated") == (0, f"wmt17: ready, in {tmp_path}/wmt17\n")
    code, text = data("verify")

    assert (code, text.splitlines()) == (
        0,
        [
            f"epsilon: generated, 600 training rows, 300 test rows, in {tmp_path}/epsilon",
            f"wmt17: generated, 8192 training pairs, 256 test pairs, in {tmp_path}/wmt17",
        ],
    )


def test_an_archive_is_unpacked(data: Data, tmp_path: Path) -> None:
    archive(tmp_path, "wmt16", "wmt16_en_de.tar.gz")
    code, text = data("prepare")

    assert (code, text) == (0, f"wmt16: unpacked {tmp_path}/wmt16_en_de.tar.gz, in {tmp_path}/wmt16\n")
    assert data("verify", "wmt16") == (
        0, f"wmt16: whole, 8192 training pairs, 256 test pairs, in {tmp_path}/wmt16\n"
    )  # fmt: skip


def test_an_archive_that_lacks_a_file_leaves_nothing(data: Data, tmp_path: Path) -> None:
    archive(tmp_path, "wmt16", "wmt16_en_de.tar.gz", "vocab.bpe.32000")
    code, text = data("prepare", "wmt16")

    assert code == 2
    assert "wmt16_en_de.tar.gz: wanted vocab.bpe.32000, train.tok" in text
    assert [path.name for path in tmp_path.iterdir()] == ["wmt16_en_de.tar.gz"]


def test_each_damaged_set_is_named_and_the_answer_is_no(data: Data, tmp_path: Path) -> None:
    data("prepare", "wmt16", "wmt17", "wikitext2", "--generated")
    with (tmp_path / "wmt16" / "vocab.bpe.32000").open("a") as file:
        file.write("\n")
    (tmp_path / "wikitext2" / GENERATED).unlink()
    code, text = data("verify")

    assert code == 1
    assert f"wmt16: {tmp_path}/wmt16/vocab.bpe.32000, line 61: wanted one token" in text
    assert "wmt17: generated, 8192 training pairs" in text
    assert f"wikitext2: {tmp_path}/wikitext2: wanted 2088628 training words, found 40001: the set is not whole" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify"], "it contains no set; see distbench data list"),
        (["prepare"], "no set and no archive of one; see distbench data list"),
        (["prepare", "cifar10"], "wanted data_batch_1.bin, .*test_batch.bin or data_batch_1, .*found nothing"),
        (["prepare", "cifar10", "--generated", "--data", "/dev/null"], "File exists: '/dev/null'"),
        (["list", "mnist"], "unknown data set 'mnist': known are cifar10, epsilon, wmt16, wmt17, wikitext2"),
    ],
)
def test_what_is_not_there_is_an_error(data: Data, tmp_path: Path, arguments: list[str], message: str) -> None:
    code, text = data(*arguments)

    assert code == 2
    assert re.search(message, text)
    assert list(tmp_path.iterdir()) == []


def test_a_url_is_no_folder_to_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["data", "prepare", "cifar10", "--generated", "--data", "s3://bucket/sets"])

    assert "wanted a folder on a disk or a mount, found the URL 's3://bucket/sets'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_set_that_was_asked_for_and_is_not_there_cannot_be_verified(data: Data) -> None:
    code, text = data("verify", "cifar10")

    assert (code, "cifar10: " in text, "they come from https://www.cs.toronto.edu" in text) == (1, True, True)

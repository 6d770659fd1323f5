"""WikiText's three files of text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data.wikitext import FILES, GENERATED_PERPLEXITY, count, generate, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = (" \n = Robert = \n \n Robert <unk> is \n", " Robert was \n", " is is \n \n")
    for name, text in zip(FILES, texts, strict=True):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_words_have_ids_by_the_training_text_and_lines_end_in_a_word(folder: Path) -> None:
    train, valid, test, vocabulary = load(folder)

    assert vocabulary == ["<unk>", "<eos>", "=", "Robert", "is"]
    assert (train.tolist(), train.dtype) == ([1, 2, 3, 2, 1, 1, 3, 0, 4, 1], torch.int64)
    assert (valid.tolist(), test.tolist()) == ([3, 0, 1], [4, 4, 1, 1])
    assert count(folder) == {"training words": 10, "validation words": 3, "test words": 4, "different words": 5}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "wanted a file of the data set, found an empty file"),
        (b" \n", "wanted words, found none"),
        (b" Robert is", "line 1: wanted a line that ends, found the end of the file"),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_line(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)

    with pytest.raises(DataError, match=rf"{name}(, |: ){message}"):
        load(folder)


def test_a_model_of_pairs_of_words_reaches_the_perplexity_of_the_generated_text(tmp_path: Path) -> None:
    generate(tmp_path, 0)
    train, _, test, vocabulary = load(tmp_path)
    pairs = torch.full((len(vocabulary),) * 2, 1e-3)
    pairs.index_put_((train[:-1], train[1:]), torch.ones(len(train) - 1), accumulate=True)
    words = pairs.sum(0) / pairs.sum()
    after_word = (pairs / pairs.sum(1, keepdim=True))[test[:-1], test[1:]]

    assert abs(math.exp(-after_word.log().mean()) / GENERATED_PERPLEXITY - 1) < 0.05
    assert math.exp(-words[test].log().mean()) > 40, "words alone say little"
    assert (len(train), len(vocabulary)) == (40_001, 50)

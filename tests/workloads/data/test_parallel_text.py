"""Pairs of sentences: text and vocabulary of WMT16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data import pairs as module
from pytest_distbench.workloads.data.pairs import VOCABULARY, Vocabulary, count, join_bpe, load_text


def test_sentences_are_padded_to_a_multiple_of_eight_by_their_special_tokens() -> None:
    made = Vocabulary(["ne@@", "west", "end"], join_bpe)
    assert (module.PAD, module.UNK, module.BOS, module.EOS) == (0, 1, 2, 3)
    assert made.encode(["end", "ne@@", "nothing", "west"]) == [6, 4, 1, 5]
    assert len(made) == 8
    assert len(Vocabulary("abcde", join_bpe)) == 16
    assert len(Vocabulary("abcd", join_bpe)) == 8

    made = Vocabulary(["ne@@", "west", "end"], join_bpe)
    assert made.decode([module.BOS, 4, 5, module.PAD, 6, module.EOS, 6, 6]) == "newest end"
    assert made.decode([6, module.UNK, 7, 99]) == "end <unk> <unk> <unk>", "ids that pad the vocabulary are no tokens"
    assert made.decode([]) == made.decode([module.EOS]) == ""


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("a b@@ c d", "a bc d"), ("b@@ c@@ d", "bcd"), ("a b@@", "a b"), ("@@ a", "a"), ("a@@b c", "a@@b c"), ("", ""),
        ("a @-@ b", "a @-@ b"),
    ],
)  # fmt: skip
def test_pieces_of_byte_pair_encoding_are_joined(tokens: str, text: str) -> None:
    assert join_bpe(tokens.split()) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["new", "est_", "end_"], "newest end"),
        (["It_", "'_", "s_", "a_", ", _", "b_", "._"], "It's a, b."),
        (["snake", r"\u", "case_"], "snake_case"),
        ([r"a\\", "u_"], r"a\u"),
        ([r"5\83", "64;_"], "5€"),
        ([r"\99999999;_"], "〓"),
        (["größ", "er_", "Ünder_", "²_"], "größer Ünder ²"),
        (["open"], "open"),
        ([], ""),
    ],
)
def test_subtokens_are_joined_as_tensor2tensor_does(tokens: list[str], text: str) -> None:
    assert module.join_subtokens(tokens) == text


SOURCE, TARGET = "train.tok.clean.bpe.32000.en", "train.tok.clean.bpe.32000.de"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / VOCABULARY).write_text("the\nne@@\nwest\nhouse\ndas\nneu@@\neste\nhaus\n")
    (tmp_path / SOURCE).write_text("the ne@@ west house\nhouse house\nthe\u00a0house west \n")
    (tmp_path / TARGET).write_text("das neu@@ este haus\nhaus haus haus\n das  west\n")
    for language in ("en", "de"):
        (tmp_path / f"newstest2014.tok.bpe.32000.{language}").write_text("house\n")
    return tmp_path


def test_long_sentences_are_left_out_with_their_translations(folder: Path) -> None:
    pairs = load_text(folder, "train")

    assert list(pairs.up_to(3)) == [pairs[1], pairs[2]]
    assert list(pairs.up_to(2)) == [pairs[2]]
    assert [len(pairs.up_to(n)) for n in (1, 4)] == [0, 3]


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "empty": (SOURCE, lambda text: b"", "wanted a file of the data set, found an empty file"),
    "one line less": (SOURCE, lambda text: text[:20], f"line 2: wanted as many lines as {TARGET} has, found the end"),
    "a line lost": (TARGET, lambda text: text[20:], f"line 3: wanted as many lines as {SOURCE} has, found the end"),
    "an empty line": (TARGET, lambda text: text.replace(b" das  west", b""), "line 3: wanted a sentence, found"),
    "only spaces": (SOURCE, lambda text: text.replace(b"house house", b"  "), "line 2: wanted a sentence"),
    "token twice": (VOCABULARY, lambda text: text + b"west\n", "line 9: .*, found 'west', as in line 3"),
    "two tokens": (VOCABULARY, lambda text: text.replace(b"west\n", b"west 17\n"), "line 3: .*found 'west 17'"),
    "no token": (VOCABULARY, lambda text: text.replace(b"west", b""), "line 3: wanted one token .*, found ''"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_with_its_line(folder: Path, damage: str) -> None:
    name, change, message = DAMAGE[damage]
    path = folder / name
    path.write_bytes(change(path.read_bytes()))

    with pytest.raises(DataError, match=rf"{name}(, |: ){message}"):
        load_text(folder, "train")


def test_a_generated_translation_is_its_sentence_from_the_last_word_to_the_first(tmp_path: Path) -> None:
    module.generate_text(tmp_path, 0)
    train, test = (load_text(tmp_path, split) for split in ("train", "test"))
    texts = [tuple(train.vocabulary.decode(side).split() for side in pair) for pair in (*train, *test)]
    known: dict[str, Counter[str]] = {}
    for source, target in texts:
        for word, translated in zip(source, reversed(target), strict=True):
            known.setdefault(word, Counter())[translated] += 1

    assert (len(train), len(test)) == (8192, 256)
    assert {len(source) for source, _ in texts} == set(range(3, 8))
    assert (len(known), {len(counted) for counted in known.values()}) == (24, {1})
    assert len({word for counted in known.values() for word in counted}) == 24
    assert any(len(pair[0]) > len(text[0]) for pair, text in zip(train, texts, strict=False)), "words in pieces"
    assert not any(1 in side for pair in train for side in pair), "no unknown token"


def test_line_n_of_a_file_translates_line_n_of_the_other(folder: Path) -> None:
    pairs = load_text(folder, "train")

    assert list(pairs) == [([4, 5, 6, 7], [8, 9, 10, 11]), ([7, 7], [11, 11, 11]), ([1, 6], [8, 6])]
    assert [pairs.vocabulary.decode(side) for side in pairs[0]] == ["the newest house", "das neueste haus"]
    assert pairs.vocabulary.decode(pairs[2][0]) == "<unk> west", "a space that is none does not part tokens"
    assert (pairs.source.lengths.tolist(), pairs.target.lengths.tolist()) == ([4, 2, 2], [4, 3, 2])
    assert list(load_text(folder, "test")) == [([7], [7])]
    assert count(folder, load_text) == {"training pairs": 3, "test pairs": 1}

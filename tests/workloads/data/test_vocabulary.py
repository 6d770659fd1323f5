"""Ids of tokens, and the text of a sentence."""

from __future__ import annotations

import pytest

from pytest_distbench.workloads.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary, join_bpe, join_subtokens


def test_ids_begin_with_the_special_tokens_and_are_padded_to_a_multiple_of_eight() -> None:
    made = Vocabulary(["ne@@", "west", "end"], join_bpe)

    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert made.encode(["end", "ne@@", "nothing", "west"]) == [6, 4, 1, 5]
    assert len(made) == 8
    assert len(Vocabulary("abcde", join_bpe)) == 16
    assert len(Vocabulary("abcd", join_bpe)) == 8


def test_a_sentence_ends_at_its_end_and_has_no_padding() -> None:
    made = Vocabulary(["ne@@", "west", "end"], join_bpe)

    assert made.decode([BOS, 4, 5, PAD, 6, EOS, 6, 6]) == "newest end"
    assert made.decode([6, UNK, 7, 99]) == "end <unk> <unk> <unk>", "ids that pad the vocabulary are no tokens"
    assert made.decode([]) == made.decode([EOS]) == ""


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
    assert join_subtokens(tokens) == text

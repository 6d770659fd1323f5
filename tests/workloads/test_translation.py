"""Translation: batches, the smoothed loss and beam search by hand, and BLEU of the whole set over several ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.launching import Launch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.workloads import translation
from pytest_distbench.workloads.data.pairs import BOS, EOS, PAD, UNK, Pairs, Sentences, Vocabulary, join_bpe
from pytest_distbench.workloads.translation import State, TokenBatches, bleu_over_ranks, corpus_bleu, translate

if TYPE_CHECKING:
    from pytest_distbench import RankContext

A, B, C, D = range(4, 8)


def rank_of(rank: int, world_size: int, seed: int = 3) -> Any:
    return SimpleNamespace(rank=rank, world_size=world_size, seed=seed, only_structure=False)


# Batches


def test_batches_end_their_sentences_and_go_on_where_they_were() -> None:
    batch = translation.make_batch([([A, B, C], [D]), ([A], [C, D])])
    assert batch.source.tolist() == [[A, B, C, EOS], [A, EOS, PAD, PAD]]
    assert batch.lengths.tolist() == [4, 2]
    assert batch.target.tolist() == [[BOS, D, EOS, PAD], [BOS, C, D, EOS]]
    assert batch.tokens == 5

    shard = TokenBatches(rank_of(1, 2), np.array([3, 5, 4, 4, 2, 7, 7, 1]), tokens=8)
    steps = [batch.tolist() for batch in islice(shard.batches(), 3 * shard.epoch_steps)]
    assert [batch.tolist() for batch in islice(shard.batches(start=5), len(steps) - 5)] == steps[5:]
    assert len({json.dumps(steps[i : i + shard.epoch_steps]) for i in range(0, len(steps), shard.epoch_steps)}) == 3

    with pytest.raises(RecordingError, match="3 sentences for 4 ranks"):
        TokenBatches(rank_of(0, 4), [1, 2, 3], tokens=8)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=4, max_size=60),
    world_size=st.integers(1, 4),
    tokens=st.integers(12, 40),
    epoch=st.integers(0, 2),
)
def test_shards_of_an_epoch_are_disjoint_and_complete_and_keep_to_the_tokens(
    lengths: list[int], world_size: int, tokens: int, epoch: int
) -> None:
    shards = [TokenBatches(rank_of(rank, world_size), lengths, tokens=tokens) for rank in range(world_size)]
    steps = [list(islice(shard.batches(start=epoch * shard.epoch_steps), shard.epoch_steps)) for shard in shards]
    seen = [int(index) for of_rank in steps for batch in of_rank for index in batch]

    assert sorted(seen) == list(range(len(lengths)))
    for batch in (batch for of_rank in steps for batch in of_rank):
        assert len(batch) > 0
        longest = max(lengths[index] for index in batch)
        assert longest * (len(batch) - 1) <= tokens  # one more where the last step has what is left


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_gives_all_words_a_share_and_padding_none(smoothing: float) -> None:
    scores = torch.tensor([[[1.0, 0.0, 2.0, -1.0, 0.5], [0.0, 3.0, 0.0, 1.0, 0.0], [9.0, 9.0, 0.0, 0.0, 0.0]]])
    by_hand = 0.0
    for row, label in ((scores[0, 0], 4), (scores[0, 1], 1)):
        total = math.log(sum(math.exp(score) for score in row.tolist()))
        surprise = [total - score for score in row.tolist()]
        by_hand += (1 - smoothing) * surprise[label] + smoothing * sum(surprise) / 5
    found = translation.smoothed_loss(scores, torch.tensor([[4, 1, PAD]]), smoothing=smoothing).item()

    assert found == pytest.approx(by_hand)


# Beam search


class Chain(torch.nn.Module):
    """Says what follows a token by a table of probabilities; the state counts its steps."""

    def __init__(self, table: dict[int, dict[int, float]]) -> None:
        super().__init__()
        self.table = torch.full((8, 8), 1e-9)
        for token, following in table.items():
            for after, probability in following.items():
                self.table[token, after] = probability
        self.dropout = torch.nn.Dropout(1.0)

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> State:
        assert not self.training
        assert lengths.tolist() == (source != PAD).sum(1).tolist()
        return (torch.zeros(len(source)),)

    def decode(self, prefix: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        assert (state[0] == prefix.shape[1] - 1).all()
        return self.table[prefix[:, -1]].log(), (state[0] + 1,)


GARDEN = {BOS: {A: 0.6, B: 0.4}, A: {C: 0.55, D: 0.45}, B: {D: 1.0}, C: {EOS: 1.0}, D: {EOS: 1.0}}
"""The likelier first word leads to less likely sentences: A C with 0.33, A D with 0.27; B D with 0.4."""


@pytest.mark.parametrize(("beam", "tokens"), [(1, [A, C]), (2, [B, D]), (4, [B, D])])
def test_a_beam_finds_what_greedy_search_passes_by(beam: int, tokens: list[int]) -> None:
    [found] = translate(Chain(GARDEN).train(), [[A]], device=torch.device("cpu"), beam=beam, most_tokens=9)

    assert found == tokens


def test_a_translation_ends_at_its_most_tokens_and_each_has_its_own_end() -> None:
    endless = Chain({BOS: {A: 1.0}, A: {A: 1.0}})
    found = translate(endless, [[A], [A, B]], device=torch.device("cpu"), beam=2, most_tokens=5)

    assert found == [[A] * 5] * 2


def test_translations_are_in_the_order_of_their_sources_and_the_model_goes_on_training() -> None:
    class Copy(Chain):
        def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> State:
            return (source,)

        def decode(self, prefix: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
            place = min(prefix.shape[1] - 1, state[0].shape[1] - 1)
            return torch.nn.functional.one_hot(state[0][:, place], 8).float().log(), state

    model = Copy({}).train()
    sources = [[A] * 3, [B], [C, D], [D] * 4, [A, B, C]]

    assert translate(model, sources, device=torch.device("cpu"), beam=1, most_tokens=9, batch=2) == sources
    assert model.training


# BLEU


def test_bleu_is_of_the_set_by_joined_words() -> None:
    # Of the hypotheses 9 words, 7 pairs, 5 triples, 3 quadruples; right are 8, 5, 3 and 1
    hypotheses = ["the cat sat on mats", "a dog ran home"]
    references = ["the cat sat on the mat", "a dog ran home"]
    right, there = (8, 6, 4, 2), (9, 7, 5, 3)
    brevity = math.exp(1 - 10 / 9)
    by_hand = 100 * brevity * math.exp(sum(math.log(r / t) for r, t in zip(right, there, strict=True)) / 4)
    assert corpus_bleu(hypotheses, references) == pytest.approx(by_hand)

    whole = corpus_bleu(["a b c d e f g h", "x y"], ["a b c d e f g h", "a b"])
    assert whole == pytest.approx(100 * (8 / 10 * 7 / 8) ** (1 / 4))
    assert corpus_bleu(["a b c d ."], ["a b c d ."]) == pytest.approx(100)
    with pytest.raises(RecordingError, match="found 1 and 2"):
        corpus_bleu(["a"], ["a", "b"])

    # Four words each: of pieces it would be five, of which four are right in the second
    test = made_pairs([[A, B, C, D, D], [A, B, C, D, D]])
    score = bleu_over_ranks(make_rank(), lambda chosen: [[A, B, C, D, D], [A, C, C, D, D]], test)
    assert score == corpus_bleu(["low er new new", "loer er new new"], ["low er new new"] * 2)

    test = made_pairs([[D, D, D, D, UNK]])
    assert bleu_over_ranks(make_rank(), lambda chosen: [[D, D, D, D, UNK]], test) < 100
    found = bleu_over_ranks(make_rank(), lambda chosen: [[D, D, D, D]], test)
    assert found == corpus_bleu(["new new new new"], ["new new new new <unk>"])


VOCABULARY = Vocabulary(["lo@@", "w", "er", "new"], join_bpe)


def made_pairs(targets: Sequence[Sequence[int]]) -> Pairs:
    ends = np.cumsum([len(target) for target in targets])
    sentences = Sentences(np.array([token for target in targets for token in target]), np.r_[0, ends[:-1]], ends)
    return Pairs(sentences, sentences, VOCABULARY)


TARGETS = [[D, C, B, D], [C, C, D, B, D], [B, D, D, D, C], [D, D, B, B], [C, D, C, B, B, D, D]]
SAID = [[D, C, B, D], [C, C, D, B], [B, D, D, D, C], [D, D, B, D, C], [C, D, C, B, B, D]]


def bleu_in_ranks(rank: RankContext) -> None:
    """Each rank translates every second of five sentences."""
    chosen: list[Sequence[int]] = []

    def own(which: Sequence[int]) -> list[list[int]]:
        chosen.append(which)
        return [SAID[index] for index in which]

    rank.record("bleu", bleu_over_ranks(rank, own, made_pairs(TARGETS)), better="exact")
    assert chosen == [range(rank.rank, 5, rank.world_size)]


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_ranks_have_the_score_of_the_whole_set(launcher: Launcher, tmp_path: Path) -> None:
    record = Launch(launcher, tmp_path, Path(__file__))("bleu_in_ranks")
    texts, references = ([VOCABULARY.decode(tokens) for tokens in several] for several in (SAID, TARGETS))

    assert (record.outcome, record.reason) == ("passed", "")
    [bleu] = [m.value for m in record.measurements if m.name == "bleu"]
    assert bleu == corpus_bleu(texts, references)


def test_the_loss_of_float16_scores_is_computed_in_float32() -> None:
    scores = torch.randn(64, 50, 40, generator=torch.Generator().manual_seed(0)).half()
    target = torch.ones(64, 50, dtype=torch.int64)
    loss = translation.smoothed_loss(scores, target, smoothing=0.1)

    assert loss.dtype == torch.float32
    assert loss.item() == translation.smoothed_loss(scores.float(), target, smoothing=0.1).item()


@pytest.mark.parametrize(("penalty", "tokens"), [(0.0, [A]), (0.6, [A]), (2.0, [B, D, C])])
def test_a_longer_translation_wins_with_the_penalty(penalty: float, tokens: list[int]) -> None:
    """Two tokens with 0.55, four with 0.45."""
    chain = Chain({BOS: {A: 0.55, B: 0.45}, A: {EOS: 1.0}, B: {D: 1.0}, D: {C: 1.0}, C: {EOS: 1.0}}).eval()
    source = torch.tensor([[A, EOS]])

    assert translation.beam_search(chain, source, torch.tensor([2]), beam=3, most_tokens=9, penalty=penalty) == [tokens]

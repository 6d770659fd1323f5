"""The big Transformer, which translates, to a BLEU score on the test set, as MLBench task 4b.

Network: Vaswani et al., arXiv 1706.03762, its big form, normalised before each part instead of after it, without biases
in the attention, and with one embedding for both languages and the output: MLPerf's reference. Recipe of the task: Adam
(0.9, 0.98), eps 1e-9; batches of at most 8192 tokens per rank (4096 at 32 ranks, 2048 at 64), gradients of
``max(16 // k, 1)`` batches added before an update, then over ranks, and divided by the tokens of all; linear warm-up
over 1000 updates to a rate of 1.976e-3, and from there a decay by the square root of the updates; dropout 0.1, label
smoothing 0.1; float16 weights with a float32 master, the loss scaled by 2**7 at first, doubled after 2000 updates
without an overflow. BLEU of the whole test set, by beam search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

from pytest_distbench.workloads.data.pairs import PAD, load_indexed
from pytest_distbench.workloads.data.sets import folder_of
from pytest_distbench.workloads.optimisation import LossScale, MixedPrecision, inverse_square_root
from pytest_distbench.workloads.training import Checkpoints, make_deterministic, preset_of, record_setup
from pytest_distbench.workloads.translation import (
    State,
    TokenBatches,
    bleu_over_ranks,
    make_batch,
    smoothed_loss,
    translate,
)

if TYPE_CHECKING:
    from pytest_distbench import RankContext


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A size of the task: the network, the batch, and how long it trains."""

    width: int
    inner: int
    heads: int
    layers: int
    dropout: float
    tokens: int
    most_tokens: int
    rate: float
    warmup_steps: int
    epochs: float
    window: int
    every: int
    min_steps: int
    beam: int
    longest: int


PRESETS = {
    "small": Preset(
        width=64, inner=128, heads=2, layers=2, dropout=0.02, tokens=48, most_tokens=80, rate=6e-3, warmup_steps=60,
        epochs=1.3, window=16, every=12, min_steps=60, beam=1, longest=16,
    ),
    "report": Preset(
        width=1024, inner=4096, heads=16, layers=6, dropout=0.1, tokens=8192, most_tokens=80, rate=1.976e-3,
        warmup_steps=1000, epochs=10, window=2000, every=300, min_steps=25, beam=4, longest=150,
    ),
}  # fmt: skip
SCALE = 2.0**7
SMOOTHING = 0.1


# Network


class Attention(nn.Module):
    """Attention of several heads to a memory, without biases."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.heads = preset.heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(preset.width, preset.width, bias=False) for _ in range(4)
        )
        self.dropout = nn.Dropout(preset.dropout)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, is_hidden: torch.Tensor
    ) -> torch.Tensor:  # (N, T, width), (N, S, width), (N or 1, 1, T or 1, S) -> (N, T, width)
        query, key, value = (
            layer(part).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
        weights = self.dropout(scores.masked_fill(is_hidden, -torch.inf).softmax(-1))
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear maps of each position by itself."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(preset.width, preset.inner), nn.Linear(preset.inner, preset.width)
        self.dropout = nn.Dropout(preset.dropout)
        for layer in (self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, T, width) -> the same
        return self.down(self.dropout(F.relu(self.up(x))))


class Layer(nn.Module):
    """Attention within the sentence, in a decoder to the source too, and two linear maps; each adds to its input."""

    def __init__(self, preset: Preset, *, decodes: bool) -> None:
        super().__init__()
        self.attention = Attention(preset)
        self.to_source = Attention(preset) if decodes else None
        self.feed_forward = FeedForward(preset)
        self.norms = nn.ModuleList(nn.LayerNorm(preset.width) for _ in range(3 if decodes else 2))
        self.dropout = nn.Dropout(preset.dropout)

    def forward(
        self,
        x: torch.Tensor,
        is_hidden: torch.Tensor,
        memory: torch.Tensor | None = None,
        is_padding: torch.Tensor | None = None,
    ) -> torch.Tensor:  # (N, T, width) -> the same
        own = self.norms[0](x)
        x = x + self.dropout(self.attention(own, own, is_hidden))
        if self.to_source is not None:
            x = x + self.dropout(self.to_source(self.norms[1](x), memory, is_padding))
        return x + self.dropout(self.feed_forward(self.norms[-1](x)))


class Transformer(nn.Module):
    """Encoder and decoder with one embedding, and what beam search asks them."""

    def __init__(self, tokens: int, preset: Preset) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, preset.width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=preset.width**-0.5)
        nn.init.zeros_(self.embedding.weight[PAD])
        self.encoder = nn.ModuleList(Layer(preset, decodes=False) for _ in range(preset.layers))
        self.decoder = nn.ModuleList(Layer(preset, decodes=True) for _ in range(preset.layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(preset.width), nn.LayerNorm(preset.width)
        self.dropout = nn.Dropout(preset.dropout)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:  # (N, T) -> (N, T, width)
        """Tokens, and where in the sentence they are."""
        width = self.embedding.embedding_dim
        places = positions(tokens.shape[1], width, tokens.device).to(self.embedding.weight.dtype)
        return self.dropout(self.embedding(tokens) * math.sqrt(width) + places)

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> State:  # noqa: ARG002 an LSTM needs the lengths
        """What the decoder is given of source sentences."""
        is_padding = (source == PAD)[:, None, None, :]
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, is_padding)
        return self.encoder_norm(x), is_padding

    def decode(self, prefix: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Scores of the next word."""
        return self.scores(prefix, state)[:, -1], state

    def scores(self, target: torch.Tensor, state: State) -> torch.Tensor:  # (N, T) -> (N, T, vocabulary)
        """Scores of the word after each of the target's; none sees those behind it."""
        length = target.shape[1]
        is_later = torch.ones(1, 1, length, length, dtype=torch.bool, device=target.device).triu(1)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, is_later, *state)
        return F.linear(self.decoder_norm(x), self.embedding.weight)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores (N, T, vocabulary) of the word after each of the target's."""
        return self.scores(target, self.encode(source, lengths))


def positions(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Sines and cosines of each place (length, width), as tensor2tensor has them: all sines first."""
    slowness = torch.exp(torch.arange(width // 2, device=device) * (-math.log(10_000) / (width // 2 - 1)))
    angles = torch.arange(1, length + 1, device=device).unsqueeze(1) * slowness
    return torch.cat([angles.sin(), angles.cos()], 1)


# Training


def train(rank: RankContext) -> None:
    """Train until the BLEU of the test set reaches ``rank.params["goal"]``."""
    preset = preset_of(rank, PRESETS)
    make_deterministic(rank.seed)
    folder = folder_of(rank, "wmt17")
    pairs = load_indexed(folder, "train").up_to(preset.most_tokens)
    test = load_indexed(folder, "test")

    net = Transformer(len(pairs.vocabulary), preset).to(rank.device)
    torch.manual_seed(rank.seed + rank.rank + 1)  # ranks drop otherwise
    mixed = MixedPrecision(
        net,
        lambda master: torch.optim.Adam(master, lr=preset.rate, betas=(0.9, 0.98), eps=1e-9),
        scale=LossScale(SCALE, window=preset.window),
        world_size=rank.world_size,
    )
    schedule = inverse_square_root(mixed.optimizer, warmup_steps=preset.warmup_steps)
    update_freq = max(16 // rank.world_size, 1)
    record_setup(
        rank, net, mixed.optimizer, preset=preset, update_freq=update_freq,
        schedule=f"linear warm-up over {preset.warmup_steps} updates, inverse square root",
        precision=f"float16, loss scaled by {SCALE:g}",
    )  # fmt: skip
    checkpoints = Checkpoints(rank, mixed=mixed, schedule=schedule)
    tokens_per_rank = min(preset.tokens, 16 * preset.tokens // rank.world_size)
    lengths = np.maximum(pairs.source.lengths, pairs.target.lengths) + 1
    shards = TokenBatches(rank, lengths, tokens=tokens_per_rank)
    batches = shards.batches(start=checkpoints.step * update_freq)

    def bleu() -> float:
        def own(chosen: Sequence[int]) -> list[list[int]]:
            sources = [test.source[index] for index in chosen]
            return translate(net, sources, device=rank.device, beam=preset.beam, most_tokens=preset.longest)

        return bleu_over_ranks(rank, own, test)

    steps = int(preset.epochs * shards.epoch_steps) // update_freq
    goal = rank.goal(
        "bleu",
        target=rank.params["goal"],
        every=preset.every,
        max_steps=steps - checkpoints.step,
        min_steps=preset.min_steps,
    )
    rates, scales, norms = [], [], []
    for step in goal.steps(samples_per_step=len(pairs) * update_freq / shards.epoch_steps):
        losses, tokens = [], 0
        for chosen in islice(batches, update_freq):
            with rank.phase("load"):
                batch = make_batch([pairs[index] for index in chosen.tolist()])
            with rank.phase("copy"):
                batch = batch.to(rank.device)
            with rank.phase("forward"):
                scores = net(batch.source, batch.lengths, batch.target[:, :-1])
            with rank.phase("loss"):
                loss = smoothed_loss(scores, batch.target[:, 1:], smoothing=SMOOTHING)
            with rank.phase("backward"):
                mixed.backward(loss)
            losses.append(loss.detach())
            tokens += batch.tokens
        with rank.phase("all_reduce"):
            mixed.average(tokens)
        rates.append(schedule.get_last_lr()[0])
        with rank.phase("optimizer"):
            if mixed.step():
                schedule.step()
                norms.append(mixed.norm)
        scales.append(mixed.scale.value)
        goal.check(bleu, loss=torch.stack(losses).sum() / tokens)
        if step % preset.every == 0:
            checkpoints.save(step)
    rank.record("learning_rate", rates)
    rank.record("loss_scale", scales, better="exact")
    rank.record("gradient_norm", norms[:10], better="curve")  # Adam divides by it: the losses do not show it

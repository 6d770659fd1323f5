"""GNMT, an LSTM that translates, to a BLEU score on the test set, as MLBench task 4a.

Network: GNMT v2 (Wu et al., arXiv 1609.08144, with the attention of MLPerf's reference): LSTM layers with residual
connections from the third on, the encoder's first one in both directions; additive attention from the decoder's first
layer, whose context the others get in addition to their input; one embedding for both languages. Recipe of the task:
Adam (0.9, 0.999), eps 1e-8; batch 128 sentences per rank, gradients of ``max(16 // k, 1)`` batches added before an
update, then averaged over ranks; exponential warm-up over 20 updates to a rate of 2e-3, which grows to 4e-3 at 64
ranks; halved after 40 % of the training and then every 5 %, four times at most; dropout 0.2, label smoothing 0.1;
clipping to a norm of 5; float16 weights with a float32 master, the loss scaled by 2**10 at first, doubled after 128
updates without an overflow up to 2**13. BLEU of the whole test set, by beam search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pytest_distbench.workloads.data.pairs import PAD, load_text
from pytest_distbench.workloads.data.sets import folder_of
from pytest_distbench.workloads.optimisation import LossScale, MixedPrecision, exponential_warmup
from pytest_distbench.workloads.training import (
    Checkpoints,
    epoch_steps,
    make_deterministic,
    preset_of,
    record_setup,
    sharded_batches,
)
from pytest_distbench.workloads.translation import State, bleu_over_ranks, make_batch, smoothed_loss, translate

if TYPE_CHECKING:
    from pytest_distbench import RankContext


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A size of the task: the network, the batch, and how long it trains."""

    width: int
    layers: int
    dropout: float
    spread: float
    sharpness: float
    batch: int
    most_tokens: int
    rate: float
    warmup_steps: int
    epochs: int
    window: int
    every: int
    min_steps: int
    beam: int
    longest: int


PRESETS = {
    "small": Preset(
        width=64, layers=2, dropout=0.1, spread=0.4, sharpness=10.0, batch=4, most_tokens=75, rate=1.5e-2,
        warmup_steps=10, epochs=1, window=16, every=6, min_steps=54, beam=1, longest=16,
    ),
    "report": Preset(
        width=1024, layers=4, dropout=0.2, spread=0.1, sharpness=1024**-0.5, batch=128, most_tokens=75, rate=2e-3,
        warmup_steps=20, epochs=8, window=128, every=300, min_steps=25, beam=5, longest=150,
    ),
}  # fmt: skip
SCALE = 2.0**10
MOST_SCALE = 2.0**13
SMOOTHING = 0.1
MAX_NORM = 5.0


# Network


class Attention(nn.Module):
    """Additive attention (Bahdanau et al., arXiv 1409.0473), its direction normalised."""

    def __init__(self, width: int, spread: float, sharpness: float) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.direction = nn.Parameter(torch.empty(width))
        for weights in self.parameters():
            nn.init.uniform_(weights, -spread, spread)
        self.sharpness = nn.Parameter(torch.tensor([sharpness]))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(
        self, query: torch.Tensor, memory: torch.Tensor, keys: torch.Tensor, is_padding: torch.Tensor
    ) -> torch.Tensor:  # (N, T, width), (N, S, width) twice, (N, S) -> (N, T, width)
        sums = torch.tanh(self.query(query).unsqueeze(2) + keys.unsqueeze(1) + self.bias)
        scores = sums @ (self.direction / self.direction.norm() * self.sharpness)
        return scores.masked_fill(is_padding.unsqueeze(1), -torch.inf).softmax(-1) @ memory


class Encoder(nn.Module):
    """Reads a sentence: the first layer in both directions, residual connections from the third on."""

    def __init__(self, embedding: nn.Embedding, preset: Preset) -> None:
        super().__init__()
        width = preset.width
        self.embedding = embedding
        self.dropout = nn.Dropout(preset.dropout)
        self.both_ways = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        inputs = [2 * width, *[width] * (preset.layers - 2)]
        self.layers = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in inputs)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:  # (N, S), (N,) -> (N, S, width)
        words = self.dropout(self.embedding(source))
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.both_ways(packed)[0], batch_first=True)
        x, _ = self.layers[0](self.dropout(x))
        for layer in self.layers[1:]:
            x = x + layer(self.dropout(x))[0]
        return x


class Decoder(nn.Module):
    """Says the next word of each prefix; all layers but the first see what its output attends to."""

    def __init__(self, embedding: nn.Embedding, preset: Preset) -> None:
        super().__init__()
        width = preset.width
        self.embedding = embedding
        self.dropout = nn.Dropout(preset.dropout)
        inputs = [width, *[2 * width] * (preset.layers - 1)]
        self.layers = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in inputs)
        self.attention = Attention(width, preset.spread, preset.sharpness)
        self.classifier = nn.Linear(width, embedding.num_embeddings)

    def forward(self, tokens: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:  # (N, T) -> (N, T, vocabulary)
        memory, keys, is_padding, hidden, cell = state
        after = []

        def run(number: int, x: torch.Tensor) -> torch.Tensor:
            before = hidden[:, number].unsqueeze(0).contiguous(), cell[:, number].unsqueeze(0).contiguous()
            x, own = self.layers[number](self.dropout(x), before)
            after.append(own)
            return x

        query = run(0, self.embedding(tokens))
        context = self.attention(query, memory, keys, is_padding)
        x = run(1, torch.cat([query, context], 2))
        for number in range(2, len(self.layers)):
            x = x + run(number, torch.cat([x, context], 2))
        hidden, cell = (torch.stack([own[part].squeeze(0) for own in after], 1) for part in (0, 1))
        return self.classifier(x), (memory, keys, is_padding, hidden, cell)


class GNMT(nn.Module):
    """Encoder and decoder with one embedding, and what beam search asks them."""

    def __init__(self, tokens: int, preset: Preset) -> None:
        super().__init__()
        embedding = nn.Embedding(tokens, preset.width, padding_idx=PAD)
        self.encoder = Encoder(embedding, preset)
        self.decoder = Decoder(embedding, preset)
        attention = {id(p) for p in self.decoder.attention.parameters()}
        for weights in self.parameters():
            if id(weights) not in attention:
                nn.init.uniform_(weights, -preset.spread, preset.spread)

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> State:
        """What the decoder is given of source sentences, and its state before the first word."""
        memory = self.encoder(source, lengths)
        start = memory.new_zeros(len(source), len(self.decoder.layers), memory.shape[2])
        return memory, self.decoder.attention.key(memory), source == PAD, start, start

    def decode(self, prefix: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Scores of the next word; of the words before it all is in the state."""
        scores, state = self.decoder(prefix[:, -1:], state)
        return scores[:, 0], state

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores (N, T, vocabulary) of the word after each of the target's."""
        return self.decoder(target, self.encode(source, lengths))[0]


# Training


def scaled(rate: float, batches: int) -> float:
    """The rate grows with the batches that are added before an update: of 16 to 64 of them twofold."""
    return rate * (1 + max(0, batches - 16) / 48)


def train(rank: RankContext) -> None:
    """Train until the BLEU of the test set reaches ``rank.params["goal"]``."""
    preset = preset_of(rank, PRESETS)
    make_deterministic(rank.seed)
    folder = folder_of(rank, "wmt16")
    pairs = load_text(folder, "train").up_to(preset.most_tokens)
    test = load_text(folder, "test")

    net = GNMT(len(pairs.vocabulary), preset).to(rank.device)
    torch.manual_seed(rank.seed + rank.rank + 1)  # ranks drop otherwise
    update_freq = max(16 // rank.world_size, 1)
    together = update_freq * rank.world_size  # 16 batches, or as many as there are ranks
    mixed = MixedPrecision(
        net,
        lambda master: torch.optim.Adam(master, lr=scaled(preset.rate, together), betas=(0.9, 0.999), eps=1e-8),
        scale=LossScale(SCALE, window=preset.window, most=MOST_SCALE),
        world_size=rank.world_size,
        max_norm=MAX_NORM,
    )
    steps = preset.epochs * epoch_steps(rank, samples=len(pairs), batch=preset.batch) // update_freq
    schedule = exponential_warmup(mixed.optimizer, warmup_steps=preset.warmup_steps, total_steps=steps)
    record_setup(
        rank, net, mixed.optimizer, preset=preset, update_freq=update_freq,
        schedule=f"exponential warm-up over {preset.warmup_steps} updates, halved after 40 % and every 5 %",
        precision=f"float16, loss scaled by {SCALE:g} to {MOST_SCALE:g}",
    )  # fmt: skip
    checkpoints = Checkpoints(rank, mixed=mixed, schedule=schedule)
    batches = sharded_batches(
        rank, samples=len(pairs), batch=preset.batch, start=checkpoints.step * update_freq, device="cpu"
    )

    def bleu() -> float:
        def own(chosen: Sequence[int]) -> list[list[int]]:
            sources = [test.source[index] for index in chosen]
            return translate(net, sources, device=rank.device, beam=preset.beam, most_tokens=preset.longest)

        return bleu_over_ranks(rank, own, test)

    share = 1 / (preset.batch * update_freq)
    rates, scales, norms = [], [], []
    goal = rank.goal(
        "bleu",
        target=rank.params["goal"],
        every=preset.every,
        max_steps=steps - checkpoints.step,
        min_steps=preset.min_steps,
    )
    for step in goal.steps(samples_per_step=together * preset.batch):
        losses, tokens, sentences = [], 0, 0
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
                mixed.backward(loss * share)
            losses.append(loss.detach())
            tokens += batch.tokens
            sentences += len(chosen)
        with rank.phase("all_reduce"):
            mixed.average(sentences * share)
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

"""Task 3a of report 004, where it is a TODO: AWD-LSTM on WikiText-2, to a perplexity of 70 on the validation text.

Goal and recipe are those of the benchmark's own code, the model Merity et al., arXiv 1708.02182: three LSTM layers with
dropped recurrent weights, one dropout mask for all steps of a sequence, words left out of the embedding, which is also
the output layer, and a loss on the activations and on how fast they change. 33,556,078 parameters for 33,278 words.

Recipe: SGD, 20 sequences of 70 words per worker and step, each worker its own columns of the text, whose states go on
from one step to the next; learning rate 15 for one worker, over log2(k) epochs it grows to sqrt(k) times as much; the
norm of the averaged gradient is clipped to 0.25; 750 epochs at most. When the validation loss has not fallen for five
epochs, the model that is evaluated becomes the mean of those of all steps from there on (the paper's NT-ASGD).
Left out: sequences whose lengths vary at random.

*small*: two narrow layers on a generated text, in which one of four words follows each: no model is below 3.03.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from pytest_distbench.workloads import optimisation
from pytest_distbench.workloads.data import wikitext
from pytest_distbench.workloads.data.sets import folder_of
from pytest_distbench.workloads.training import Checkpoints, make_deterministic, preset_of, record_setup

if TYPE_CHECKING:
    from pytest_distbench import RankContext

State = list[tuple[torch.Tensor, torch.Tensor]]
"""Of each layer, hidden and cell (N, width)."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a training of seconds and the paper's do not share."""

    embedding: int
    """Width of a word, and of the last layer."""
    hidden: int
    """Width of the other layers."""
    layers: int
    batch: int
    """Sequences of a worker in a step."""
    length: int
    """Words of a sequence."""
    rate: float
    """Of one worker."""
    clip: float
    """The largest norm of a gradient."""
    epochs: int
    """At most."""
    dropout: float
    """Of the last layer's output."""
    dropout_layers: float
    """Of what one layer gives the next."""
    dropout_input: float
    """Of words' embeddings."""
    dropout_words: float
    """Words that are left out of a step."""
    dropout_weights: float
    """Recurrent weights that are."""
    activation: float = 2.0
    """Weight of the activations' squares in the loss (AR)."""
    change: float = 1.0
    """Weight of the squares of what they change by from word to word (TAR)."""
    decay: float = 1.2e-6
    """Of weights."""
    patience: int = 5
    """Epochs without a better validation loss, after which models are averaged."""


PRESETS = {
    "small": Preset(
        embedding=24, hidden=48, layers=2, batch=8, length=10, rate=15.0, clip=1.0, epochs=6,
        dropout=0.1, dropout_layers=0.0, dropout_input=0.0, dropout_words=0.0, dropout_weights=0.1,
        activation=0.1, change=0.1,
    ),
    "report": Preset(
        embedding=400, hidden=1150, layers=3, batch=20, length=70, rate=15.0, clip=0.25, epochs=750,
        dropout=0.4, dropout_layers=0.2, dropout_input=0.65, dropout_words=0.1, dropout_weights=0.5,
    ),
}  # fmt: skip


EVALUATED_COLUMNS = 16
"""That the validation text is read in."""


# Network


class LockedDropout(nn.Module):
    """Dropout with one mask for all words of a sequence (T, N, width)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.dropout(torch.ones_like(x[:1]), self.share, self.training)


class WeightDropLSTM(nn.Module):
    """One LSTM layer, whose recurrent weights are dropped: the same ones for all words of a sequence."""

    def __init__(self, width_in: int, width: int, share: float) -> None:
        super().__init__()
        self.share = share
        reach = 1 / math.sqrt(width)
        shapes = {"input": (4 * width, width_in), "recurrent": (4 * width, width), "bias": (2, 4 * width)}
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(shape).uniform_(-reach, reach)) for name, shape in shapes.items()}
        )

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:  # (T, N, width_in) -> (T, N, width)
        recurrent = F.dropout(self.weights["recurrent"], self.share, self.training)
        weights = [self.weights["input"], recurrent, *self.weights["bias"]]
        hidden, cell = (part.unsqueeze(0) for part in state)
        y, hidden, cell = torch.lstm(
            x,
            (hidden, cell),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=False,
        )
        return y, (hidden[0], cell[0])


class Read(NamedTuple):
    """What the model makes of sequences: scores (T, N, words), and the last layer's output before and after dropout."""

    scores: torch.Tensor
    raw: torch.Tensor
    dropped: torch.Tensor
    state: State


class AwdLstm(nn.Module):
    """Words to the scores of the next ones."""

    def __init__(self, preset: Preset, words: int) -> None:
        super().__init__()
        self.dropout_words = preset.dropout_words
        self.embedding = nn.Embedding(words, preset.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.bias = nn.Parameter(torch.zeros(words))
        widths = self.widths = [preset.embedding, *[preset.hidden] * (preset.layers - 1), preset.embedding]
        self.layers = nn.ModuleList(WeightDropLSTM(a, b, preset.dropout_weights) for a, b in pairwise(widths))
        self.drop_input = LockedDropout(preset.dropout_input)
        self.drop_layer = LockedDropout(preset.dropout_layers)
        self.drop_output = LockedDropout(preset.dropout)

    def begin(self, sequences: int) -> State:
        """The state before the first word."""
        zeros = [self.bias.new_zeros(sequences, width) for width in self.widths[1:]]
        return [(zero, zero) for zero in zeros]

    def forward(self, words: torch.Tensor, state: State) -> Read:  # (T, N) -> (T, N, words)
        mask = F.dropout(torch.ones_like(self.embedding.weight[:, :1]), self.dropout_words, self.training)
        raw = x = self.drop_input(F.embedding(words, self.embedding.weight * mask))
        after: State = []
        for layer, before in zip(self.layers, state, strict=True):
            raw, reached = layer(x, before)
            after.append(reached)
            x = (self.drop_output if layer is self.layers[-1] else self.drop_layer)(raw)
        return Read(F.linear(x, self.embedding.weight, self.bias), raw, x, after)


# Text


def columns(text: torch.Tensor, sequences: int) -> torch.Tensor:
    """A text (N,) cut into equally long columns (T, sequences); what is left at its end is left out."""
    length = len(text) // sequences
    return text[: length * sequences].view(sequences, length).t().contiguous()


# Training


def train(rank: RankContext) -> None:
    """Train until the perplexity of the validation text is ``rank.params["goal"]`` or less."""
    preset = preset_of(rank, PRESETS)
    make_deterministic(rank.seed)
    train_text, valid_text, _, vocabulary = wikitext.load(folder_of(rank, "wikitext2"))
    mine = slice(rank.rank * preset.batch, (rank.rank + 1) * preset.batch)
    known = columns(train_text, preset.batch * rank.world_size)[:, mine]
    starts = range(0, len(known) - 2, preset.length)  # a sequence has two words at least: it has changes
    net = AwdLstm(preset, len(vocabulary)).to(rank.device)
    model = net if rank.world_size == 1 else DistributedDataParallel(net)
    torch.manual_seed(rank.seed + rank.rank)  # ranks drop otherwise
    optimizer = torch.optim.SGD(net.parameters(), lr=preset.rate, weight_decay=preset.decay)
    rising = optimisation.linear_scaling(optimizer, world_size=rank.world_size, epoch_steps=len(starts), power=0.5)
    averages = Averages(net, preset.patience)
    checkpoints = Checkpoints(rank, model=net, optimizer=optimizer, rising=rising, averages=averages)
    rates: list[float] = []
    state: State = []

    def evaluate(step: int) -> float:
        loss = loss_over_ranks(rank, averages.model, valid_text, preset.length)
        averages.note(loss)
        checkpoints.save(step)
        return math.exp(loss)

    goal = rank.goal(
        "perplexity",
        target=rank.params["goal"],
        better="lower",
        every=len(starts),
        max_steps=preset.epochs * len(starts) - checkpoints.step,
    )
    for step in goal.steps(samples_per_step=preset.batch * preset.length * rank.world_size):
        rates.append(optimizer.param_groups[0]["lr"])
        with rank.phase("load"):
            start = starts[(checkpoints.step + step - 1) % len(starts)]
            state = state if start else net.begin(preset.batch)
            window = known[start : start + preset.length + 1]
        with rank.phase("copy"):
            window = window.to(rank.device)
        with rank.phase("forward"):
            read = model(window[:-1], state)
        with rank.phase("loss"):
            loss = F.cross_entropy(read.scores.flatten(0, 1), window[1:].flatten())
            changes = (read.raw[1:] - read.raw[:-1]).square().mean()
            whole = loss + preset.activation * read.dropped.square().mean() + preset.change * changes
        with rank.phase("backward"):
            optimizer.zero_grad()
            whole.backward()
        with rank.phase("optimizer"):
            nn.utils.clip_grad_norm_(net.parameters(), preset.clip)
            optimizer.step()
            rising.step()
            averages.take_in()
            state = [(hidden.detach(), cell.detach()) for hidden, cell in read.state]
        goal.check(partial(evaluate, step), loss=loss)
    record_setup(rank, net, optimizer, preset=preset, data="wikitext2", schedule="x sqrt(k), averaged at last")
    rank.record("learning_rate", rates, better="info")
    rank.record("averaged_models", int(averages.mean.n_averaged), better="exact")


def loss_over_ranks(rank: RankContext, model: AwdLstm, text: torch.Tensor, length: int) -> float:
    """Cross-entropy of a word of a text in evaluation mode. Collective.

    The text is read in as many columns for every number of ranks, which share them out: so it is the same for all.
    """
    every = columns(text, EVALUATED_COLUMNS)
    mine = every[:, rank.rank :: rank.world_size].to(rank.device)
    was_training = model.training
    model.eval()
    total, state = 0.0, model.begin(mine.shape[1])
    with torch.no_grad():
        for start in range(0, len(mine) - 1, length):
            window = mine[start : start + length + 1]
            scores, _, _, state = model(window[:-1], state)
            total += float(F.cross_entropy(scores.flatten(0, 1), window[1:].flatten(), reduction="sum"))
    model.train(was_training)
    return rank.sum_over_ranks(total) / (every.numel() - EVALUATED_COLUMNS)


class Averages:
    """The model that is evaluated: the trained one, or the mean of all since the loss stopped falling (NT-ASGD)."""

    def __init__(self, net: AwdLstm, patience: int) -> None:
        self.net = net
        self.mean = AveragedModel(net)
        self.patience = patience
        self.losses: list[float] = []
        self.is_on = False

    @property
    def model(self) -> AwdLstm:
        return cast("AwdLstm", self.mean.module) if self.mean.n_averaged else self.net

    def note(self, loss: float) -> None:
        """Take in the validation loss of an epoch: is none of the last ones below the best before?"""
        self.losses.append(loss)
        before, last = self.losses[: -self.patience], self.losses[-self.patience :]
        self.is_on |= bool(before) and min(last) >= min(before)

    def take_in(self) -> None:
        """Take in the model after a step."""
        if self.is_on:
            self.mean.update_parameters(self.net)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.state_dict(), "losses": self.losses, "is_on": self.is_on}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean.load_state_dict(state["mean"])
        self.losses, self.is_on = list(state["losses"]), state["is_on"]

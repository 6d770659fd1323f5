"""Translation: batches of sentence pairs, the smoothed loss, beam search, and BLEU over a whole test set."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.checkpoints import permutation, share
from pytest_distbench.worker.notebook import check_whole
from pytest_distbench.workloads.data.pairs import BOS, EOS, PAD, UNK

if TYPE_CHECKING:
    import numpy as np

    from pytest_distbench.worker.context import RankContext
    from pytest_distbench.workloads.data.pairs import Pairs

State = tuple[torch.Tensor, ...]
"""State of a model for the sentences it translates: tensors whose first dimension is the sentences."""


class Translator(Protocol):
    """A model that beam search can query."""

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> State:
        """Read source sentences (N, S), of ``lengths`` (N,) tokens."""

    def decode(self, prefix: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Scores (N, vocabulary) of the token after the prefixes (N, T); each call has one token more."""


class Batch(NamedTuple):
    """Sentences, padded: ``source`` (N, S) ends with EOS, ``target`` (N, T) begins with BOS and ends with EOS.

    ``lengths`` (N,): tokens of each source, on the CPU; ``tokens``: number of tokens to predict, over all targets.
    """

    source: torch.Tensor
    lengths: torch.Tensor
    target: torch.Tensor
    tokens: int

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device, except the lengths."""
        return self._replace(source=self.source.to(device), target=self.target.to(device))


def padded(sentences: Sequence[Sequence[int]], *, begin: Sequence[int] = ()) -> torch.Tensor:
    """Pad sentences, each with ``begin`` before and EOS after it, to the longest: (N, T), int64."""
    rows = [[*begin, *sentence, EOS] for sentence in sentences]
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])


def make_batch(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Make a batch of pairs of sentences."""
    source = padded([pair[0] for pair in pairs])
    target = padded([pair[1] for pair in pairs], begin=[BOS])
    return Batch(source, (source != PAD).sum(1), target, tokens=sum(len(pair[1]) + 1 for pair in pairs))


class TokenBatches:
    """Index batches of about equally long sentences, of at most so many tokens with their padding.

    Each epoch the sentences are shuffled, sorted by length, and cut into steps, whose order is shuffled; every rank has
    a share of each step. The shares of an epoch are disjoint and complete.

    Args:
        rank: this process in its group; its seed orders the sentences.
        lengths: number of tokens of each sentence in the training set, (N,).
        tokens: most tokens per rank and step; a single sentence may be longer.

    Attributes:
        epoch_steps: number of steps in an epoch.

    Raises:
        RecordingError: no whole number of tokens, or fewer sentences than ranks.
    """

    def __init__(self, rank: RankContext, lengths: Sequence[int] | np.ndarray, *, tokens: int) -> None:
        call = "TokenBatches(...)"
        tokens = check_whole(call, "tokens", tokens, least=1)
        self._rank, self._lengths = rank, torch.as_tensor(lengths)
        self._ranks = 1 if rank.only_structure else rank.world_size
        longest_first = self._lengths.sort(descending=True).values.tolist()
        if len(longest_first) < self._ranks:
            raise RecordingError(f"{call}: {len(longest_first)} sentences for {self._ranks} ranks")
        self._counts: list[int] = []
        done = 0
        while (left := len(longest_first) - done) > 0:
            count = self._ranks * max(1, tokens // longest_first[done])
            self._counts.append(left if left - count < self._ranks else count)  # no rank is without one in the last
            done += self._counts[-1]
        self.epoch_steps = len(self._counts)

    def batches(self, *, start: int = 0) -> Iterator[torch.Tensor]:
        """Yield this rank's batches (n,) of indices without end, on the CPU, after the first ``start``."""
        of = 0 if self._rank.only_structure else self._rank.rank
        first_epoch, first = divmod(start, self.epoch_steps)
        for epoch in itertools.count(first_epoch):
            order = permutation(len(self._lengths), seed=self._rank.seed, epoch=epoch)
            by_length = order[self._lengths[order].argsort(descending=True, stable=True)]
            steps = by_length.split(self._counts)
            for step in permutation(self.epoch_steps, seed=self._rank.seed, epoch=epoch)[first:].tolist():
                yield share(steps[step], rank=of, world_size=self._ranks)
            first = 0


def smoothed_loss(scores: torch.Tensor, target: torch.Tensor, *, smoothing: float) -> torch.Tensor:
    """The sum over tokens of their cross-entropy with labels that give a share to all words (arXiv 1512.00567).

    Args:
        scores: (N, T, vocabulary), of any type; the loss is computed in float32.
        target: (N, T); PAD counts nothing.
        smoothing: share of the label's probability that is spread evenly over all words.
    """
    flat = scores.flatten(0, 1).float()
    return F.cross_entropy(flat, target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing)


def beam_search(
    model: Translator,
    source: torch.Tensor,
    lengths: torch.Tensor,
    *,
    beam: int,
    most_tokens: int,
    penalty: float = 0.6,
) -> list[list[int]]:
    """Translate sentences: of several continuations of each, keep the one with the best score.

    A score is the sum of log probabilities divided by ``((5 + tokens) / 6) ** penalty`` (Wu et al., arXiv 1609.08144,
    section 7, without its coverage penalty). A beam of 1 is greedy.

    Args:
        model: the model to translate with.
        source: token ids of the sentences, (N, S).
        lengths: number of tokens of each sentence, (N,), on the CPU.
        beam: number of continuations that are kept of a sentence.
        most_tokens: largest number of tokens in a translation.
        penalty: exponent of the length penalty: the higher, the longer translations are.

    Returns:
        The tokens of each sentence before EOS.
    """
    count, device = len(source), source.device
    state = tuple(part.repeat_interleave(beam, 0) for part in model.encode(source, lengths))
    prefix = torch.full((count * beam, 1), BOS, device=device)
    sums = torch.full((count, beam), -torch.inf, device=device)
    sums[:, 0] = 0.0  # all continuations are the same at first
    sizes = torch.zeros(count, beam, device=device)
    for _ in range(most_tokens):
        is_over = (prefix[:, -1] == EOS) | (prefix[:, -1] == PAD)
        scores, state = model.decode(prefix, state)
        steps = F.log_softmax(scores.float(), dim=-1)
        steps[is_over] = -torch.inf
        steps[is_over, PAD] = 0.0
        totals = sums.unsqueeze(2) + steps.unflatten(0, (count, beam))
        longer = sizes + (~is_over).unflatten(0, (count, beam))
        ranked = totals / ((5 + longer) / 6).pow(penalty).unsqueeze(2)
        chosen = ranked.flatten(1).topk(beam).indices
        parents, tokens = chosen // steps.shape[1], chosen % steps.shape[1]
        sums, sizes = totals.flatten(1).gather(1, chosen), longer.gather(1, parents)
        rows = (torch.arange(count, device=device).unsqueeze(1) * beam + parents).flatten()
        prefix = torch.cat([prefix[rows], tokens.flatten().unsqueeze(1)], dim=1)
        state = tuple(part[rows] for part in state)
        if bool((tokens.eq(EOS) | tokens.eq(PAD)).all()):
            break
    best = prefix.unflatten(0, (count, beam))[:, 0, 1:]
    return [list(itertools.takewhile(lambda token: token not in (EOS, PAD), row)) for row in best.tolist()]


def translate(
    model: torch.nn.Module,
    sources: Sequence[Sequence[int]],
    *,
    device: torch.device,
    beam: int,
    most_tokens: int,
    batch: int = 64,
) -> list[list[int]]:
    """Translate by a model in its evaluation mode, in batches of sentences of about one length."""
    was_training = model.training
    model.eval()
    found: list[list[int]] = [[] for _ in sources]
    by_length = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    with torch.no_grad():
        for first in range(0, len(sources), batch):
            chosen = by_length[first : first + batch]
            source = padded([sources[index] for index in chosen])
            lengths = (source != PAD).sum(1)
            tokens = beam_search(model, source.to(device), lengths, beam=beam, most_tokens=most_tokens)  # type: ignore[arg-type]
            for index, own in zip(chosen, tokens, strict=True):
                found[index] = own
    model.train(was_training)
    return found


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of a whole set, 0 to 100, by sacrebleu; words are what spaces separate, and their case counts.

    Raises:
        RecordingError: not equally many of both, or none.
    """
    import sacrebleu  # late: of the extra `suites`, for those who translate

    if len(hypotheses) != len(references) or not references:
        raise RecordingError(
            f"corpus_bleu(...): wanted a hypothesis for each reference, found {len(hypotheses)} and {len(references)}"
        )
    # force: no warning that these are words already
    return sacrebleu.corpus_bleu(list(hypotheses), [list(references)], tokenize="none", force=True).score


def bleu_over_ranks(rank: RankContext, translate: Callable[[Sequence[int]], list[list[int]]], test: Pairs) -> float:
    """BLEU of the whole test set: each rank translates its share, and those of all are gathered once. Collective.

    Args:
        rank: this process in its group.
        translate: takes indices of the test set, and returns the tokens of their translations.
        test: the whole test set.

    Returns:
        BLEU, 0 to 100, the same in every rank. The mean of the ranks' own values would be another number.
    """
    own = translate(range(rank.rank, len(test), rank.world_size))
    # an unknown word of a translation is wrong, also where the reference has one
    texts = [test.vocabulary.decode(token for token in tokens if token != UNK) for tokens in own]
    hypotheses = [""] * len(test)
    for number, share_of in enumerate(rank.gather(json.dumps(texts).encode())):
        hypotheses[number :: rank.world_size] = json.loads(share_of)
    return corpus_bleu(hypotheses, [test.vocabulary.decode(tokens) for tokens in test.target])

"""WikiText-2: a text of whole words in three files, ``wiki.{train,valid,test}.tokens``.

Format: Merity et al., arXiv 1609.07843; words between spaces, rare ones replaced by ``<unk>``, a line a paragraph. The
end of each line is the word ``<eos>``, as all published perplexities count it.
"""

from __future__ import annotations

import itertools
import math
from array import array
from pathlib import Path

import numpy as np
import torch

from pytest_distbench.workloads.data import damaged, lines_of

FILES = tuple(f"wiki.{part}.tokens" for part in ("train", "valid", "test"))
UNKNOWN = "<unk>"
END = "<eos>"


def load(folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[str]]:
    """Word ids of each part (N,), int64, and the words by id: those of the training text; others are unknown."""
    ids = {UNKNOWN: 0, END: 1}
    parts = []
    for name in FILES:
        found = array("q")
        for _, line in lines_of(folder / name):
            words = [word for word in line.split(" ") if word]
            if name == FILES[0]:
                for word in words:
                    ids.setdefault(word, len(ids))
            found.extend([ids.get(word, ids[UNKNOWN]) for word in words])
            found.append(ids[END])
        if len(found) < 2:
            raise damaged(folder / name, wanted="words", found="none")
        parts.append(torch.from_numpy(np.array(found)))
    train, valid, test = parts
    return train, valid, test, list(ids)


def count(folder: Path) -> dict[str, int]:
    """Number of words of each part, after all were read, and of different words."""
    train, valid, test, vocabulary = load(folder)
    known = {"training words": len(train), "validation words": len(valid), "test words": len(test)}
    return {**known, "different words": len(vocabulary)}


_CHANCES = (0.55, 0.25, 0.15, 0.05)  # of the four words that may follow a word
GENERATED_PERPLEXITY = math.exp(-sum(chance * math.log(chance) for chance in _CHANCES))
"""Lowest perplexity that any model can reach on generated text: 3.03."""
_GENERATED = dict(zip(FILES, (40_000, 4_000, 4_000), strict=True))


def generate(folder: Path, seed: int) -> None:
    """Write a small text in this format: each word, and the end of a line, is followed by one of four others."""
    chance = np.random.default_rng(seed)
    stems, ends = ("ar", "el", "in", "on", "ur", "is"), ("a", "o", "en", "um", "ik", "eth", "as", "or")
    words = [END, *map("".join, itertools.product(stems, ends))]
    order = chance.permutation(len(words)).tolist()
    follows = {
        word: [following, *chance.choice([w for w in order if w not in (word, following)], 3, replace=False).tolist()]
        for word, following in zip(order, order[1:] + order[:1], strict=True)
    }
    bounds = np.cumsum(_CHANCES)[:-1]
    for name, length in _GENERATED.items():
        word, text = 0, []
        for pick in np.searchsorted(bounds, chance.random(length), side="right").tolist():
            word = follows[word][pick]
            text.append(words[word])
        lines = " ".join(text).replace(END, "\n").removesuffix("\n")
        (folder / name).write_text(f" {lines} \n")

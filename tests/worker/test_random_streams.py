"""The random state of a rank comes back as it was, and so do the draws that follow."""

from __future__ import annotations

import io
import random

import numpy as np
import torch

from pytest_distbench.worker.random_streams import RandomStreams


def draw(generator: torch.Generator) -> list[float]:
    return [
        float(torch.rand(1)),
        random.random(),
        float(np.random.rand()),
        float(torch.rand(1, generator=generator)),
    ]


def test_every_stream_goes_on_where_it_stood() -> None:
    generator = torch.Generator().manual_seed(3)
    streams = RandomStreams({"loader": generator})
    file = io.BytesIO()
    torch.save(streams.state_dict(), file)
    expected = draw(generator)
    draw(generator)
    file.seek(0)
    streams.load_state_dict(torch.load(file, weights_only=True))

    assert draw(generator) == expected

"""What a body trains with and did not hand over, in words with the call that hands it over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_distbench.worker.elastic.left_out import left_out


class Wrapper:
    """A part of the body's own, which keeps what it holds."""

    def __init__(self, held: object) -> None:
        self.held = held


MODEL = torch.nn.Linear(2, 1)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
SCHEDULED = torch.optim.SGD(MODEL.parameters(), lr=0.1)
SCHEDULE = torch.optim.lr_scheduler.StepLR(SCHEDULED, 1)


@pytest.mark.parametrize(
    ("parts", "optimizer", "more", "told"),
    [
        ({"model": MODEL, "optimizer": OPTIMIZER}, OPTIMIZER, {}, []),
        ({"model": Wrapper(MODEL), "optimizer": Wrapper(OPTIMIZER)}, OPTIMIZER, {}, []),
        (
            {"model": MODEL},
            OPTIMIZER,
            {},
            ["the optimizer SGD, which steps: rank.training(optimizer=...)"],
        ),
        (
            {"model": torch.nn.Linear(2, 1), "optimizer": OPTIMIZER},
            OPTIMIZER,
            {},
            ["2 of the 2 tensors that are trained: rank.training(model=...)"],
        ),
        (
            {"model": MODEL, "optimizer": SCHEDULED},
            SCHEDULED,
            {},
            ["the schedule of the learning rate: rank.training(schedule=...)"],
        ),
        ({"model": MODEL, "optimizer": SCHEDULED, "schedule": SCHEDULE}, SCHEDULED, {}, []),
        (
            {"model": MODEL, "optimizer": OPTIMIZER},
            OPTIMIZER,
            {"drawn_from": ["torch"], "draws_samples": True},
            [
                "random streams (torch): rank.training(random=rank.random_streams())",
                "what chooses the samples: rank.training(sampler=...), which has state_dict and load_state_dict",
            ],
        ),
        ({"model": MODEL, "optimizer": OPTIMIZER, "loader": Wrapper(0)}, OPTIMIZER, {"draws_samples": True}, []),
    ],
)
def test_what_was_not_handed_over_is_told_with_the_call(
    parts: dict[str, Any], optimizer: torch.optim.Optimizer, more: dict[str, Any], told: list[str]
) -> None:
    assert left_out(parts, [optimizer], **{"drawn_from": [], "draws_samples": False, **more}) == told

"""Modules that are imported once for all ranks, one of which leaves them no CUDA."""

from __future__ import annotations

import json
import os
import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.launching import Launch

from pytest_distbench.launch.starters import LAUNCHERS, Launcher, LauncherSetup
from pytest_distbench.worker.context import RankContext

pytestmark = pytest.mark.spawn


def uses_cuda(rank: RankContext) -> None:
    del rank
    torch.cuda.init()


def tells_how_cuda_was_asked_for(rank: RankContext) -> None:
    del rank
    assert sys.modules["support.preloaded"].CHECK == "1"
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ


def draws(rank: RankContext) -> None:
    module = sys.modules["support.preloaded"]
    seeded = [torch.initial_seed(), random.random(), np.random.random(), module.SEEDED.random()]
    found = {"seeded": seeded, "unseeded": module.UNSEEDED.random()}
    (rank.data_dir / f"rank{rank.rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    setup = LauncherSetup(
        directory=tmp_path_factory.mktemp("preloaded"),
        session=uuid.uuid4().hex,
        preload=["no_such_module", "support.preloaded", "support.results"],
    )
    made = LAUNCHERS["warm"].make(setup)
    yield made
    made.close()


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    return Launch(launcher, tmp_path, Path(__file__))


def test_a_module_that_leaves_the_ranks_no_cuda_is_named(launch: Launch) -> None:
    record = launch("uses_cuda", device="cuda", devices=[0, 1])

    _, _, told = record.reason.partition(" raised ")  # both ranks do, in either order
    assert told.startswith(
        "ConfigurationError: importing support.preloaded (distbench_preload) used CUDA in the process"
    )
    assert "no_such_module" not in record.reason
    assert "take it out of distbench_preload" in record.reason


def test_ranks_on_the_cpu_are_none_the_worse_for_it(launch: Launch) -> None:
    record = launch("tells_how_cuda_was_asked_for")

    assert (record.outcome, record.reason) == ("passed", "")


def test_a_body_that_uses_cuda_all_the_same_is_told_what_to_do(launch: Launch) -> None:
    record = launch("uses_cuda", world_size=1)
    first, second = record.reason.splitlines()

    assert first.partition(" raised ")[2].startswith(
        "RuntimeError: CUDA was in use before the rank was forked: Cannot re-init"
    )
    assert "a module of distbench_preload" in second


def test_what_a_module_seeds_stays_seeded_and_what_it_does_not_differs_between_ranks(launch: Launch) -> None:
    """As if every rank had imported it."""
    record = launch("draws")

    assert record.outcome == "passed", record.reason
    first, second = (json.loads((launch.directory / f"rank{rank}.json").read_text()) for rank in (0, 1))
    random.seed(1)
    assert first["seeded"] == second["seeded"]
    assert first["seeded"][:2] == [3, random.random()]
    assert first["seeded"][2:] == [np.random.RandomState(2).random(), np.random.default_rng(4).random()]
    assert first["unseeded"] != second["unseeded"]

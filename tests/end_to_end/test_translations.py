"""The trainings that translate: the published networks, what is saved and gone on with, and goals that are missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gnmt
import pytest
import torch
import translation_transformer
from support.launching import Launch

from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.workloads.data import indexed, parallel_text
from pytest_distbench.workloads.models import count

FILES = {"gnmt": Path(gnmt.__file__), "translation_transformer": Path(translation_transformer.__file__)}
BOTH = pytest.mark.parametrize("task", FILES)
GOALS = {"gnmt": 24.0, "translation_transformer": 25.0}
TOKENS = {"gnmt": 32_320, "translation_transformer": 33_712}
"""Of the published vocabularies, as MLBench pads them."""
PARAMETERS = {"gnmt": 160_671_297, "translation_transformer": 210_808_832}
"""Of what MLBench codes, with these vocabularies."""


def trained(launcher: Launcher, folder: Path, task: str, *, world_size: int = 2, **params: object) -> LaunchRecord:
    launch = Launch(launcher, folder, FILES[task])
    given = {"preset": "small", "goal": GOALS[task], "data": None, **params}
    record = launch("train", params=given, world_size=world_size, timeout_s=900.0)
    assert (record.outcome, record.reason) == ("passed", "")
    return record


def values(record: LaunchRecord) -> dict[str, Any]:
    return {m.name: m.series or m.value for m in record.measurements}


# The networks


def test_the_reports_networks_have_the_parameters_of_the_published_ones() -> None:
    with torch.device("meta"):
        lstm = gnmt.GNMT(TOKENS["gnmt"], gnmt.PRESETS["report"])
        transformer = translation_transformer.Transformer(
            TOKENS["translation_transformer"], translation_transformer.PRESETS["report"]
        )

    assert count(lstm).parameters == PARAMETERS["gnmt"]
    assert count(transformer).parameters == PARAMETERS["translation_transformer"]


@BOTH
def test_what_a_sentence_is_padded_with_changes_no_score(task: str) -> None:
    net: Any = made(task).eval()
    alone, beside = torch.tensor([[5, 6, 3]]), torch.tensor([[5, 6, 3, 0, 0], [7, 8, 9, 4, 3]])
    target = torch.tensor([[2, 9, 8]])
    with torch.no_grad():
        first = net(alone, torch.tensor([3]), target)
        padded = net(beside, torch.tensor([3, 5]), target.expand(2, -1))[:1]

    torch.testing.assert_close(first, padded)


@BOTH
def test_no_word_sees_those_behind_it_and_steps_say_what_the_whole_says(task: str) -> None:
    net: Any = made(task).eval()
    source, lengths, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([4]), torch.tensor([[2, 9, 8, 4, 7]])
    with torch.no_grad():
        whole = net(source, lengths, target)[0]
        state, steps = net.encode(source, lengths), []
        for length in range(1, 6):
            scores, state = net.decode(target[:, :length], state)
            steps.append(scores[0])

    torch.testing.assert_close(torch.stack(steps), whole)


def made(task: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if task == "gnmt":
        return gnmt.GNMT(16, gnmt.PRESETS["small"])
    return translation_transformer.Transformer(16, translation_transformer.PRESETS["small"])


# Trainings


@pytest.mark.spawn
@pytest.mark.timeout(300)
@BOTH
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_a_training_that_goes_on_is_bit_for_bit_the_one_that_went_through(
    launcher: Launcher, tmp_path: Path, task: str
) -> None:
    """Twenty updates, and ten and ten: the second launch begins in the middle of an epoch."""
    short = {"every": 10, "goal": 0.0, "longest": 4, "window": 2}
    through = values(trained(launcher, tmp_path, task, **{**short, "min_steps": 20}))
    first = values(trained(launcher, tmp_path, task, **{**short, "min_steps": 10}, checkpoints="saved"))
    second = values(trained(launcher, tmp_path, task, **{**short, "min_steps": 10}, checkpoints="saved"))

    for name in ("loss", "learning_rate", "loss_scale"):
        assert len(first[name]) == 10
        assert first[name] + second[name] == through[name]
    assert second["final_bleu"] == through["final_bleu"]


@pytest.mark.spawn
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@BOTH
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_a_training_repeats_bit_for_bit_and_its_goal_is_missed_by_what_does_not_learn(
    launcher: Launcher, tmp_path: Path, task: str
) -> None:
    first, second = (values(trained(launcher, tmp_path, task)) for _ in range(2))
    still = values(trained(launcher, tmp_path, task, rate=0.0))
    narrow = values(trained(launcher, tmp_path, task, **{"gnmt": {"width": 32}, "translation_transformer": HALF}[task]))
    shuffle_targets(tmp_path)
    shuffled = values(trained(launcher, tmp_path, task))

    assert first["steps_to_bleu"] is not None
    assert [first[name] for name in EXACT] == [second[name] for name in EXACT]
    assert [one["steps_to_bleu"] for one in (still, narrow, shuffled)] == [None] * 3


HALF = {"width": 32, "inner": 64}
EXACT = ("loss", "steps_to_bleu", "evaluated_bleu", "loss_scale", "learning_rate")


def shuffle_targets(folder: Path) -> None:
    """Each sentence gets the translation of another one, in both formats."""
    text = folder / "wmt16" / f"{parallel_text.TEXTS['train']}.de"
    if text.exists():
        lines = text.read_text().splitlines(keepends=True)
        text.write_text("".join(lines[1:] + lines[:1]))
    stem = folder / "wmt17" / f"{indexed.TEXTS['train']}.de"
    if stem.parent.exists():
        pairs = indexed.load(stem.parent, "train")
        coded = [[token - 1 for token in tokens] + [2] for tokens in pairs.target]
        indexed.write(stem, coded[1:] + coded[:1])

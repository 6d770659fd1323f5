"""The trainings that translate: the published networks, what is saved and gone on with, and goals that are missed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gnmt
import pytest
import torch
import translation_transformer
from support.fake_world import fake_rank
from support.launching import Launch

from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.data import pairs as sentences
from pytest_distbench.workloads.models import count

FILES = {"gnmt": Path(gnmt.__file__), "translation_transformer": Path(translation_transformer.__file__)}
BOTH = pytest.mark.parametrize("task", FILES)
GOALS = {"gnmt": 24.0, "translation_transformer": 25.0}
TOKENS = {"gnmt": 32_320, "translation_transformer": 33_712}
"""Sizes of the published vocabularies, as MLBench pads them."""
PARAMETERS = {"gnmt": 160_671_297, "translation_transformer": 210_808_832}
"""Number of parameters of MLBench's code, with these vocabularies."""


def trained(launcher: Launcher, folder: Path, task: str, *, world_size: int = 2, **params: object) -> LaunchRecord:
    launch = Launch(launcher, folder, FILES[task])
    given = {"preset": "small", "goal": GOALS[task], "data": None, **params}
    record = launch("train", params=given, world_size=world_size, timeout_s=900.0)
    assert (record.outcome, record.reason) == ("passed", "")
    return record


def values(record: LaunchRecord) -> dict[str, Any]:
    return {m.name: m.values or m.value for m in record.measurements}


# The networks


def test_the_reports_networks_have_the_parameters_of_the_published_ones() -> None:
    with torch.device("meta"):
        lstm = gnmt.GNMT(TOKENS["gnmt"], gnmt.PRESETS["report"])
        transformer = translation_transformer.Transformer(
            TOKENS["translation_transformer"], translation_transformer.PRESETS["report"]
        )

    assert count(lstm)[0] == PARAMETERS["gnmt"]
    assert count(transformer)[0] == PARAMETERS["translation_transformer"]


def test_gnmt_has_the_parameters_that_one_counts_by_hand() -> None:
    """A layer of an LSTM has four gates, each with two biases."""
    tokens, width = 50, 6
    preset = gnmt.Preset(**{**vars(gnmt.PRESETS["small"]), "width": width, "layers": 4})

    def layer(inputs: int) -> int:
        return 4 * width * (inputs + width + 2)

    encoder = 2 * layer(width) + layer(2 * width) + 2 * layer(width)
    decoder = layer(width) + 3 * layer(2 * width) + tokens * width + tokens
    attention = 2 * width * width + width + 1 + width

    assert count(gnmt.GNMT(tokens, preset))[0] == tokens * width + encoder + decoder + attention


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


@pytest.mark.parametrize(("batches", "rate"), [(16, 2e-3), (32, 8e-3 / 3), (64, 4e-3)])
def test_the_rate_of_gnmt_grows_twofold_at_64_ranks(batches: int, rate: float) -> None:
    assert gnmt.scaled(2e-3, batches) == pytest.approx(rate)


@pytest.mark.spawn
@pytest.mark.timeout(300)
@pytest.mark.parametrize("task", [pytest.param("gnmt", marks=pytest.mark.nightly), "translation_transformer"])
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
    text = folder / "wmt16" / f"{sentences.TEXTS['train']}.de"
    if text.exists():
        lines = text.read_text().splitlines(keepends=True)
        text.write_text("".join(lines[1:] + lines[:1]))
    stem = folder / "wmt17" / f"{sentences.STEMS['train']}.de"
    if stem.parent.exists():
        pairs = sentences.load_indexed(stem.parent, "train")
        coded = [[token - 1 for token in tokens] + [2] for tokens in pairs.target]
        sentences.write_indexed(stem, coded[1:] + coded[:1])


def published_vocabulary(folder: Path, task: str, pairs: int) -> Path:
    """A few pairs of one word each in the real format, with a vocabulary of the published size."""
    if task == "gnmt":
        made = folder / "wmt16"
        made.mkdir()
        sentences.generate_text(made, 0)
        vocabulary = made / sentences.VOCABULARY
        known = len(vocabulary.read_text().splitlines())
        with vocabulary.open("a") as file:
            file.writelines(f"rare{number}\n" for number in range(TOKENS[task] - 4 - known))
        for split, kept in (("train", pairs), ("test", 2)):
            for language in sentences.LANGUAGES:
                text = made / f"{sentences.TEXTS[split]}.{language}"  # type: ignore[index]
                text.write_text("".join(f"{line.split()[0]}\n" for line in text.read_text().splitlines()[:kept]))
        return folder
    made = folder / "wmt17"
    made.mkdir()
    sentences.generate_indexed(made, 0)
    kept = {
        split: [sentences.load_indexed(made, split)[number] for number in range(few)]  # type: ignore[arg-type]
        for split, few in (("train", pairs), ("test", 2))
    }
    for split, some in kept.items():
        for side, language in enumerate(sentences.LANGUAGES):
            coded = [[token - 1 for token in pair[side][:1]] + [2] for pair in some]
            sentences.write_indexed(made / f"{sentences.STEMS[split]}.{language}", coded)  # type: ignore[index]
    for name in sentences.DICTIONARIES:
        known = len((made / name).read_text().splitlines())
        with (made / name).open("a") as file:
            file.writelines(f"'rare{number}_'\n" for number in range(TOKENS[task] - 2 - known))
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@BOTH
def test_the_reports_size_takes_two_steps_is_saved_and_goes_on(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank of the report's 16, each with one batch: a CPU is slow in float16. The others say what it says."""
    data = published_vocabulary(tmp_path, task, pairs=32)
    size = {"gnmt": {"batch": 1}, "translation_transformer": {"tokens": 1}}[task]
    steps = {"preset": "report", "data": str(data), "every": 2, "min_steps": 1, "goal": 0.0, "longest": 2}
    monkeypatch.setattr(RankContext, "gather", lambda rank, data: [data] * rank.world_size)
    found = []
    for epochs in (1, 2):
        with fake_rank(world_size=16) as rank:
            rank.params, rank.data_dir = {**steps, **size, "epochs": epochs, "checkpoints": "saved"}, tmp_path
            importlib.import_module(task).train(rank)
        found.append({o.name: o.values for o in rank.notebook.observations})
    first, second = found

    assert first["parameters"] == second["parameters"] == [PARAMETERS[task]]
    assert len(first["learning_rate"]) == len(second["learning_rate"]) >= 2
    assert first["learning_rate"][0] != second["learning_rate"][0]
    assert all(scale >= 1 for scale in first["loss_scale"] + second["loss_scale"])

"""The trainings of report 004: their goals are goals, they repeat bit for bit, and the report's size goes on too."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.launching import RunInside
from support.ranks import make_rank

from pytest_distbench.workloads.data import cifar10, libsvm, wikitext
from pytest_distbench.workloads.models import count

SUITE = Path(__file__).parents[3] / "suites" / "training"


class Task(NamedTuple):
    """A training of the suite, its small goal, and what is half as wide."""

    name: str
    metric: str
    goal: float
    halved: dict[str, int]
    enough: int
    """Epochs until one worker meets the goal."""


TASKS = [
    Task("resnet20", "accuracy", 0.97, {"width": 2}, enough=6),
    Task("logistic_regression", "accuracy", 0.89, {"features": 1000}, enough=14),
    Task("logistic_regression", "loss", 0.2828, {"features": 1000}, enough=22),
    Task("language_model", "perplexity", 3.8, {"embedding": 12, "hidden": 24}, enough=2),
]
EACH = pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.name}-{task.metric}")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the small data sets, once they were made."""
    return tmp_path_factory.mktemp("generated")


def trained(task: str, data_dir: Path, **params: Any) -> dict[str, Any]:
    """What a training records on one worker, by name: numbers and series."""
    rank: Any = make_rank()
    rank.params, rank.data_dir = params, data_dir
    importlib.import_module(task).train(rank)
    return {o.name: o.values if o.is_series else next(iter(o.values), None) for o in rank.notebook.observations}


def small(task: Task, data_dir: Path, **params: Any) -> int | None:
    """Steps to the small goal, None if it was missed."""
    found = trained(task.name, data_dir, preset="small", goal=task.goal, metric=task.metric, **params)
    steps: int | None = found[f"steps_to_{task.metric}"]
    return steps


@EACH
def test_the_small_goal_is_met(task: Task, generated: Path) -> None:
    assert small(task, generated, epochs=task.enough) is not None


@EACH
def test_a_goal_is_missed_with_a_rate_of_0(task: Task, generated: Path) -> None:
    assert small(task, generated, epochs=1, rate=0.0) is None  # more would compute the same


@EACH
def test_a_goal_is_missed_with_shuffled_targets(task: Task, generated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (cifar10, libsvm, wikitext):
        monkeypatch.setattr(data, "load", _shuffled(data.load))

    assert small(task, generated, epochs=task.enough) is None


def _shuffled(load: Callable[..., Any]) -> Callable[..., Any]:
    def load_shuffled(*args: Any) -> Any:
        found = load(*args)
        train, *others = found
        if isinstance(train, torch.Tensor):  # a text: what follows a word is chance
            return (train[torch.randperm(len(train))], *others)
        images, labels = train
        return (type(train)(images, labels[torch.randperm(len(labels))]), *others)

    return load_shuffled


@pytest.mark.parametrize(
    "task",
    [pytest.param(t, marks=() if t.name == "logistic_regression" else pytest.mark.nightly) for t in TASKS],
    ids=lambda task: f"{task.name}-{task.metric}",
)
def test_a_goal_is_missed_by_a_model_half_as_wide(task: Task, generated: Path) -> None:
    """Within all epochs that the preset has."""
    assert small(task, generated, **task.halved) is None


def test_an_image_is_cropped_and_mirrored_by_itself() -> None:
    """The small training does neither: 3 x 3 crops, and their mirror images, are all drawn."""
    augmented = importlib.import_module("resnet20").augmented
    torch.manual_seed(0)
    image = torch.arange(1.0, 33.0).view(2, 4, 4)
    images, around = image.expand(400, 2, 4, 4), torch.nn.functional.pad(image, (1,) * 4)
    crops = [around[:, top : top + 4, left : left + 4] for top in range(3) for left in range(3)]
    kinds = [*crops, *(crop.flip(2) for crop in crops)]
    drawn = [[torch.equal(one, kind) for kind in kinds].index(True) for one in augmented(images, 1, 0.5)]

    assert {*drawn} == {*range(18)}
    assert sum(kind >= 9 for kind in drawn) == pytest.approx(200, abs=40)
    assert torch.equal(augmented(images, 0, 0.0), images)


@pytest.mark.nightly
def test_the_mean_of_models_is_evaluated_once_the_loss_stays(generated: Path) -> None:
    """The second epoch is no better than the first at a rate of 0."""
    found = trained("language_model", generated, preset="small", goal=3.8, epochs=3, patience=1, rate=0.0)

    assert found["averaged_models"] == len(found["loss"]) / 3


# The report's size


def test_the_reports_models_have_as_many_parameters_as_were_published() -> None:
    resnet20, regression, language = (
        importlib.import_module(name) for name in ("resnet20", "logistic_regression", "language_model")
    )
    counts = [
        count(resnet20.network(resnet20.PRESETS["report"]))[0],
        count(regression.network(regression.PRESETS["report"]))[0],
        count(language.AwdLstm(language.PRESETS["report"], 33_278))[0],
    ]

    assert counts == [269_722, 2000, 33_556_078]


def _cifar10(folder: Path) -> None:
    for name, content in cifar10.generate_noise(5 * cifar10.FILE_RECORDS, 1):
        (folder / name).write_bytes(content[: 51 * cifar10.RECORD_BYTES])
    (folder / f"{cifar10.TEST}.bin").write_bytes(content[: 30 * cifar10.RECORD_BYTES])


def _epsilon(folder: Path) -> None:
    libsvm.generate(folder, 1)
    for name, rows in ((libsvm.TRAIN, 200), (libsvm.TEST, 30)):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:rows]))


def _wikitext2(folder: Path) -> None:
    wikitext.generate(folder, 1)
    for name, words in zip(wikitext.FILES, (2400, 400, 400), strict=True):
        text = (folder / name).read_text().split(" ")
        (folder / name).write_text(" ".join(text[:words]) + "\n")


@pytest.mark.parametrize(
    ("task", "params", "write"),
    [
        pytest.param("resnet20", {}, _cifar10, marks=pytest.mark.nightly),
        ("logistic_regression", {"metric": "loss"}, _epsilon),
        pytest.param("language_model", {}, _wikitext2, marks=pytest.mark.nightly),
    ],
)
def test_the_reports_size_starts_is_saved_and_goes_on_bit_for_bit(
    task: str, params: dict[str, str], write: Callable[[Path], None], tmp_path: Path
) -> None:
    """On files of the real format, of two steps an epoch, to a goal that nothing meets."""
    data = tmp_path / "data"
    data.mkdir()
    write(data)
    goal = 0.0 if task != "resnet20" else 1.01
    wanted = {**params, "preset": "report", "goal": goal, "data": str(data)}
    whole = trained(task, tmp_path, **wanted, epochs=2)
    first = trained(task, tmp_path, **wanted, epochs=1, checkpoints="saved")
    second = trained(task, tmp_path, **wanted, epochs=2, checkpoints="saved")

    assert [len(found["loss"]) for found in (first, second)] == [2, 2]
    for name in ("loss", "learning_rate"):
        assert first[name] + second[name] == whole[name]
    evaluated = next(name for name in whole if name.startswith("evaluated_"))
    assert first[evaluated] + second[evaluated] == whole[evaluated]


# Bit for bit


@pytest.mark.spawn
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "task",
    [TASKS[1], *(pytest.param(task, marks=pytest.mark.nightly) for task in (TASKS[0], TASKS[3]))],
    ids=lambda task: task.name,
)
def test_the_same_seed_repeats_a_training_bit_for_bit(
    task: Task, pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    """Two launches of two ranks: all that the seed decides, from the first loss to the last evaluation."""
    pytester.makepyfile(
        f"""
        OF_CLOCKS = ("time", "evaluation_ends", "phase/", "samples_per_second", "memory")

        def test_it(distbench):
            params = {{"preset": "small", "goal": {task.goal}, "metric": "{task.metric}", "epochs": 2, "data": None}}
            run = distbench.measure("{SUITE / task.name}.py::train", params=params, launches=2)
            first, second = (
                {{m.name: m.values or m.value for m in one.measurements if not any(c in m.name for c in OF_CLOCKS)}}
                for one in run.launches
            )
            assert first == second
            assert len(first["loss"]) > 5 and "evaluated_{task.metric}" in first and "learning_rate" in first
        """
    )
    result = run_inside("--distbench-launches=2")

    result.assert_outcomes(passed=1)

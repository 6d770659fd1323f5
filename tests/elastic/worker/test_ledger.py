"""What a training holds at a checkpoint and behind its load, from the body to the metric: one rank, in this process."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.elastic_jobs import job_plan
from support.ranks import ENVIRONMENT
from support.timelines import JOB

from pytest_distbench.elastic.measures import measure
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.records import Change
from pytest_distbench.elastic.worker.training import ElasticRank, Training
from pytest_distbench.records.metric import SAID, Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import read_events

CHANGED = replace(JOB, checkpoint_every=4, plan=[Change(kind="crash", at_step=9)])


class OtherState:
    """Keeps something else than it is given back, or what it kept first."""

    def __init__(self, fault: str) -> None:
        self.value = 0
        self.fault = fault

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = {"sampler begins at 0": 0, "sampler of the first checkpoint": 4}.get(self.fault, state["value"])


class OwnStreams:
    """Keeps torch's random state, and gives back that of another rank."""

    per_rank = True

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        if self.fault == "random state of another rank":
            torch.manual_seed(1)
        elif self.fault != "random state not given back":
            torch.set_rng_state(state["torch"])


class WithoutStatistics:
    """Keeps a model but for its running statistics."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.model.state_dict().items() if "running" not in name}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(state, strict=False)


class Forgetful(torch.nn.Sequential):
    """Leaves running statistics out of its state itself."""

    def state_dict(self, *args: Any, **options: Any) -> dict[str, torch.Tensor]:
        return {name: value for name, value in super().state_dict(*args, **options).items() if "running" not in name}

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> Any:
        return super().load_state_dict(state, strict=False)


FAULTS: dict[str, Callable[[torch.nn.Module, torch.optim.Optimizer, Training], object]] = {
    "weights initialized": lambda model, *_: torch.nn.init.ones_(next(model.parameters())),
    "running mean zeroed": lambda model, *_: model.get_buffer("1.running_mean").zero_(),
    "table doubled": lambda model, *_: model.get_buffer("table").mul_(2),
    "moments zeroed": lambda model, optimizer, _: optimizer.state[next(model.parameters())]["exp_avg"].zero_(),
    "a step forgotten": lambda model, optimizer, _: optimizer.state[next(model.parameters())]["step"].sub_(1),
    "place forgotten": lambda model, optimizer, training: setattr(training, "position", 0),
    "reseeded": lambda *_: torch.manual_seed(7),
}
"""What a body does wrong behind its load."""


@pytest.fixture
def trained_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Sample]]:
    """Ten steps, a load of step 8, and the rest, with a fault behind that load; returns what is measured."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "checkpoints").mkdir()

    def run(fault: str) -> dict[str, Sample]:
        for generation, steps in ((0, 10), (1, 100)):
            torch.manual_seed(0)
            random.seed(generation)
            train(make_rank(tmp_path, generation), fault if generation or "statistics" in fault else "", steps)
        _, found = measure(CHANGED, History(read_events(tmp_path / "timeline.jsonl")))
        return {m.key: m for m in found}

    return run


def make_rank(folder: Path, generation: int) -> ElasticRank:
    rank = ElasticRank(job_plan(folder, CHANGED, backend="fake"), 0, generation)
    rank.note_event("joined", pid=1, rank=0, world_size=1)
    return rank


def make_model(fault: str) -> torch.nn.Module:
    """A model with two buffers that no checkpoint keeps: a table, and calls, which are counted from the load on."""
    of = Forgetful if fault == "statistics forgotten" else torch.nn.Sequential
    model = of(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    model.register_buffer("table", torch.ones(3), persistent=False)
    model.register_buffer("calls", torch.zeros(1), persistent=False)
    return model


def train(rank: ElasticRank, fault: str, steps: int) -> None:
    model = make_model(fault)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "sampler": OtherState(fault)}
    if fault == "statistics not kept":
        parts["model"] = WithoutStatistics(model)
    parts["random"] = OwnStreams(fault) if "random state" in fault else rank.random_streams()
    training = rank.training(**parts)
    FAULTS.get(fault, lambda *_: None)(model, optimizer, training)
    if fault == "sampler replaced":
        parts["sampler"].value = 0
    if fault == "another optimizer":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if fault == "another model":
        model = make_model(fault)
        kept = optimizer.state_dict()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer.load_state_dict(kept)
    x = torch.arange(40.0).reshape(20, 2)
    for batch in training.batches(samples=20, batch=2, epochs=2):
        if training.step == steps:
            return
        if fault == "another rate":
            optimizer.param_groups[0]["lr"] = 0.02
        optimizer.zero_grad()
        model(x[batch]).square().mean().backward()
        model.get_buffer("calls").add_(1)
        optimizer.step()
        parts["sampler"].value = training.step + 1
        training.note(loss=1.0)
        if fault == "one sample for all":
            training.drew(torch.zeros(2, dtype=torch.int64))


def beyond(found: dict[str, Sample]) -> set[str]:
    return {name for name, m in found.items() if not all(bound.holds(m.value) for bound in m.bounds)}


def test_a_training_that_goes_on_with_what_was_saved_is_within_every_bound(
    trained_twice: Callable[[str], dict[str, Sample]], tmp_path: Path
) -> None:
    found = trained_twice("")
    fed = [line for line in read_events(tmp_path / "timeline.jsonl") if line.what == "fed"]

    assert beyond(found) == set()
    told = {name: found[name].value for name in ("random_state_changed_by_load", "samples_skipped")}
    assert told == {"random_state_changed_by_load": 0, "samples_skipped": 0}
    assert [(line.generation, line.step) for line in fed] == [
        *((0, step) for step in (1, 2, 5, 6, 9, 10)), *((1, step) for step in (9, 10, 13, 14, 17, 18)),
    ]  # fmt: skip
    assert [line.rows for line in fed] == 12 * [{"model": 2}]


PARAMETERS = {"parameters_changed_by_load"}
RANDOM_STATE = {"random_state_changed_by_load", "state_changed_by_load"}


@pytest.mark.parametrize(
    ("fault", "rows", "text"),
    [
        ("weights initialized", PARAMETERS, "the parameters of model are not the saved ones"),
        (
            "another model",
            {"optimizer_steps_missed", "parameters_changed_by_load", "random_state_changed_by_load"},
            "the parameters of the optimizer that steps are not the saved",
        ),
        ("running mean zeroed", PARAMETERS, "the buffers of model are not the saved"),
        ("statistics forgotten", PARAMETERS, "the buffers of model are not the saved"),
        ("statistics not kept", PARAMETERS, "the buffers of model.model are not the saved"),
        ("table doubled", PARAMETERS, "the buffer model.table, which is not saved, is not built"),
        ("moments zeroed", {"optimizer_moments_changed_by_load"}, "the state of the optimizer optimizer is not"),
        (
            "another optimizer",
            {"optimizer_moments_changed_by_load", "optimizer_state_lost", "optimizer_step_changed_by_load"},
            "the state of the optimizer that steps is not the saved one",
        ),
        (
            "a step forgotten",
            {"optimizer_step_changed_by_load"},
            r"counts another number of steps than when .* \(7, 8, 8\)",
        ),
        ("another rate", {"learning_rate_changed_by_load"}, "step 9 had the learning rate 0.01 and now has 0.02"),
        ("sampler begins at 0", {"state_changed_by_load"}, "the state of sampler is not the saved one, after"),
        (
            "sampler of the first checkpoint",
            {"older_checkpoint_loaded", "state_changed_by_load"},
            "the checkpoint of step 8: it is that of step 4",
        ),
        (
            "sampler replaced",
            {"state_changed_by_load"},
            "the state of sampler was loaded, but at the first batch it is as before the load, after the",
        ),
        ("place forgotten", {"position_changed_by_load", "samples_repeated"}, "sample 0 of it, and 8, 0, 16"),
        ("reseeded", {"random_state_changed_by_load"}, "the random stream of torch is not at the position that"),
        ("random state of another rank", RANDOM_STATE, "the random stream of torch is not at the position that"),
        ("random state not given back", RANDOM_STATE, "the random stream of torch is not at the position that"),
        ("one sample for all", {"other_samples_fed", "samples_repeated", "samples_skipped"}, "sample 0 was trained on"),
    ],
)
def test_each_part_that_is_not_what_was_saved_is_beyond_the_bound_of_its_own_row(
    trained_twice: Callable[[str], dict[str, Sample]], fault: str, rows: set[str], text: str
) -> None:
    found = trained_twice(fault)
    words = " ".join(str(found[name].facts.get(SAID, "")) for name in rows)

    assert beyond(found) == rows
    assert re.search(text, words), words


class Averages:
    """Keeps a count and forgets what it has besides: another count, a tensor, a list; in training alone."""

    def __init__(self) -> None:
        self.kept = self.seen = 0
        self.mean = torch.zeros(2)
        self.last: list[float] = []
        self.started = time.monotonic()

    def state_dict(self) -> dict[str, int]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.kept = state["kept"]


class Trainer:
    """A body that is an object: what it has is in its attributes."""

    def __init__(self) -> None:
        self.ema = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(1, 1))


def train_otherwise(rank: ElasticRank, fault: str) -> None:
    """Steps of a model whose fault, if any, is of later generations, or of what is kept."""
    is_later = rank.generation > 0
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    averages, trainer = Averages(), Trainer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "averages": averages}
    parts |= {"scaler": scaler} if fault != "scaler not handed over" else {}
    parts |= {"schedule": schedule} if fault != "schedule not handed over" else {}
    training = rank.training(**parts)
    if fault == "betas changed" and is_later:
        optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    if fault == "decay changed" and is_later:
        optimizer.param_groups[0]["weight_decay"] = 0.1
    if fault == "layer frozen" and is_later:
        model[0].requires_grad_(False)
        for parameter in model[0].parameters():
            parameter.grad = None
    if fault == "bias frozen" and is_later:
        model[1].bias.requires_grad_(False)
    x = torch.arange(40.0).reshape(20, 2) / 40
    first: list[torch.Tensor] = []
    for batch in training.batches(samples=20, batch=2, epochs=2):
        if training.step == (100 if is_later else 10):
            return
        first.append(batch)
        fed = batch
        if is_later and fault == "the next samples":
            fed = (batch + 1) % 20
        elif is_later and fault == "the first batch for ever":
            fed = torch.tensor([0, 1])
        elif is_later and fault == "one of two twice":
            fed = batch[[0, 0]]
        elif is_later and fault == "in another order":
            fed = batch.flip(0)
        if fault != "gradients accumulated" or training.step % 2 == 0:
            optimizer.zero_grad()
        scaler.scale(model(x[fed]).square().mean()).backward()
        is_skipped = is_later and fault == "every second step" and training.step % 2
        is_skipped |= is_later and fault == "the first steps" and training.step < 16
        is_skipped |= fault == "gradients accumulated" and training.step % 2 == 0
        if not is_skipped:
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        if is_later and fault == "two steps":
            optimizer.step()
        averages.kept = training.step + 1
        averages.started = time.monotonic()
        if fault == "a count left out":
            averages.seen += 1
        if fault == "a mean left out":
            averages.mean += x[batch].mean(0)
        if fault == "a list left out":
            averages.last.append(float(training.step))
        if fault == "an average not handed over":
            trainer.ema.n_averaged += 1
        training.note(loss=1.0)


@pytest.mark.parametrize(
    ("fault", "row"),
    [
        ("", ""),
        ("gradients accumulated", ""),
        ("a count left out", "state_changed_by_load"),
        ("a mean left out", "state_changed_by_load"),
        ("a list left out", "state_changed_by_load"),
        ("betas changed", "state_changed_by_load"),
        ("decay changed", "state_changed_by_load"),
        ("scaler not handed over", "state_not_handed_over"),
        ("schedule not handed over", "state_not_handed_over"),
        ("an average not handed over", "state_not_handed_over"),
        ("the next samples", "other_samples_fed"),
        ("the first batch for ever", "other_samples_fed"),
        ("one of two twice", "other_samples_fed"),
        ("in another order", ""),
        ("every second step", "optimizer_steps_missed"),
        ("the first steps", "optimizer_steps_missed"),
        ("two steps", "optimizer_steps_missed"),
        ("layer frozen", "optimizer_steps_missed"),
        ("bias frozen", "optimizer_steps_missed"),
    ],
)
def test_what_a_generation_does_otherwise_than_those_before_is_beyond_a_row_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, row: str
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "checkpoints").mkdir()
    for generation in (0, 1):
        torch.manual_seed(0)
        train_otherwise(make_rank(tmp_path, generation), fault)
    _, measured = measure(CHANGED, History(read_events(tmp_path / "timeline.jsonl")))
    found = {m.key: m for m in measured}

    assert beyond(found) == ({row} if row else set())
    assert not row or found[row].facts[SAID]

"""A training that goes on in another generation, in the test's own process: one rank, no group."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from support.elastic_jobs import job_plan
from support.ranks import ENVIRONMENT
from support.timelines import JOB

from pytest_distbench.elastic import kill
from pytest_distbench.elastic.worker.training import ElasticRank, Training, count_generation
from pytest_distbench.errors import RecordingError
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import read_events
from pytest_distbench.worker.load import process_began

MakeRank = Callable[..., ElasticRank]


@pytest.fixture
def make_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRank:
    """Generation by generation, over one folder of checkpoints."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "checkpoints").mkdir()

    def make(generation: int = 0, *, ends_after: int | None = None) -> ElasticRank:
        job = replace(JOB, checkpoint_every=4, ends_after=ends_after)
        return ElasticRank(job_plan(tmp_path, job, backend="fake"), 1, generation)

    return make


def train(rank: ElasticRank, *, stop_after: int | None = None, **more: object) -> tuple[Training, list[int]]:
    """Count steps in a model of one number; returns the samples it was given."""
    model = torch.nn.Linear(1, 1)
    if rank.generation == 0:
        torch.nn.init.zeros_(model.weight)
    training = rank.training(model=model, **more)
    seen: list[int] = []
    for batch in training.batches(samples=10, batch=3, epochs=2):
        if stop_after is not None and training.step == stop_after:
            break
        with torch.no_grad():
            model.weight += 1
        training.note(loss=1 / (training.step + 1))
        seen += batch.tolist()
    assert model.weight.detach().item() == training.step
    return training, seen


def test_each_epoch_has_every_sample_once_and_the_rest_goes_to_the_last_step(make_rank: MakeRank) -> None:
    rank = make_rank()
    training, seen = train(rank)
    batches = [line for line in read_events(timeline(rank)) if line.what == "batch"]

    assert (training.step, training.epoch, training.position) == (6, 2, 0)
    assert (sorted(seen[:10]), sorted(seen[10:])) == (list(range(10)), list(range(10)))
    assert [(b.step, b.epoch, len(b.samples)) for b in batches] == [
        (1, 0, 3), (2, 0, 3), (3, 0, 4), (4, 1, 3), (5, 1, 3), (6, 1, 4),
    ]  # fmt: skip


def timeline(rank: ElasticRank) -> Path:
    return rank._files.timeline


def test_the_next_generation_goes_on_behind_the_checkpoint_with_model_and_place(make_rank: MakeRank) -> None:
    _, whole = train(make_rank(0))
    for path in (timeline(make_rank()).parent / "checkpoints").iterdir():
        path.unlink()
    _, before = train(make_rank(0), stop_after=5)
    training, after = train(make_rank(1))

    assert before + after[3:] == whole
    assert (training.step, training.epoch) == (6, 2)


def test_the_timeline_has_steps_losses_and_checkpoints_by_slot_and_generation(make_rank: MakeRank) -> None:
    rank = make_rank(3)
    rank.progress("hello")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training = rank.training(model=model, optimizer=optimizer)
    for _ in training.batches(samples=10, batch=5, epochs=2):
        training.note(loss=torch.tensor(0.25))
    lines = read_events(timeline(rank))
    steps = [line for line in lines if line.what == "stepped"]

    assert [line.text for line in lines if line.what == "progress"] == ["hello"]
    found = [(s.slot, s.generation, s.step, s.samples, s.loss, s.lr) for s in steps[:2]]
    assert found == [(1, 3, 1, 5, 0.25, 0.5), (1, 3, 2, 5, 0.25, 0.5)]
    assert [line.step for line in lines if line.what == "saved"] == [4]


@pytest.mark.parametrize(("last", "steps"), [(1, 3), (3, 3), (4, 6), (None, 12)])
def test_a_training_ends_with_the_epoch_of_the_step_that_the_plan_names(
    make_rank: MakeRank, last: int | None, steps: int
) -> None:
    rank = make_rank(ends_after=10)
    if last is not None:
        (timeline(rank).parent / "last_step").write_text(f"{last}")
    training = rank.training()
    for _ in training.batches(samples=10, batch=3, epochs=4):
        pass
    asked = [line for line in read_events(timeline(rank)) if line.what == "wanted"]

    assert training.step == steps
    assert (asked[-1].epochs, asked[-1].is_end) == (steps // 3, last is not None)


def test_who_holds_must_write_a_checkpoint_there(tmp_path: Path, make_rank: MakeRank) -> None:
    make_rank()  # for its surroundings
    job = replace(JOB, hold=True, plan=[kill(at_step=20)])
    rank = ElasticRank(job_plan(tmp_path, job, backend="fake"), 0, 0)

    with pytest.raises(RecordingError, match=r"behind the checkpoint of step 20, and with checkpoint_every=8 there is"):
        rank.training(checkpoint_every=8)


def test_a_body_that_keeps_other_parts_than_the_checkpoint_has_is_an_error(make_rank: MakeRank) -> None:
    train(make_rank(0))

    text = "the checkpoint of step 4 has model, and this generation keeps model, more"
    with pytest.raises(RecordingError, match=text):
        train(make_rank(1), more=torch.nn.Linear(1, 1))
    text = "(?s)model does not take what the checkpoint of step 4 has .*size mismatch"
    with pytest.raises(RecordingError, match=text):
        make_rank(1).training(model=torch.nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda rank: rank.training(model=3), "wanted model to have state_dict and load_state_dict"),
        (lambda rank: rank.training(checkpoint_every=0), "checkpoint_every"),
        (lambda rank: rank.training() and rank.training(), "was called before"),
        (lambda rank: rank.training().batches(samples=1, batch=1, epochs=1), "samples"),
        (lambda rank: rank.training().batches(samples=9, batch=0, epochs=1), "batch"),
    ],
)
def test_what_cannot_be_kept_or_given_is_refused(
    make_rank: MakeRank, misuse: Callable[[ElasticRank], object], message: str
) -> None:
    with pytest.raises(RecordingError, match=message):
        misuse(make_rank())


def test_a_loss_that_is_not_finite_ends_the_training(make_rank: MakeRank) -> None:
    """A number at once; a tensor, whose device may still compute it, when the step is over."""
    training = make_rank().training()
    steps = training.batches(samples=10, batch=5, epochs=1)
    next(steps)
    text = r"training\.note\(loss=...\): the loss is nan at step 1: it diverged"
    with pytest.raises(RecordingError, match=text):
        training.note(loss=float("nan"))
    training.note(loss=torch.tensor(float("nan")))

    with pytest.raises(RecordingError, match=text):
        next(steps)


def test_indices_are_where_the_samples_are_and_the_timeline_has_them(make_rank: MakeRank) -> None:
    rank = make_rank()
    rank.device = torch.device("meta")
    rank.synchronize = lambda: None  # type: ignore[method-assign]
    first = next(rank.training().batches(samples=10, batch=3, epochs=2))
    on_cpu = next(make_rank(1).training().batches(samples=10, batch=3, epochs=2, device="cpu"))
    noted = [line.samples for line in read_events(timeline(rank)) if line.what == "batch"]

    assert (first.device.type, first.shape) == ("meta", (3,))
    assert noted == [on_cpu.tolist()] * 2


def test_a_damaged_checkpoint_is_skipped_and_reported(make_rank: MakeRank) -> None:
    train(make_rank(0))
    folder = timeline(make_rank()).parent / "checkpoints"
    (folder / "step5.pt").write_bytes((folder / "step4.pt").read_bytes()[:-1])
    rank = make_rank(1)
    train(rank)
    [_, loaded] = [line for line in read_events(timeline(rank)) if line.what == "loaded"]

    assert (loaded.step, loaded.torn) == (4, ["step5.pt"])


@pytest.mark.parametrize("value", [torch.ones(3), "x", [1], 1j, torch.tensor(True), True])
@pytest.mark.parametrize("name", ["loss", "accuracy", "top5"])
def test_what_is_noted_must_be_a_number(make_rank: MakeRank, name: str, value: object) -> None:
    training = make_rank().training()
    next(training.batches(samples=10, batch=5, epochs=1))

    with pytest.raises(RecordingError, match=rf"training\.note\(...\): wanted {name} to be a number or a tensor of"):
        training.note(**{name: value})  # type: ignore[arg-type]


def test_generations_and_processes_have_a_number_and_a_beginning(tmp_path: Path) -> None:
    assert [count_generation(tmp_path) for _ in range(3)] == [0, 1, 2]

    age_s = time.time() - psutil.Process().create_time()
    assert time.monotonic() - process_began() == pytest.approx(age_s, abs=1.0)

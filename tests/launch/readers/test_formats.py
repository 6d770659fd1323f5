"""The formats that scripts write numbers in, a reader each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.formats import Place, note_before, read_tensorboard
from pytest_distbench.read import jsonl, tensorboard
from pytest_distbench.records.record import replace

pytestmark = pytest.mark.xdist_group("test_tensorboard")  # another worker would import torch to write the files again

WRITES = """
import sys
from torch.utils.tensorboard import SummaryWriter
for part in (1, 0):
    with SummaryWriter(f"{sys.argv[1]}/part{part}") as writer:
        for step in range(3):
            writer.add_scalar("train/loss", 4.0 - 3 * part - step, 3 * part + step)
        writer.add_text("note", "no number")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    subprocess.run([sys.executable, "-W", "ignore", "-c", WRITES, str(folder)], check=True)  # it imports torch
    return folder


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_a_tag_is_read_in_the_order_of_its_steps(runs: Path, tmp_path: Path) -> None:
    found = read_tensorboard(tensorboard(runs, "train/loss"), Place(make_plan(tmp_path), 0))

    assert [float(f.text) for f in found] == [4.0, 3.0, 2.0, 1.0, 0.0, -1.0]
    assert found[3].where.startswith("step 3 of events.out")
    assert found[3].beside == "step 3"


@pytest.mark.filterwarnings("ignore")
def test_a_tag_that_is_not_there_is_told_with_those_that_are(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ReadingError, match="no tag 'loss'; there are train/loss"):
        read_tensorboard(tensorboard(runs, "loss"), Place(make_plan(tmp_path), 0))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReadingError, match="has no event file"):
        read_tensorboard(tensorboard("empty", "loss"), Place(make_plan(tmp_path), 0))


@pytest.mark.filterwarnings("ignore")
def test_event_files_of_earlier_runs_are_not_read(runs: Path, tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    for file in (runs / "part0").iterdir():
        os.utime(file, (1.0, 1.0))
    plan.files.began.touch()
    for file in (runs / "part1").iterdir():
        os.utime(file)

    assert [float(f.text) for f in read_tensorboard(tensorboard(runs, "train/loss"), Place(plan, 0))] == [
        1.0,
        0.0,
        -1.0,
    ]
    with pytest.raises(ReadingError, match="has no event file, but for 1 of earlier runs"):
        read_tensorboard(tensorboard(runs / "part0", "train/loss"), Place(plan, 0))


@pytest.mark.filterwarnings("ignore")
def test_a_tag_that_is_no_scalar_is_told(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ReadingError, match="the tag 'note/text_summary' is no scalar: it holds 1 elements of object"):
        read_tensorboard(tensorboard(runs, "note/text_summary"), Place(make_plan(tmp_path), 0))


def test_without_the_package_its_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)

    with pytest.raises(ReadingError, match="pip install tensorboard"):
        read_tensorboard(tensorboard(tmp_path, "loss"), Place(make_plan(tmp_path), 0))


def test_a_file_that_a_launch_appends_to_is_an_earlier_runs_too(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"loss": 1}\n')
    plan = replace(make_plan(tmp_path), read={"loss": jsonl("log.jsonl", "loss")})
    note_before(plan)
    with log.open("a") as file:
        file.write('{"loss": 9}\n')

    with pytest.raises(ReadingError, match="before this launch, which has appended to it: its first 12 bytes"):
        Place(plan, 0).path("log.jsonl")


def test_a_file_that_is_written_anew_is_the_launchs(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"loss": 1}\n')
    plan = replace(make_plan(tmp_path), read={"loss": jsonl("log.jsonl", "loss")})
    note_before(plan)
    log.write_text('{"loss": 2}\n{"loss": 3}\n')

    assert Place(plan, 0).path("log.jsonl") == log


def test_where_nothing_lay_nothing_is_noted(tmp_path: Path) -> None:
    plan = replace(make_plan(tmp_path), read={"loss": jsonl("log.jsonl", "loss")})
    note_before(plan)

    assert not plan.files.before.exists()

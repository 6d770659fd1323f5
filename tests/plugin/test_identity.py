"""What of a test's parameters defines the workload."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pytest_distbench.plugin.identity import Places, leave_out_meeting


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/project/conf/a.yaml", "{rootdir}/conf/a.yaml"),
        ("--config=/home/me/project/conf/a.yaml", "--config={rootdir}/conf/a.yaml"),
        ("/mnt/fast/imagenet", "{path}/imagenet"),
        ("--data=/scratch/job-17/imagenet/", "--data={path}/imagenet"),
        ("hydra.run.dir=/a/b,c=/d/e", "hydra.run.dir={path}/b,c={path}/e"),
        ("TEMPORARY/pytest-of-me/pytest-12/test_it0", "{path}"),
        ("TEMPORARY/pytest-of-me/pytest-12/popen-gw1/test_it0/out", "{path}/out"),
        ("--output_dir=TEMPORARY/tmpab12cd", "--output_dir={path}"),
        ("file:///a/b/model.bin", "file://{path}/model.bin"),
        ("file.txt", "file.txt"),
        ("models/tiny", "models/tiny"),
        ("./a/b", "./a/b"),
        ("https://host/a/b", "https://host/a/b"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("1/2/3", "1/2/3"),
        ("/", "/"),
        ("{launch_dir}/out", "{launch_dir}/out"),
    ],
)
def test_places_of_a_machine_or_a_run_are_left_out(given: str, kept: str) -> None:
    given = given.replace("TEMPORARY", tempfile.gettempdir())

    assert Places(Path("/home/me/project")).leave_out({"a": [given], "n": 3}) == {"a": [kept], "n": 3}


def test_tests_below_the_temporary_folder_are_told_from_their_root() -> None:
    root = Path(tempfile.gettempdir(), "project")

    assert Places(root).leave_out(f"{root}/data/train.bin") == "{rootdir}/data/train.bin"


def test_a_folder_for_temporary_ones_may_lie_below_the_root() -> None:
    places = Places(Path("/project"), Path("/project/made"))

    assert places.leave_out("/project/made/test_it0/out") == "{path}/out"
    assert places.leave_out("/project/made/test_it0") == "{path}"
    assert places.leave_out("/project/data/x") == "{rootdir}/data/x"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--master-port", "29501", "--lr", "3"], ["--master-port", "{meeting}", "--lr", "3"]),
        (
            ["--master_port=29501", "--rdzv-endpoint=127.0.0.1:0"],
            ["--master_port={meeting}", "--rdzv-endpoint={meeting}"],
        ),
        (["--main_process_port", "1", "--export", "2"], ["--main_process_port", "{meeting}", "--export", "2"]),
        (["--port"], ["--port"]),
        (["--port", "--port", "3"], ["--port", "{meeting}", "3"]),
    ],
)
def test_where_processes_meet_is_no_part_of_the_workload(words: list[str], kept: list[str]) -> None:
    assert leave_out_meeting(words) == kept

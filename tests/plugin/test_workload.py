"""What a call of ``distbench.run`` wants to have run: found, checked, and told apart from others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_distbench.errors import BodyError
from pytest_distbench.plugin.workload import json_able, leave_out_meeting, leave_out_places, locate, locate_module
from pytest_distbench.records.plan import BodyReference


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

    assert leave_out_places({"a": [given], "n": 3}, Path("/home/me/project")) == {"a": [kept], "n": 3}


def test_names_of_functions_and_folders_are_taken_from_their_root() -> None:
    root = Path(tempfile.gettempdir(), "project")
    assert leave_out_places(f"{root}/data/train.bin", root) == "{rootdir}/data/train.bin"

    places = Path("/project"), Path("/project/made")
    assert leave_out_places("/project/made/test_it0/out", *places) == "{path}/out"
    assert leave_out_places("/project/made/test_it0", *places) == "{path}"
    assert leave_out_places("/project/data/x", *places) == "{rootdir}/data/x"

    reference = locate(body, test_folder=Path())
    assert (reference.file, reference.function, reference.module) == (__file__, "body", __name__)
    assert reference.is_rewritten
    assert locate(Bodies.inner, test_folder=Path()).function == "Bodies.inner"
    assert locate(Inherited.of_class, test_folder=Path()).function == "Inherited.of_class"

    assert json_able({"sizes": (1, 2), "at": {"x": None}}) == {"sizes": [1, 2], "at": {"x": None}}


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


def body(rank: object) -> None:
    """At module level."""


async def never_runs(rank: object) -> None:
    """Calling it makes a coroutine."""


def yields(rank: object) -> Iterator[int]:
    """Calling it makes a generator."""
    yield 1


class Bodies:
    """Holds one."""

    @staticmethod
    def inner(rank: object) -> None:
        """A body in a class."""

    @classmethod
    def of_class(cls, rank: object) -> None:
        """Bound to its class."""

    def of_object(self, rank: object) -> None:
        """Bound to an object."""


class Inherited(Bodies):
    """Has the methods of another."""


def test_a_method_is_handed_over_with_what_its_object_has_as_far_as_json_holds_it() -> None:
    made = Inherited()
    vars(made).update(rate=0.1, folder=Path("/a"), model=object())
    reference = locate(made.of_object, test_folder=Path())

    assert (reference.file, reference.function) == (__file__, "Inherited.of_object")
    assert reference.instance == {"rate": 0.1, "folder": "/a"}
    assert reference.left_out == ["model"]


def test_a_module_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "made_up_package"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "train.py", "inner/__init__.py", "inner/__main__.py"):
        (package / file).write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert locate_module("made_up_package.train") == BodyReference(
        file=f"{package}/train.py", module="made_up_package.train"
    )
    assert locate_module("made_up_package.inner").file == f"{package}/inner/__main__.py"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere.py", "there is no file"),
        ("x" * 5000, "there is no file"),
        (42, "is a int; wanted a function at module level"),
        (len, "wanted a function at module level"),
        (lambda rank: None, "is defined inside a function"),
        (never_runs, "body never_runs is a coroutine or generator function, so a call runs nothing"),
        (yields, "body yields is a coroutine or generator function"),
    ],
)
def test_what_ranks_cannot_import_is_refused(given: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(BodyError, match=said):
        locate(given, test_folder=tmp_path)
    with pytest.raises(BodyError, match=r"^train "):
        locate(given, test_folder=tmp_path, argument="train")


def test_a_file_that_is_above_the_folder_of_the_test_is_offered(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    folder = tmp_path / "suites" / "deep"
    folder.mkdir(parents=True)

    with pytest.raises(BodyError, match=r"there is no file .*did you mean '\.\./\.\./train\.py'\?$"):
        locate("train.py", test_folder=folder)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({1: "a"}, "the key 1 is no text"),
        ({"x": {1: "a"}}, r"params\['x'\]: the key 1 is no text"),
        ({"x": [{"y": ({None: 1},)}]}, r"params\['x'\]: the key None is no text"),
        ({"x": {1, 2}}, r"params\['x'\] is not JSON-able"),
        ({"x": [float("inf")]}, r"params\['x'\] is not JSON-able"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(params: dict[str, object], said: str) -> None:
    with pytest.raises(BodyError, match=said):
        json_able(params)


def test_a_module_is_looked_for_where_it_is_run(tmp_path: Path) -> None:
    (tmp_path / "made_up_beside.py").touch()

    assert locate_module("made_up_beside", str(tmp_path)).file == f"{tmp_path}/made_up_beside.py"
    with pytest.raises(BodyError, match="there is no such module"):
        locate_module("made_up_beside")


@pytest.mark.parametrize("name", ["made_up_nowhere", "json.nowhere", "json", "a b", "", 3])
def test_a_module_that_cannot_be_run_is_refused(name: object) -> None:
    with pytest.raises(BodyError, match="module="):
        locate_module(name)


def test_a_text_names_a_file_next_to_the_test_with_or_without_a_function(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    whole = locate("train.py", test_folder=tmp_path)

    assert (whole.file, whole.function) == (f"{tmp_path}/train.py", "")
    assert whole.is_script
    assert locate(tmp_path / "train.py", test_folder=Path("/")).file == f"{tmp_path}/train.py"
    assert locate("train.py::main", test_folder=tmp_path).function == "main"

"""The other side of an A/B comparison: another revision of the repository, another Python, or both."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.projects import EXIT_USAGE, RECORDER, TEST, Project, run
from support.repositories import git

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.starters.parent import read_at_start
from pytest_distbench.records.launch import ErrorReport, LaunchRecord, RankFate
from pytest_distbench.run.against import Variant, find_links, find_missed, ignored, link, outside
from pytest_distbench.run.directory import Revision


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A working tree with data and a generated module."""
    for path in ("repo/data/tokens/train.bin", "repo/pkg/_version.py", "tree/pkg/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path / "repo"


@pytest.fixture
def tree(root: Path) -> Path:
    return root.parent / "tree"


def test_what_the_working_tree_has_is_linked(root: Path, tree: Path) -> None:
    link(find_links(["data/", "pkg/_version.py"], folder=root, root=root), root=root, tree=tree)

    assert (tree / "data" / "tokens" / "train.bin").read_text() == "repo/data/tokens/train.bin"
    assert (tree / "pkg" / "_version.py").is_symlink()


@pytest.mark.parametrize("path", ["nowhere", "../tree", "/", "."])
def test_a_path_that_cannot_be_linked_is_refused(path: str, root: Path) -> None:
    with pytest.raises(ConfigurationError, match="distbench_against_link: "):
        find_links([path], folder=root, root=root)


TRAIN = "data/tokens/train.bin"


@pytest.mark.parametrize(
    ("kind", "message", "missed"),
    [
        (
            "FileNotFoundError",
            "[Errno 2] No such file or directory: 'data/tokens/train.bin'",
            (TRAIN, "data"),
        ),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '{tree}/data/tokens'", ("data/tokens", "data")),
        ("RuntimeError", "file 'data/tokens/train.bin' does not exist", (TRAIN, "data")),
        ("ModuleNotFoundError", "No module named 'pkg._version'", ("pkg/_version.py", "pkg/_version.py")),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'nowhere/at/all'", None),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/etc/nowhere'", None),
        ("ValueError", "'data/tokens/train.bin' is damaged", None),
    ],
)
def test_what_is_missed_and_is_in_the_working_tree_is_found_with_its_topmost_folder(
    kind: str, message: str, missed: tuple[str, str] | None, root: Path, tree: Path
) -> None:
    error = ErrorReport(kind=kind, message=message.format(tree=tree), traceback="", raised_at=0.0)
    fate = RankFate(rank=0, outcome="failed", phase="body", how=f"raised {kind}", error=error)
    failed = LaunchRecord(index=0, outcome="failed", wall_s=1.0, fates=[fate])

    assert find_missed(failed, root=root, tree=tree, folder=tree) == (missed and tuple(map(Path, missed)))


def is_clean(project: pytest.Pytester) -> bool:
    """No worktree, no note of one, and nothing changed."""
    return (
        len(git(project.path, "worktree", "list").splitlines()) == 1
        and not list((project.path / "tmp").glob("distbench-*/reference*"))
        and git(project.path, "status", "--porcelain") == ""
    )


def test_an_unchanged_tree_is_green_needs_no_baseline_and_leaves_nothing(committed: pytest.Pytester) -> None:
    result = run(committed, "--distbench-against", "HEAD", "-v")

    result.stdout.fnmatch_lines(
        [
            "distbench: interleaved A/B against HEAD (*); stored baselines are not used",
            "*metric*candidate*baseline*change*threshold*detects from*pairs*",
            "*step*20 ms*20 ms*+0.0 %*+5%*+5.0%*5*",
            "*count*7*7*exact*5*",
            "* metric* (* unchanged), 10 launch* in *",
            "[?] HEAD (*) is what is checked out here, and no tracked file differs: it was compared with itself, *",
        ]
    )
    assert result.ret == 0
    assert is_clean(committed)


def test_a_slower_tree_fails_and_the_failure_names_what_it_was_compared_with(
    committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.1")
    result = run(committed, "--distbench-against", "HEAD")

    told = ["step +10.0 % against HEAD (*) (threshold +5%)", "!  step *", "  1 more unchanged (-v shows all)"]
    result.stdout.fnmatch_lines([*told, "reproduce  pytest *test_step?ws2?* --distbench-against HEAD"])
    assert "--distbench-update" not in result.stdout.str()
    assert result.ret == 1
    assert is_clean(committed)


@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        ("BodyError:no body", {"passed": 1}, "*the test does not exist in HEAD (*"),
        ("broken there", {"failed": 1}, "*in HEAD (*): *ValueError*"),
    ],
)
def test_a_body_that_the_revision_lacks_is_missing_and_one_that_fails_there_fails(
    committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, error: str, outcome: dict[str, int], said: str
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_REFERENCE_ERROR", error)
    result = run(committed, "--distbench-against", "HEAD")

    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines([said])
    assert is_clean(committed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--distbench-against", "nowhere"], "*has no commit of that name*git branch -a*"),
        (["--distbench-against=--help"], "*has no commit of that name*"),
        (["--distbench-against", "HEAD", "--distbench-update"], "*leave out --distbench-update*"),
        (["--distbench-against", "HEAD", "--distbench-prune"], "*leave out --distbench-prune*"),
        (
            ["--distbench-against", "HEAD", "--distbench-launcher", "torchrun"],
            "*which the torchrun launcher cannot; take one of warm, *stand-in*",
        ),
        (["--distbench-against", "HEAD", "--distbench-launches", "2"], "*needs at least 3 pairs*"),
        (["--distbench-against", "HEAD", "--distbench-launches=9:5"], "*'9:5'; wanted N, N:MAX or :MAX,*"),
        (["--distbench-against", ""], "*--distbench-against (ini: *) is empty: is the variable it comes from set?*"),
        (["-o", "distbench_against_python="], "*is empty: is the variable it comes from set?*"),
        (["-o", "distbench_against_python=tmp"], "*that is a folder; give the executable*"),
        (["-o", "distbench_against_python=nowhere"], "*cannot run *nowhere: No such file*"),
        (["-o", "distbench_against_python=test_it.py"], "*cannot run *: Permission denied*"),
    ],
)
def test_what_cannot_be_compared_with_is_refused_before_anything_runs(
    committed: pytest.Pytester, arguments: list[str], said: str
) -> None:
    result = run(committed, *arguments)

    result.stderr.fnmatch_lines([said])
    assert result.ret == EXIT_USAGE


def test_modules_of_the_repository_are_not_shared_by_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_project.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    revision = Revision("HEAD", "0" * 40, tmp_path)
    variant = Variant(revision=revision, interpreter=None)

    assert outside(["of_the_project", "json.decoder", "msgspec"], variant) == ("json.decoder", "msgspec")


def test_what_the_revision_has_is_not_covered(root: Path, tree: Path) -> None:
    with pytest.raises(LauncherError, match="git tracks pkg in the other revision"):
        link([Path("pkg")], root=root, tree=tree)


def test_outside_a_repository_a_revision_is_refused(project: Project) -> None:
    result = run(project(TEST), "--distbench-against", "HEAD")

    result.stderr.fnmatch_lines(["*git finds no working tree at *: fatal: not a git repository*"])
    assert result.ret == EXIT_USAGE


def test_the_tolerance_of_comparisons_is_its_own(committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.1")

    assert run(committed, "--distbench-against", "HEAD", "--distbench-tolerance", "1").ret == 1
    assert run(committed, "--distbench-against", "HEAD", "-o", "distbench_against_tolerance=0.2").ret == 0


@pytest.mark.parametrize("given", [None, "/of/the/user", ""])
def test_each_side_builds_extensions_in_a_folder_of_its_own_unless_the_user_has_said_where(
    committed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    if given is not None:
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", given)
    with (committed.path / "conftest.py").open("a") as file:
        file.write(RECORDER)
    run(committed, "--distbench-against", "HEAD", "--distbench-launcher=recorder")

    plans = [json.loads(line) for line in (committed.path / "plans-seen").read_text().splitlines()]
    found = {bool(plan["tree"]): plan["variables"].get("TORCH_EXTENSIONS_DIR") for plan in plans}
    there = found[True] if given is not None else Path(found[True]).name.partition("-")[0]
    assert (found[False], there) == (given, "extensions" if given is None else given)


def test_a_folder_that_differs_between_sides_needs_no_new_parent_process() -> None:
    assert read_at_start({"TORCH_EXTENSIONS_DIR": "a", "TORCH_HOME": "b"}) == {"TORCH_HOME": "b"}


def test_what_was_read_and_git_ignores_is_named_by_its_topmost_folder(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    tracked, others = (
        ["src/model.py", "old.txt"],
        ["data/shards/0.bin", "data/shards/1.bin", "src/local.cfg", ".cache/x"],
    )
    names = [*tracked, *others]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("data/\n*.cfg\n.cache/\n")
    (tmp_path / "new.py").touch()  # to be committed, with the baseline
    git(tmp_path, "add", *tracked)
    read = [str(tmp_path / name) for name in [*names, "src", "new.py", "nowhere/at/all"]]

    assert ignored(tmp_path, read, time.time() + 60) == ["data", "src/local.cfg"]
    assert ignored(tmp_path, read, time.time() - 60) == [], "made by the run itself"

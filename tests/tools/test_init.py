"""distbench init: what it puts into a repository, and what it leaves as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from ruamel.yaml import YAML
from support.launching import RunInside
from support.processes import LIMIT_S
from support.repositories import git

from pytest_distbench.commands.cli import main
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.tools import init as init_module

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
WORKFLOWS = [".github/workflows/distbench.yml", ".github/workflows/distbench-baselines.yml"]
FILES = ["suites/test_step.py", "conftest.py", "baselines/README.md", *WORKFLOWS]
OF_RUNS = ["distbench-out/", "/run.html", "/run.json", "/runs/"]
IGNORED = ["__pycache__/", ".benchmarks/", ".distbench/", ".pytest_cache/", *OF_RUNS]


def init(capsys: pytest.CaptureFixture[str], folder: Path, *options: str, code: int = 0) -> list[str]:
    """What it prints; of an error that."""
    assert main(["init", str(folder), *options]) == code
    told = capsys.readouterr()
    return (told.err if code else told.out).splitlines()


def give_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    visible = [None] * number
    monkeypatch.setattr(init_module.gpus, "read_gpus", lambda _: Gpus(visible=visible))  # type: ignore[arg-type]


def install_from(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    """Pretend that this package was installed from there, or from an index if that is None."""

    class Installed:
        def read_text(self, name: str) -> str | None:
            return None if origin is None else json.dumps(origin)

    stand_in = SimpleNamespace(distribution=lambda _: Installed(), PackageNotFoundError=metadata.PackageNotFoundError)
    monkeypatch.setattr(init_module, "metadata", stand_in)


GATE = "pytest suites/ --world-size 2 --distbench-backend=fake"
OF_GATE = "baselines/any/suites/test_step/test_train/ws2.fake.warm.json"


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str]]:
    """What it records for the gate: here it notes that, and writes a file."""
    found: list[tuple[Path, str]] = []

    def record(folder: Path, gate: str) -> bool:
        found.append((folder, gate))
        path = folder / OF_GATE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return True

    monkeypatch.setattr(init_module, "record", record)
    return found


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "-q", "-b", "trunk")
    give_gpus(monkeypatch, 0)
    install_from(monkeypatch, None)
    return tmp_path


def test_it_writes_a_suite_a_workflow_and_a_store_and_says_what_comes_next(
    repository: Path, capsys: pytest.CaptureFixture[str], recorded: list[tuple[Path, str]]
) -> None:
    lines = init(capsys, repository)

    assert [line.split() for line in lines[:5]] == [["wrote", path] for path in FILES]
    assert all((repository / path).is_file() for path in FILES)
    assert (repository / ".gitignore").read_text().splitlines() == IGNORED
    assert recorded == [(repository, GATE)]
    assert lines[5:13] == [
        f"added  .gitignore: {', '.join(IGNORED)}",
        f"recording what its gate compares with: {GATE}",
        f"wrote  {OF_GATE}",
        "",
        "next:",
        f"  cd {repository} && pytest suites/ --world-size 2 --distbench-update=new",
        "  git add suites conftest.py baselines .github .gitignore && git commit -m 'Tests of performance'",
        "  pytest suites/ --world-size 2",
    ]
    workflow = (repository / WORKFLOWS[0]).read_text()
    assert 'branches: ["trunk"]' in workflow
    assert 'DISTBENCH: "pytest-distbench==0.1.0", ' in workflow
    assert re.search("<[A-Z_]+>|INCLUDE", workflow) is None


@pytest.mark.parametrize(
    ("files", "install"),
    [([], ""), (["pyproject.toml"], " -e ."), (["requirements.txt", "setup.py"], " -r requirements.txt -e .")],
)
def test_what_the_repository_needs_is_installed_too(repository: Path, files: Sequence[str], install: str) -> None:
    for name in files:
        (repository / name).touch()

    assert f'"$TORCH" "$DISTBENCH"{install}\n' in init_module.find_out(repository).fill("install.yml.txt")


def test_where_this_package_came_from_is_where_runners_get_it(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = "pytest-distbench @ "
    install_from(monkeypatch, {"url": "https://git.example/d", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert init_module.find_out(repository).requirement == f"{wanted}git+https://git.example/d@abc"
    install_from(monkeypatch, {"url": "https://a.example/d-1-py3-none-any.whl", "archive_info": {}})
    assert init_module.find_out(repository).requirement == f"{wanted}https://a.example/d-1-py3-none-any.whl"
    install_from(monkeypatch, {"url": "file:///home/me/distbench", "dir_info": {"editable": True}})
    lines = init(capsys, repository)
    text = "pytest-distbench==0.1.0 was not installed from an index. Unless runners find it on one,"
    begin = lines.index(text)

    for line, path in zip(lines[begin + 2 : begin + 4], WORKFLOWS, strict=True):
        place, number = line.split(":")
        assert place == f"  {path}"
        assert "DISTBENCH: " in (repository / path).read_text().splitlines()[int(number) - 1]
    assert text in init(capsys, repository)  # until another one stands there


@pytest.mark.parametrize("page", ["README.md", "docs/ci.md"])
def test_what_pages_have_pytest_run_is_in_a_repository_of_others(page: str) -> None:
    told = re.findall(r"(?:pytest |suites: )(suites[^\s`]*)", (ROOT / page).read_text())

    assert told
    assert [path for path in told if not any(file.startswith(path) for file in FILES)] == []


def test_the_command_is_printed_if_the_gate_cannot_be_recorded(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_module, "record", lambda folder, gate: False)
    update = "--distbench-update=new"
    lines = init(capsys, repository)

    assert f"  cd {repository} && {GATE} {update} && pytest suites/ --world-size 2 {update}" in lines


def test_an_existing_suite_is_not_run_and_the_command_is_printed(
    repository: Path, capsys: pytest.CaptureFixture[str], recorded: list[tuple[Path, str]]
) -> None:
    (repository / "suites").mkdir()
    (repository / "suites/test_step.py").touch()
    lines = init(capsys, repository)

    assert recorded == []
    assert any(f"{GATE} --distbench-update=new" in line for line in lines)


def test_without_a_repository_one_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_gpus(monkeypatch, 0)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    lines = init(capsys, tmp_path)

    assert f"  cd {tmp_path} && git init && pytest suites/ --world-size 2 --distbench-update=new" in lines


def test_a_place_where_it_cannot_begin_is_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "below").mkdir()
    (repository / "file").touch()

    assert "is not a folder: give the root of your repository" in init(capsys, repository / "file", code=2)[0]
    assert f"is inside the repository {repository}" in init(capsys, repository / "below", code=2)[0]
    (repository / "suites").touch()
    assert "move what is in its place, and run this again" in init(capsys, repository, code=2)[0]
    (repository / "suites").unlink()
    (repository / ".gitignore").mkdir()
    assert "move what is in its place, and run this again" in init(capsys, repository, code=2)[0]


@pytest.mark.parametrize("number", [0, 4])
def test_a_workflow_that_it_writes_has_no_fault(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    give_gpus(monkeypatch, number)
    init(capsys, repository)
    for command in (
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        ["zizmor", "--offline", "--no-progress", "--persona=auditor", ".github/workflows"],
    ):
        done = subprocess.run(
            [BIN / command[0], *command[1:]], cwd=repository, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spawn
@pytest.mark.timeout(LIMIT_S)
def test_what_it_writes_is_recorded_at_once_and_red_when_its_step_does_more(
    pytester: pytest.Pytester,
    run_inside: RunInside,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give_gpus(monkeypatch, 0)
    init(capsys, pytester.path)
    few = ("--world-size", "2", "--distbench-confirm=off", "--distbench-launches=2")
    suite = pytester.path / "suites" / "test_step.py"
    suite.write_text(suite.read_text().replace("0.15", "5.0"))  # the noise of this machine is not what is tested
    run_inside("suites", *few, "--distbench-update=new").assert_outcomes(passed=2)
    suite.write_text(suite.read_text().replace("range(4) for layer", "range(5) for layer"))

    run_inside("suites", *few).assert_outcomes(passed=1, failed=1)


def test_what_is_there_stays_as_it_is(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "conftest.py").write_text("mine\n")
    (repository / "baselines").mkdir()
    (repository / ".gitignore").write_text("/.distbench\n__pycache__\n*.pyc")
    first, second = init(capsys, repository), init(capsys, repository)

    assert [line.split()[0] for line in first[:6]] == ["wrote", "kept", "wrote", "wrote", "wrote", "added"]
    assert [line.split()[0] for line in second[:6]] == ["kept"] * 6
    assert (repository / "conftest.py").read_text() == "mine\n"
    ignored = ["/.distbench", "__pycache__", "*.pyc", ".benchmarks/", ".pytest_cache/", *OF_RUNS]
    assert (repository / ".gitignore").read_text().splitlines() == ignored


@pytest.mark.parametrize(
    ("old", "between", "end"), [(b"a\r\n!.distbench/\r\n", b"", b"\r\n"), (b"\xe9\n.distbench", b"\n", b"\n")]
)
def test_what_git_ignores_is_added_to_and_no_byte_of_it_changes(
    repository: Path, capsys: pytest.CaptureFixture[str], old: bytes, between: bytes, end: bytes
) -> None:
    (repository / ".gitignore").write_bytes(old)
    init(capsys, repository)
    added = ["__pycache__/", ".benchmarks/", ".pytest_cache/", *OF_RUNS]

    assert (repository / ".gitignore").read_bytes() == old + between + b"".join(x.encode() + end for x in added)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\ndistbench_baselines = perf/base\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\ndistbench_baselines = "perf/base/"\n'),
    ],
)
def test_baselines_are_where_the_ini_file_says_and_not_ignored(
    repository: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    (repository / name).write_text(text)
    (repository / ".gitignore").write_text("base/\n")
    lines = init(capsys, repository)

    assert (repository / "perf/base/README.md").is_file()
    assert ".gitignore has perf/base: take it out of there, as baselines are committed" in lines
    assert any("git add suites conftest.py perf .github" in line for line in lines)


def test_with_gpus_it_is_for_runners_with_gpus(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_gpus(monkeypatch, 8)
    assert init(capsys, repository)[-4] == "  pytest suites/ --world-size 8 --gpu"
    assert all("runs-on: [self-hosted, linux, gpu]" in (repository / path).read_text() for path in WORKFLOWS)


def test_a_laptop_without_gpus_writes_for_runners_with_gpus(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = init(capsys, repository, "--gpu", "--world-size=4")
    commit = "git add suites conftest.py baselines .github .gitignore && git commit -m 'Tests of performance'"

    assert lines[9:] == [
        "next:",
        f"  cd {repository} && {commit}",
        "  gh workflow run distbench-baselines.yml",
        "The second command records baselines on your runner, once trunk is pushed with these files.",
    ]
    assert all("runs-on: [self-hosted, linux, gpu]" in (repository / path).read_text() for path in WORKFLOWS)
    assert all("pytest suites/ --world-size 4 --gpu" in (repository / path).read_text() for path in WORKFLOWS)
    assert "--world-size 0: wanted 1 or more" in init(capsys, repository, "--world-size=0", code=2)[0]


def test_the_branch_is_that_of_pull_requests(repository: Path) -> None:
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    git(repository, "update-ref", "refs/remotes/origin/develop", "HEAD")
    git(repository, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/develop")

    assert init_module.find_out(repository).branch == "develop"


def test_a_feature_branch_is_none_of_pull_requests(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repository, "checkout", "-q", "-b", "#3-x")
    init(capsys, repository)
    assert YAML(typ="safe").load(repository / WORKFLOWS[0])["on"]["push"]["branches"] == ["#3-x"]
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    git(repository, "branch", "master")
    assert init_module.find_out(repository).branch == "master"
    git(repository, "branch", "main")
    assert init_module.find_out(repository).branch == "main"

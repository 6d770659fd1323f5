"""The package as a user's project sees it: public names, types, data frames, and instruments without the plugin."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.projects import TEST, Project, run

import pytest_distbench
from pytest_distbench.errors import ConfigurationError
from pytest_distbench.frames import read_distributions, read_run

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_distbench"

BODY = """
from pytest_distbench import RankContext

def body(rank: RankContext) -> None:
    reveal_type(rank.world_size)
    reveal_type(rank.agree(0.5))
    rank.record("m", 1.0, better=3)
"""


def test_bodies_are_annotated_with_the_rank_context() -> None:
    from pytest_distbench.worker.context import RankContext

    assert pytest_distbench.RankContext is RankContext


def test_links_and_pictures_of_the_readme_lead_to_files_of_the_repository_from_an_index_page_too() -> None:
    """The page is as hatch-fancy-pypi-readme makes it, which is needed only to build a package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    readme = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((ROOT / fragment["path"]).read_text() for fragment in readme["fragments"])
    for rule in readme["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    name = project["project"]["urls"]["Repository"].removeprefix("https://github.com/")
    links = re.findall(r"(!?)\[[^]]*\]\(([^)#]*)(?:#[^)]*)?\)", text)
    places = {
        "": f"https://github.com/{name}/blob/HEAD/",
        "!": f"https://raw.githubusercontent.com/{name}/HEAD/",
    }

    assert {kind for kind, _ in links} == set(places)
    assert [link for kind, link in links if not link.startswith(places[kind])] == []
    assert [link for kind, link in links if not (ROOT / link.removeprefix(places[kind])).is_file()] == []
    assert all(url.startswith(f"https://github.com/{name}") for url in project["project"]["urls"].values())


def test_what_names_the_version_names_this_one() -> None:
    """The changelog begins with it, and the workflows that docs/ci.md calls are those of its tag."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    tags = re.findall(r"pytest-distbench/pytest-distbench/\.github/\S+@v(\S+)", (ROOT / "docs" / "ci.md").read_text())

    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == pytest_distbench.__version__
    assert {*tags} == {pytest_distbench.__version__}


@pytest.mark.timeout(300)
def test_a_type_checker_sees_the_types_of_the_installed_package(tmp_path: Path) -> None:
    """Installed as the wheel has it, every file of the package: without py.typed its types would not count."""
    venv.create(tmp_path / "venv", symlinks=True)
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    shutil.copytree(PACKAGE, site / "pytest_distbench", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "user.py").write_text(BODY)
    python = tmp_path / "venv" / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        f"--python-executable={python}",
        "--cache-dir=cache",
        "user.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)

    assert 'int"' in done.stdout.splitlines()[0]
    assert 'float"' in done.stdout.splitlines()[1]
    assert 'user.py:7: error: Argument "better" to "record" of "Member" has incompatible type' in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


def test_a_run_record_becomes_a_data_frame(project: Project) -> None:
    made = project(TEST)
    run(made, "--distbench-json=run.json")
    frame = read_run(made.path / "run.json")

    assert frame[["case", "launch", "metric", "value", "verdict"]].to_dict("records") == [
        {"case": "ws2", "launch": 0, "metric": "step", "value": 0.02, "verdict": "new"},
        {"case": "ws2", "launch": 0, "metric": "count", "value": 7.0, "verdict": "new"},
    ]


def test_the_iterations_of_a_launch_become_a_data_frame(project: Project) -> None:
    made = project("""
        def body(rank):
            pass

        def test_step(distbench):
            distbench.run(body, params={"stand_in": {"step": [[0.3, 0.1, 0.2], [0.1, 0.1, 0.4]]}}, launches=2)
        """)
    run(made, "--distbench-json=run.json")
    frame = read_distributions(made.path / "run.json")

    assert set(frame.metric) == {"step"}
    assert frame[["launch", "quantile", "value"]].to_numpy().tolist() == [
        [0, 0.0, 0.1], [0, 0.5, 0.2], [0, 1.0, 0.3],
        [1, 0.0, 0.1], [1, 0.5, 0.1], [1, 1.0, 0.4],
    ]  # fmt: skip


@pytest.mark.parametrize("read", [read_run, read_distributions])
def test_a_run_record_is_read_by_its_path(read: Callable[[Any], object]) -> None:
    wanted = f"{read.__name__}: path=3; wanted the path of a file that --distbench-json"  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=wanted):
        read(3)


def test_without_the_plugin_they_do_nothing() -> None:
    pytest_distbench.record("loss", object(), better="nonsense", at=3)  # type: ignore[arg-type]
    with pytest_distbench.phase("forward"):
        pass

    assert list(pytest_distbench.timed("step", warmup=2, iterations=3)) == [-2, -1, 0, 1, 2]


def test_without_the_plugin_they_import_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_distbench import phase, record, timed; record('a', 1)\n"
        "print([m for m in ('torch', 'msgspec', 'numpy', 'pytest') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert told == "[]\n"

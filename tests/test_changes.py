"""Which conditional tests run after a change, and that the repository's own rows name what is there."""

from __future__ import annotations

from pathlib import Path

import changes
import pytest
from changes import CONDITIONAL, Imports, changed_since, decide
from support.repositories import git

from pytest_distbench.extensions import EXTENSIONS

ELASTIC = "tests/elastic/end_to_end/"
FILES = {
    "conftest.py": "",
    "tests/conftest.py": "from support.launching import Launch\n",
    "tests/support/launching.py": "Launch = None\n",
    "tests/support/unused.py": "",
    "tests/elastic/end_to_end/test_jobs.py": "def test_it():\n    from support.jobs import job\n",
    "tests/support/jobs.py": 'SCRIPT = "suites/elastic/train.py"\nMODULE = "pytest_distbench.workloads.models"\n',
    "suites/elastic/train.py": "import helper\n",
    "suites/training/helper.py": "",
    "suites/training/other.py": "",
    "pytest_distbench/run/session.py": "",
    "pytest_distbench/elastic/pool.py": "",
    "pytest_distbench/workloads/__init__.py": "",
    "pytest_distbench/workloads/models.py": "from pytest_distbench.workloads import sizes\n",
    "pytest_distbench/workloads/sizes.py": "",
    "pytest_distbench/workloads/links.py": "",
}


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Imports(tmp_path, FILES)


@pytest.mark.parametrize(
    "file",
    [
        "tests/elastic/end_to_end/test_jobs.py",
        "tests/support/jobs.py",
        "tests/support/launching.py",
        "conftest.py",
        "suites/elastic/train.py",
        "suites/training/helper.py",
        "pytest_distbench/run/session.py",
        "pytest_distbench/elastic/pool.py",
        "pytest_distbench/workloads/__init__.py",
        "pytest_distbench/workloads/sizes.py",
        "pyproject.toml",
        "tests/data/numbers.json",
    ],
)
def test_what_a_test_imports_at_any_remove_or_names_in_a_text_makes_it_run(file: str, imports: Imports) -> None:
    assert decide({"README.md", file}, imports)[ELASTIC] == f"{file} has changed"


@pytest.mark.parametrize(
    "file",
    [
        "tests/support/unused.py",
        "tests/records/test_new.py",
        "suites/training/other.py",
        "pytest_distbench/workloads/links.py",
        "README.md",
        "docs/elastic.md",
        "findings/a.sh",
        "baselines/cpu/a.json",
        ".github/workflows/test.yml",
    ],
)
def test_what_it_does_not_import_leaves_it_out(file: str, imports: Imports) -> None:
    assert decide({file}, imports)[ELASTIC] == ""


def test_everything_runs_where_nobody_knows_what_has_changed(imports: Imports) -> None:
    assert decide(None, imports) == dict.fromkeys(CONDITIONAL, "nobody knows what has changed")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.py").write_text("")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "base")
    return tmp_path


def test_changes_are_those_since_the_merge_base_committed_or_not(repository: Path) -> None:
    git(repository, "switch", "-q", "-c", "branch")
    (repository / "b.py").write_text("")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "b")
    (repository / "a.py").write_text("# changed")
    (repository / "new.py").write_text("")
    git(repository, "switch", "-q", "--detach", "main")
    git(repository, "commit", "-q", "--allow-empty", "-m", "main goes on")
    git(repository, "branch", "-q", "-f", "main")
    git(repository, "switch", "-q", "branch")

    assert changed_since("main", repository) == {"a.py", "b.py", "new.py"}


def test_what_has_changed_is_unknown_on_the_base_itself_and_without_one(repository: Path, tmp_path: Path) -> None:
    assert changed_since("main", repository) is None
    assert changed_since("origin/main", repository) is None
    assert changed_since("main", tmp_path / "nowhere") is None


def test_rows_are_of_files_and_extensions_that_are_there() -> None:
    for begin, extension in CONDITIONAL.items():
        assert (changes.ROOT / begin).exists(), begin
        assert extension in EXTENSIONS

"""The distbench command: what it prints, what it changes, and how it fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.stores import KEY, PLATFORM, TEST, entry, record, result

from pytest_distbench.commands.cli import main
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.store.baselines import Baselines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--baselines", "nowhere"], "nowhere is not a folder: run it where your baselines are"),
        (["list", "--platform", "gpu"], "no baselines of the platform 'gpu' in .*; there are cpu-x-2c"),
        (["list", "-k", "a and"], "-k 'a and': wanted a part of a name, found the word 'and'"),
        (["show", "nothing"], "no baseline whose test or case matches 'nothing'"),
        (["diff", "nosuch"], "'nosuch' is neither a folder nor a git revision"),
        (["diff", "--", "--output=x"], "'--output=x' is neither a folder nor a git revision"),
        (["accept", "nosuch.json"], "nosuch.json: cannot read: No such file"),
        (["prune"], "say what to delete"),
        (["prune", "--gone", "--root", "nowhere"], "--root nowhere is not a folder"),
    ],
)
def test_errors_name_what_was_found(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    extra = [] if "--baselines" in arguments else ["--baselines", str(folder)]

    assert main(["baseline", arguments[0], *extra, *arguments[1:]]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_command_imports_no_torch_no_pytest_and_nothing_that_makes_frames(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pytest_distbench.commands.cli as c;"
        "c.main(['baseline', 'list', '--baselines', sys.argv[1]]);"
        "c.main(['report', sys.argv[2], '--format', 'csv']);"
        "print(sorted({'torch', 'pytest', 'numpy', 'pandas', 'scipy', 'pyarrow'} & set(sys.modules)))"
    )
    path = record(tmp_path / "run.json", result(0.01))
    done = subprocess.run([sys.executable, "-c", code, str(folder), path], capture_output=True, text=True, check=True)

    assert [f"{PLATFORM} " in done.stdout, "\nregressed," in done.stdout] == [True, True]
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_module_of_the_users_is_imported_before_the_command_reads_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A metric kind of one's own stands in baselines: the command must know it too."""
    module = "from pytest_distbench.records.kinds import METRIC_KINDS\nMETRIC_KINDS['mine'] = METRIC_KINDS['lower']\n"
    (tmp_path / "my_kinds.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    path = Baselines(tmp_path / "b", PLATFORM).write(TEST, KEY, entry(1.0, 1.1))
    path.write_text(path.read_text().replace('"lower"', '"mine"'))
    without = main(["baseline", "list", "--baselines", "b"])
    told = capsys.readouterr().err
    try:
        with_it = main(["-p", "my_kinds", "baseline", "list", "--baselines", "b"])
    finally:
        METRIC_KINDS.pop("mine", None)
        sys.modules.pop("my_kinds", None)

    assert (without, with_it) == (2, 0)
    assert "unknown kind of metrics 'mine'" in told


def test_the_package_is_the_command_and_names_are_spelled_out_where_the_output_is_ascii(folder: Path) -> None:
    Baselines(folder, PLATFORM).write("tests/test_größe.py::test_a", KEY, entry(1.0))
    command = [sys.executable, "-m", "pytest_distbench", "baseline", "list", "--baselines", str(folder)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)

    assert b"test_gr\\xf6\\xdfe.py" in done.stdout


def test_a_module_that_cannot_be_imported_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-p", "no_such_module_at_all", "baseline", "list"]) == 2
    assert "distbench: -p no_such_module_at_all: cannot import it: ModuleNotFoundError" in capsys.readouterr().err

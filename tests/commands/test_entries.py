"""distbench baseline list, show, update and prune: what they print, and what they change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.stores import KEY, TEST, Run, entry

from pytest_distbench.commands.cli import main
from pytest_distbench.store.baselines import BaselineStore


def test_list_names_every_entry(run: Run) -> None:
    assert "cpu-x-2c  suites/test_a.py::test_a[ws2.gloo.warm]" in run("list")[1]
    assert run("list", "-k", "ws4") == (0, "no baselines\n")


def test_list_counts_bounds(run: Run, store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(0.001, bounds={"step": "3 s", "other": "<= 2"}))

    assert run("list")[1].splitlines()[1].split()[-3:] == ["1", "1", "2"]


def test_show_prints_median_and_range_and_what_was_set_by_hand(run: Run, store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(0.001, 0.002, 0.003, tolerance=0.25, xfail_perf="bug 12"))
    code, text = run("show", "suites/test_a.py::test_a[ws2]")

    assert code == 0
    assert "step      2 ms  1 ms  3 ms         3" in text
    assert "tolerance: 0.25" in text
    assert 'xfail_perf: "bug 12"' in text


def test_a_store_is_read_where_one_stands(
    store: BaselineStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.folder)

    assert main(["baseline", "list", "--baselines", "."]) == 0
    assert KEY in capsys.readouterr().out


def test_prune_gone_under_a_wrong_root_is_an_error(run: Run, tmp_path: Path, store: BaselineStore) -> None:
    code, text = run("prune", "--gone", "--root", str(tmp_path), "--delete")

    assert (code, "give pytest's root directory with --root" in text) == (2, True)
    assert store.entry(TEST, KEY) is not None


def test_update_is_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "def test_x(pytestconfig):\n    assert pytestconfig.option.distbench_update == 'new'\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest_distbench.commands.cli",
        "baseline",
        "update",
        "--only",
        "new",
        "test_x.py",
        "-q",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert done.stdout.startswith("pytest --distbench-update=new test_x.py -q\n")
    assert "1 passed" in done.stdout

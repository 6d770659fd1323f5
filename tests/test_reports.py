"""docs/dev/reports.md: each of its commands has a recorded run, of which each table it names is printed.

A record that is not read any more is recorded again: see tests/support/recorded.py.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from support.recorded import FOLDER, unpack

from pytest_distbench.commands.cli import main
from pytest_distbench.store.files import read_run_record

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "dev" / "reports.md").read_text()
HEADER = "| of the report | `--table` | headings |\n|---|---|---|\n"

BLANK = {
    # an event and a rate are of no epoch, no fixed run has them, and they take the time of their epoch
    "epochs": {
        "Epoch",
        "Ondemand",
        "Perf",
        "Difference (s)",
        "from step",
        "nodes",
        "lr",
        "loss",
        "accuracy",
        "changes",
    },
    "events": {"rendezvous", "process start", "import", "group init", "build", "checkpoint load", "first step"},
    "record": {"schedule"},  # of a derived number
    "accuracy": {"gang2", "gang4"},  # they end before the other
    "scaling": {"computation/communication", "communication"},  # of one worker
    "phases": {"total"},  # seeds and launches of unequally many steps
    "cost": {"steps", "statistical", "time per step", "hardware"},  # of what is no goal
}
"""Columns in which a row may be empty that they are not about; some row of each is not."""


class Listed(NamedTuple):
    """A table that the page names, of its command with that number."""

    report: str
    command: str
    table: str
    headings: list[str]


def listed() -> list[Listed]:
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        report = section[:3]
        blocks = re.split(r"```console\n\$ (.*?)\n```", section, flags=re.DOTALL)
        for number, (command, text) in enumerate(zip(blocks[1::2], blocks[2::2], strict=True)):
            name = report + (f"-{number + 1}" if number else "")
            for row in text.partition(HEADER)[2].partition("\n\n")[0].splitlines():
                _, _, table, headings, _ = (cell.strip() for cell in row.split("|"))
                found.append(Listed(name, " ".join(command.split()), table.strip("`"), headings.split(", ")))
    return found


LISTED = listed()


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of docs/trainings.md, where the command of the page looks for it."""
    [text] = re.findall(r"```toml\n(# prices.toml\n.*?)```", (DOCS / "trainings.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.toml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("one", LISTED, ids=lambda one: f"{one.report}-{one.table.split()[0]}")
def test_a_report_prints_its_table_with_its_headings_and_no_empty_cell(
    one: Listed, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(unpack(one.report, prices)), "--table", *shlex.split(one.table), "--format", "markdown"]

    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().out.replace("<!-- -->", "").splitlines() if line.startswith("|")]
    head, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    rows = rows[1:]
    assert [heading for heading in one.headings if heading not in head] == [], head
    assert rows
    blank = BLANK.get(one.table.split()[0], set())
    for heading in one.headings:
        filled = [row[head.index(heading)] not in ("", "-") for row in rows]
        assert any(filled) if heading in blank else all(filled), heading
    for heading in {"Workers", "ranks"} & set(one.headings):
        assert len({row[head.index(heading)].split()[0] for row in rows}) > 1, heading


@pytest.mark.parametrize("name", dict.fromkeys(one.report for one in LISTED))
def test_a_recorded_run_is_of_the_command_of_the_page(name: str, tmp_path: Path) -> None:
    [command] = {one.command for one in LISTED if one.report == name}
    recorded = shlex.split(read_run_record(unpack(name, tmp_path)).command)
    wanted = shlex.split(command.replace("\\ ", ""))

    assert {word for word in wanted if word.startswith(("suites", "test_"))} <= set(recorded)
    assert "--distbench-full" in recorded


def test_the_page_names_no_other_table_and_there_is_no_other_record() -> None:
    assert {path.name.partition(".")[0] for path in FOLDER.iterdir()} == {one.report for one in LISTED}
    assert set(re.findall(r"--table ([a-z_]+)", PAGE)) <= {one.table.split()[0] for one in LISTED}
    assert {one.report[:3] for one in LISTED} == {"000", "001", "002", "003", "004"}

"""``distbench baseline export`` and ``import``: baselines as JSON lines, CSV and Parquet, and back."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest
from support.metrics import baseline_of
from support.stores import KEY, PLATFORM, TEST, Run, entry

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import SCHEMA, BaselineFile, Baselines
from pytest_distbench.tools.transfer import baseline_rows, exported_baselines, write_json

FILE = BaselineFile(schema=SCHEMA, test=TEST, platform=PLATFORM, key=KEY, entry=entry(1.0, 2.0, tolerance=0.5))


def test_json_lines_are_read_back_up_to_one_that_is_no_baseline(tmp_path: Path) -> None:
    with (tmp_path / "all.json").open("wb") as out:
        write_json([FILE, FILE], out)
        out.write(b"{}\n")
    entries = exported_baselines(tmp_path / "all.json")

    assert [next(entries) for _ in range(2)] == [(f"{tmp_path / 'all.json'}:{n}", FILE) for n in (1, 2)]
    with pytest.raises(StoredFileError, match=r"all\.json:3.*Give the output of 'distbench baseline export"):
        next(entries)


def test_a_folder_is_read_platform_by_platform(tmp_path: Path) -> None:
    for platform in ("b", "a"):
        Baselines(tmp_path, platform).write(TEST, KEY, FILE.entry)

    assert [file.platform for _, file in exported_baselines(tmp_path)] == ["a", "b"]


def test_a_baseline_has_a_row_per_metric_and_launch() -> None:
    sweep = baseline_of([0.1, 0.2], at={"message_bytes": 8})
    metrics = {"latency[message_bytes=8]": sweep, "steps": baseline_of([None], "steps", "", name="steps")}
    table = baseline_rows([replace(FILE, entry=entry(1.0, metrics=metrics))])

    assert list(table.columns)[-5:] == ["metric", "unit", "better", "launch", "value"]
    latencies = [("latency[message_bytes=8]", "s", "lower", i, value) for i, value in enumerate((0.1, 0.2))]
    assert [row[-5:] for row in table.rows] == [*latencies, ("steps", "", "steps", 0, None)]


def test_what_is_exported_can_be_imported(run: Run, store: Baselines, tmp_path: Path) -> None:
    store.write(TEST, "other.gloo.warm", entry(1.0, xfail_perf="bug", tolerance=0.5))
    exported = str(tmp_path / "all.json")
    assert run("export", "-o", exported) == (0, f"2 baselines written to {exported}\n")
    whole = store.of_test(TEST)
    store.delete(TEST, KEY)
    store.write(TEST, "other.gloo.warm", entry(7.0))

    assert run("import", exported)[1].endswith("1 new, 0 replaced, 1 kept\n")
    assert store.read(TEST, "other.gloo.warm") == entry(7.0)
    assert run("import", exported, "--existing", "replace")[1].endswith("0 new, 1 replaced, 1 kept\n")
    assert store.of_test(TEST) == whole


def test_lines_that_contradict_are_named_and_not_imported(run: Run, store: Baselines, tmp_path: Path) -> None:
    exported = tmp_path / "all.json"
    run("export", "-o", str(exported))
    store.write(TEST, KEY, entry(7.0))
    run("export", "-o", str(tmp_path / "other.json"))
    store.delete(TEST, KEY)
    with exported.open("a") as file:
        file.write(exported.read_text() + (tmp_path / "other.json").read_text())
    code, text = run("import", str(exported))

    assert (code, f"{exported}:1 and {exported}:3 contradict each other" in text) == (2, True)
    assert store.read(TEST, KEY) is None


def test_tables_hold_every_value_of_every_launch(run: Run, tmp_path: Path) -> None:
    rows = list(csv.DictReader(run("export", "--format", "csv")[1].splitlines()))
    run("export", "--format", "parquet", "-o", str(tmp_path / "all.parquet"))
    table = pd.read_parquet(tmp_path / "all.parquet")

    values = [("step", "0", "0.001"), ("step", "1", "0.002"), ("step", "2", "0.003")]
    assert [(row["metric"], row["launch"], row["value"]) for row in rows] == values
    assert list(table["value"]) == [0.001, 0.002, 0.003]
    assert list(table.columns) == list(rows[0])


def test_names_of_others_are_harmless_in_a_table(run: Run, store: Baselines) -> None:
    hostile, below_zero = entry(1.0), entry(-2.0).metrics["step"]
    hostile.metrics.update(dict.fromkeys(("=cmd|' /C calc'!A0", "x\n::error file=a::PWNED\x1b[2J"), below_zero))
    store.write(TEST, KEY, hostile)
    lines = run("export", "--format", "csv")[1].splitlines()
    cells = {row["metric"]: row["value"] for row in csv.DictReader(lines)}

    assert cells == {"step": "1.0", "'=cmd|' /C calc'!A0": "-2.0", "x\\n::error file=a::PWNED\\x1b[2J": "-2.0"}


def test_what_holds_nothing_that_was_asked_for_is_an_error(run: Run, tmp_path: Path) -> None:
    run("export", "-o", str(tmp_path / "all.json"))

    for arguments in ([str(tmp_path / "all.json"), "--platform", "other"], [str(tmp_path / "nothing")]):
        (tmp_path / "nothing").mkdir(exist_ok=True)
        code, text = run("import", *arguments)
        assert (code, "nothing was imported" in text) == (2, True)


def test_an_export_that_fails_leaves_the_older_file(run: Run, store: Baselines, tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("older")
    store.path(TEST, KEY).write_text("{")
    code, text = run("export", "--format", "csv", "-o", str(tmp_path / "all.csv"))

    assert (code, "not a baseline file" in text) == (2, True)
    assert (tmp_path / "all.csv").read_text() == "older"
    assert not list(tmp_path.glob(".all*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "--format", "parquet"], "is no text: give -o FILE"),
        (["export", "-o", "/dev/null/x"], "/dev/null/x: cannot write: "),
        (["import", "nosuch"], "nosuch: cannot read: No such file"),
    ],
)
def test_errors_name_what_was_found(run: Run, arguments: list[str], message: str) -> None:
    code, text = run(*arguments)

    assert (code, message in text) == (2, True), text

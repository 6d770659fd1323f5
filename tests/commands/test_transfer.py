"""distbench baseline export and import: what is written is read back, and a broken file is named."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
from support.stores import KEY, TEST, Run, entry

from pytest_distbench.store.baselines import BaselineStore


class TestExchange:
    def test_what_is_exported_can_be_imported(self, run: Run, store: BaselineStore, tmp_path: Path) -> None:
        store.write(TEST, "other.gloo.warm", entry(1.0, xfail_perf="bug", tolerance=0.5))
        exported = str(tmp_path / "all.json")
        assert run("export", "-o", exported) == (0, f"2 entries written to {exported}\n")
        whole = store.entries(TEST)
        store.delete(TEST, KEY)
        store.write(TEST, "other.gloo.warm", entry(7.0))

        assert run("import", exported)[1].endswith("1 new, 0 replaced, 1 kept\n")
        assert store.entry(TEST, "other.gloo.warm") == entry(7.0)
        assert run("import", exported, "--existing", "replace")[1].endswith("0 new, 1 replaced, 1 kept\n")
        assert store.entries(TEST) == whole

    def test_another_store_is_imported(self, run: Run, store: BaselineStore, tmp_path: Path) -> None:
        BaselineStore(tmp_path / "other", "gpu").write(TEST, KEY, entry(1.0))
        run("import", str(tmp_path / "other"))

        assert BaselineStore(store.folder, "gpu").entry(TEST, KEY) == entry(1.0)

    def test_what_holds_nothing_that_was_asked_for_is_an_error(self, run: Run, tmp_path: Path) -> None:
        run("export", "-o", str(tmp_path / "all.json"))

        for arguments in ([str(tmp_path / "all.json"), "--platform", "other"], [str(tmp_path / "nothing")]):
            (tmp_path / "nothing").mkdir(exist_ok=True)
            code, text = run("import", *arguments)
            assert (code, "nothing imported" in text) == (2, True)

    def test_lines_that_contradict_each_other_are_named_and_nothing_is_imported(
        self, run: Run, store: BaselineStore, tmp_path: Path
    ) -> None:
        exported = tmp_path / "all.json"
        run("export", "-o", str(exported))
        store.write(TEST, KEY, entry(7.0))
        run("export", "-o", str(tmp_path / "other.json"))
        store.delete(TEST, KEY)
        with exported.open("a") as file:
            file.write(exported.read_text() + (tmp_path / "other.json").read_text())
        code, text = run("import", str(exported))

        assert (code, f"{exported}:1 and {exported}:3 contradict each other" in text) == (2, True)
        assert store.entry(TEST, KEY) is None

    def test_a_broken_line_is_named_and_those_before_it_are_in(
        self, run: Run, store: BaselineStore, tmp_path: Path
    ) -> None:
        run("export", "-o", str(tmp_path / "all.json"))
        with (tmp_path / "all.json").open("a") as file:
            file.write("{}\n")
        store.delete(TEST, KEY)
        code, text = run("import", str(tmp_path / "all.json"))

        assert (code, "all.json:2: not a baseline file" in text) == (2, True)
        assert "Give what 'distbench baseline export --format json' wrote" in text
        assert store.entry(TEST, KEY) is not None

    def test_an_export_that_fails_leaves_the_older_file(self, run: Run, store: BaselineStore, tmp_path: Path) -> None:
        (tmp_path / "all.csv").write_text("older")
        store.path(TEST, KEY).write_text("{")
        code, text = run("export", "--format", "csv", "-o", str(tmp_path / "all.csv"))

        assert (code, "not a baseline file" in text) == (2, True)
        assert (tmp_path / "all.csv").read_text() == "older"
        assert not list(tmp_path.glob(".all*"))

    def test_tables_hold_every_value_of_every_launch(self, run: Run, tmp_path: Path) -> None:
        rows = list(csv.DictReader(run("export", "--format", "csv")[1].splitlines()))
        run("export", "--format", "parquet", "-o", str(tmp_path / "all.parquet"))
        table = pd.read_parquet(tmp_path / "all.parquet")

        assert [(row["metric"], row["launch"], row["value"]) for row in rows] == [
            ("step", "0", "0.001"),
            ("step", "1", "0.002"),
            ("step", "2", "0.003"),
        ]
        assert list(table["value"]) == [0.001, 0.002, 0.003]
        assert list(table.columns) == list(rows[0])

    def test_names_of_others_are_harmless_in_a_table(self, run: Run, store: BaselineStore) -> None:
        hostile, below_zero = entry(1.0), entry(-2.0).metrics["step"]
        hostile.metrics.update(dict.fromkeys(("=cmd|' /C calc'!A0", "x\n::error file=a::PWNED\x1b[2J"), below_zero))
        store.write(TEST, KEY, hostile)
        lines = run("export", "--format", "csv")[1].splitlines()
        cells = {row["metric"]: row["value"] for row in csv.DictReader(lines)}

        assert cells == {"step": "1.0", "'=cmd|' /C calc'!A0": "-2.0", "x\\n::error file=a::PWNED\\x1b[2J": "-2.0"}

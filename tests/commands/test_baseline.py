"""``distbench baseline``: list, show, update, prune, diff and accept stored baselines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.metrics import baseline_of
from support.repositories import git
from support.stores import CASE, KEY, PLATFORM, TEST, Run, entry, environment, named, record, result

from pytest_distbench.commands.cli import main
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import OtherSideRecord
from pytest_distbench.store.baselines import Baselines


def test_list_names_baselines_by_platform_and_a_baseline_is_chosen_if_any_part_fits(run: Run, store: Baselines) -> None:
    Baselines(store.folder, "a").write("suites/test_b.py::test_b", KEY, entry(1.0))
    first, second = ["a", f"suites/test_b.py::test_b[{KEY}]"], [PLATFORM, f"{TEST}[{KEY}]"]

    def listed(*arguments: str) -> list[list[str]]:
        return [line.split()[:2] for line in run("list", *arguments)[1].splitlines()[1:]]

    assert listed() == listed("-k", "test_b", "-k", "test_a") == [first, second]
    assert (listed("--platform", PLATFORM), listed("-k", "test_b")) == ([second], [first])
    assert run("list", "-k", "ws4") == (0, "no baselines\n")


def test_show_prints_median_and_range_and_what_was_set_by_hand(run: Run, store: Baselines) -> None:
    store.write(TEST, KEY, entry(0.001, 0.002, 0.003, tolerance=0.25, xfail_perf="bug 12"))
    code, text = run("show", "suites/test_a.py::test_a[ws2]")

    assert code == 0
    assert "step      2 ms  1 ms  3 ms         3" in text
    assert "tolerance: 0.25" in text
    assert 'xfail_perf: "bug 12"' in text


def test_a_store_is_read_where_one_stands(
    store: Baselines, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.folder)

    assert main(["baseline", "list", "--baselines", "."]) == 0
    assert KEY in capsys.readouterr().out


def test_prune_gone_under_a_wrong_root_is_an_error(run: Run, tmp_path: Path, store: Baselines) -> None:
    code, text = run("prune", "--gone", "--root", str(tmp_path), "--delete")

    assert (code, "give pytest's root directory with --root" in text) == (2, True)
    assert store.read(TEST, KEY) is not None


def test_update_is_pytest(tmp_path: Path) -> None:
    test = "def test_x(pytestconfig):\n    assert pytestconfig.option.distbench_update == 'new'\n"
    (tmp_path / "test_x.py").write_text(test)
    command = [sys.executable, "-m", "pytest_distbench", "baseline", "update", "--only", "new", "test_x.py", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert done.stdout.startswith("pytest --distbench-update=new test_x.py -q\n")
    assert "1 passed" in done.stdout


def test_diff_with_a_revision_shows_the_worst_and_counts_the_rest(run: Run, store: Baselines, tmp_path: Path) -> None:
    git(tmp_path, "init")
    before = run("diff")
    for name in ("better", "worse", "same", "gone"):
        store.write(f"suites/test_{name}.py::test_{name}", KEY, entry(1.0, 1.0))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    store.write("suites/test_better.py::test_better", KEY, entry(0.5, 0.5))
    store.write("suites/test_worse.py::test_worse", KEY, entry(1.5, 1.5, software={"torch": "2.14.0"}))
    store.write("suites/test_new.py::test_new", KEY, entry(1.0, 1.0))
    store.delete("suites/test_gone.py::test_gone", KEY)
    code, text = run("diff")

    assert before[0] == 2  # nothing is committed yet
    assert code == 0
    assert text.splitlines() == [
        "test                                               metric  old     new   change  launches",
        "suites/test_worse.py::test_worse[ws2.gloo.warm]    step    1 s   1.5 s  +50.0 %    2 -> 2",
        "suites/test_better.py::test_better[ws2.gloo.warm]  step    1 s  500 ms  -50.0 %    2 -> 2",
        "removed: suites/test_gone.py::test_gone[ws2.gloo.warm] (1 metric, 2 launches)",
        "new: suites/test_new.py::test_new[ws2.gloo.warm] (1 metric, 2 launches)",
        "suites/test_worse.py::test_worse[ws2.gloo.warm]: software.torch 2.13.0 -> 2.14.0",
        "2 changed, 1 new, 1 removed, 2 unchanged",
    ]
    _, markdown = run("diff", "HEAD", "--markdown", "-k", "worse")
    assert markdown.splitlines() == [
        "### baselines: 1 changed, 0 new, 0 removed, 0 unchanged",
        "",
        "| test | metric | old | new | change | launches |",
        "|---|---|---:|---:|---:|---:|",
        "| suites/test_worse.py::test_worse[ws2.gloo.warm] | step | 1 s | 1.5 s | +50.0 % | 2 -&gt; 2 |",
        "",
        "- suites/test_worse.py::test_worse[ws2.gloo.warm]: software.torch 2.13.0 -&gt; 2.14.0",
    ]


def test_a_hostile_name_cannot_leave_its_markdown_cell(run: Run, store: Baselines, tmp_path: Path) -> None:
    for folder, value in ((store.folder, 1.0), (tmp_path / "other", 2.0)):
        Baselines(folder, PLATFORM).write("a|b<i>.py::test_a", KEY, entry(value, value))
    _, markdown = run("diff", str(tmp_path / "other"), "--markdown", "-k", "a|b")

    assert "| a&#124;b&lt;i&gt;.py::test_a[ws2.gloo.warm] | step |" in markdown


class TestAccept:
    def test_writes_where_the_run_had_its_baselines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = Path(record(tmp_path / "run.json", result(*[0.004] * 5)))
        path.write_text(json.dumps({**json.loads(path.read_text()), "settings": {"baselines": "perf/stored"}}))

        assert main(["baseline", "accept", "run.json"]) == 0
        assert "review with: distbench baseline diff --baselines perf/stored" in capsys.readouterr().out
        assert Baselines(Path("perf/stored"), PLATFORM).read(TEST, KEY) is not None

    def test_accept_stores_changed_numbers_and_keeps_what_was_set_by_hand(
        self, run: Run, store: Baselines, tmp_path: Path
    ) -> None:
        store.write(TEST, KEY, entry(0.001, 0.002, 0.003, tolerance=0.25))
        code, text = run("accept", record(tmp_path / "run.json", result(*[0.004] * 5)))

        assert code == 0
        assert "step    2 ms  4 ms  +100.0 %    3 -> 5" in text
        assert "software.torch 2.13.0 -> 2.14.0" in text
        assert store.read(TEST, KEY) == entry(
            *[0.004] * 5, tolerance=0.25, software={"torch": "2.14.0"}, launch_s=1.0, test_id="ws2"
        )

    def test_a_regression_that_was_obvious_after_three_launches_is_refused_and_not_passed_over(
        self, run: Run, store: Baselines, tmp_path: Path
    ) -> None:
        path = record(tmp_path / "run.json", result(*[0.009] * 3))
        refused = run("accept", path)
        forced = run("accept", path, "--force")

        assert refused[0] == 1
        assert "step is new or changed, and has 3 of the 5 launches" in refused[1]
        assert forced[0] == 0
        assert "step    2 ms  9 ms  +350.0 %    3 -> 3" in forced[1]

    @pytest.mark.parametrize(
        ("commit", "line"),
        [
            ("{here}", ""),
            ("{here}-dirty", "? {run} was measured on changes that no commit has, on top of {here:.10}"),
            ("3f2a91c0d4e5", "? {run} was measured at 3f2a91c0d4; checked out is {here:.10}"),
        ],
        ids=["this commit", "a dirty tree", "another commit"],
    )
    def test_says_where_the_numbers_are_from_if_not_from_this_commit(
        self, run: Run, store: Baselines, tmp_path: Path, commit: str, line: str
    ) -> None:
        git(tmp_path, "init", "--quiet")
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", "baselines")
        here, path = (
            git(tmp_path, "rev-parse", "HEAD").strip(),
            Path(record(tmp_path / "run.json", result(*[0.004] * 5))),
        )
        path.write_text(json.dumps({**json.loads(path.read_text()), "commit": commit.format(here=here)}))
        _, text = run("accept", str(path))

        assert [found for found in text.splitlines() if "was measured" in found] == [
            line.format(run=path, here=here)
        ] * bool(line)

    def test_a_record_of_an_interleaved_comparison_has_nothing_to_accept(
        self, run: Run, store: Baselines, tmp_path: Path
    ) -> None:
        against = result(
            0.004, code="within-threshold", reference=OtherSideRecord(kind="paired", name="main (3f2a91c0d4)")
        )
        code, text = run("accept", record(tmp_path / "run.json", against))

        assert code == 2
        assert "compares with main (3f2a91c0d4) by interleaved A/B: it has no numbers to accept" in text

    def test_a_dry_run_writes_nothing(self, run: Run, store: Baselines, tmp_path: Path) -> None:
        _, text = run("accept", record(tmp_path / "run.json", result(*[0.004] * 5)), "--dry-run")

        assert "+100.0 %" in text
        assert store.read(TEST, KEY) == entry(0.001, 0.002, 0.003)

    def test_metrics_that_were_closed_after_one_launch_keep_their_values(
        self, run: Run, store: Baselines, tmp_path: Path
    ) -> None:
        closed = Sample(name="closed", unit="s", better="lower", value=9.0)
        old = baseline_of([0.001, 0.002, 0.003], name="closed")
        stored = entry(0.001, 0.002, 0.003)
        store.write(TEST, KEY, replace(stored, metrics={**stored.metrics, "closed": old}))
        adaptive = result(*[0.004] * 5)
        first = replace(adaptive.launches[0], measurements=[*adaptive.launches[0].measurements, closed])
        later = [replace(launch, only=["step"]) for launch in adaptive.launches[1:]]
        run("accept", record(tmp_path / "run.json", replace(adaptive, launches=[first, *later])))
        taken = store.read(TEST, KEY)

        assert taken is not None
        assert taken.metrics == {"step": entry(*[0.004] * 5).metrics["step"], "closed": old}

    @pytest.mark.parametrize(
        "changes",
        [{"case": replace(CASE, test="suites/../../../escape.py::test_a")}, {"environment": environment("../..")}],
    )
    def test_no_name_in_a_record_leads_out_of_the_store(
        self, run: Run, folder: Path, tmp_path: Path, changes: dict[str, object]
    ) -> None:
        path = record(tmp_path / "run.json", result(*[0.004] * 5, **changes))
        before = sorted(tmp_path.rglob("*"))
        code, text = run("accept", path, "--only", "all")

        assert (code, "has no place below the baseline folder" in text) == (2, True)
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_case_id_that_is_like_a_path_stays_a_name(self, run: Run, store: Baselines, tmp_path: Path) -> None:
        run("accept", record(tmp_path / "run.json", result(*[0.004] * 5, case=named("../../x"))))

        assert [path.name for path in store.files()] == ["%2E.%2F..%2Fx.gloo.warm.json", "ws2.gloo.warm.json"]

    def test_a_record_without_such_a_case_is_an_error(self, run: Run, tmp_path: Path) -> None:
        code, text = run("accept", record(tmp_path / "run.json", result(*[0.004] * 5)), "-k", "nothing")

        assert (code, "has no case of that platform and name" in text) == (2, True)


def test_list_counts_bounds(run: Run, store: Baselines) -> None:
    store.write(TEST, KEY, entry(0.001, bounds={"step": "3 s", "other": "<= 2"}))

    assert run("list")[1].splitlines()[1].split()[-3:] == ["1", "1", "2"]


def test_diff_against_a_folder(run: Run, tmp_path: Path) -> None:
    Baselines(tmp_path / "other", PLATFORM).write(TEST, KEY, entry(0.001, 0.001))

    assert "step    1 ms  2 ms  +100.0 %    2 -> 3" in run("diff", str(tmp_path / "other"))[1]

"""Texts of failed tests. The first line says what matters in about 100 characters."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.results import PAIRED, point, result, verdict

from pytest_distbench.judging.outcome import Strictness, conclude, launch_headline
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.records.launch import ErrorReport, LaunchRecord, RankFate
from pytest_distbench.records.places import OUTSIDE, CasePlaces, PlaceRow
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import STATISTICS, CaseResult, Finding
from pytest_distbench.report.verdicts import explanation, launch_text, remark_lines


def ended(outcome: Any, reason: str) -> dict[str, Any]:
    return {"launches": [LaunchRecord(index=0, outcome=outcome, wall_s=1.0, reason=reason)]}


STRICT = Strictness(no_baseline="fail", options=frozenset({"distbench-strict"}))


@pytest.mark.parametrize(
    "made",
    [
        result(verdict("beyond-threshold")),
        result(verdict("noise", reason="busy")),
        result(verdict("no-baseline")),
        result(verdict(), update="refused"),
        result(),
        result(**ended("failed", "hung")),
    ],
)
def test_the_whole_text_begins_with_that_line(made: CaseResult) -> None:
    conclusion = conclude(made, STRICT)
    text = explanation(conclusion, command="pytest x", platforms=["cpu-y"])

    assert conclusion.outcome == "failed"
    assert text.startswith(conclusion.headline)
    assert conclusion.headline != ""


def failure_text(made: CaseResult, strictness: Strictness = STRICT, **given: Any) -> str:
    return explanation(conclude(made, strictness), **{"command": "pytest x", "platforms": [], **given})


def test_a_model_has_no_bound_that_somebody_set() -> None:
    beyond = result(verdict("bound", reason="bound: at most 1"))
    model = replace(beyond, case=replace(beyond.case, params={"model": "transformers:llama", "layout": "ddp"}))

    assert "or change the bound where it was set" in failure_text(beyond)
    assert "nothing is stored of a model; fix the model, its plan or the layout" in failure_text(model)


def test_no_update_is_advised_that_would_be_refused() -> None:
    lacking = result(verdict("beyond-threshold", current=None, reason="no value in 1 of 1 launches"))
    text = explanation(conclude(lacking, STRICT), command="pytest x", platforms=[])
    assert "no update accepts a metric without a value" in text
    assert "--distbench-update" not in text

    other = result(verdict("communication", metric="fingerprint", better="exact", current=None, baseline=None))
    assert "--distbench-update" in explanation(conclude(other, STRICT), command="pytest x", platforms=[])


def fate(rank: int, **changes: Any) -> RankFate:
    made: dict[str, Any] = {"outcome": "failed", "phase": "body", "how": "raised ValueError"}
    return RankFate(rank=rank, **(made | changes))


def launch(*fates: RankFate, **changes: Any) -> LaunchRecord:
    return LaunchRecord(index=1, outcome="failed", wall_s=1.0, fates=list(fates), logs="/tmp/run", **changes)


def text(*fates: RankFate, **changes: Any) -> list[str]:
    return launch_text(result(launches=[launch(*fates, **changes)]), rerun_command="pytest x").splitlines()


def test_a_failed_launch_is_described_by_its_ranks() -> None:
    assert launch_headline(launch(fate(0), fate(1), reason="hung\nand more")) == "launch 2 on 2 ranks: hung"
    assert launch_headline(launch(fate(0))) == "launch 2 on 1 rank: failed"

    error = ErrorReport(kind="ValueError", message="bad", traceback="Traceback: bad", raised_at=0.0)
    lines = text(fate(2, error=error), fate(0, error=error), fate(1, how="exit code 3", is_victim=True))
    assert "--- ranks 0, 2: raised ValueError, in phase body" in lines
    assert "--- rank 1: exit code 3, in phase body; followed from another rank's failure" in lines
    assert lines.count("Traceback: bad") == 1

    lines = text(fate(2), fate(0), fate(1, how="exit code 3"), hosts=["a", "a", "b"])
    assert "--- ranks 0 (a), 2 (b): raised ValueError, in phase body" in lines
    assert "--- rank 1 (a): exit code 3, in phase body" in lines

    lines = text(fate(0, how="hung", stacks="line 1\nline 2", waits_at="a.py:7 in b"))
    assert "--- rank 0: hung, in phase body; at a.py:7 in b" in lines
    assert lines[lines.index("    line 1") + 1] == "    line 2"

    lines = text(fate(3, log_tail="said\n"), reason="died\nthe launcher's own words")
    assert "    | said" in lines
    assert "    | the launcher's own words" in lines
    assert lines[-2:] == ["re-run:  pytest x", "debug:   pytest x --distbench-attach 3"]

    tails = ["step 1 took 2.5 ms\n", "step 1 took 31 ms\n", "step 1 died\n"]
    lines = text(*(fate(rank, log_tail=tail) for rank, tail in enumerate(tails)))
    ends = [line for line in lines if line.startswith("    end of ")]
    assert ends == ["    end of /tmp/run/rank0.log; rank 1: the same:", "    end of /tmp/run/rank2.log:"]

    told = "Traceback: bad"
    lines = text(fate(0, error=error, log_tail=f"{told}\n"), reason=f"the body raised\n{told}")
    assert [line.strip(" |") for line in lines].count(told) == 1

    lines = text(fate(0), reason="died", remarks=["GPU 1 holds 3 GiB more than before"])
    assert lines[1] == "GPU 1 holds 3 GiB more than before"

    launches = [launch(remarks=["rank 0: a", "rank 0: a"]), launch(remarks=["rank 0: a", "rank 1: b"]), launch()]
    assert remark_lines(launches) == ["rank 0: a (2 of 3 launches)", "rank 1: b (1 of 3 launches)"]


@pytest.mark.parametrize(("launcher", "is_offered"), [("warm", True), ("far", False), ("mine", True)])
def test_a_debugger_is_offered_at_a_terminal(monkeypatch: pytest.MonkeyPatch, launcher: str, is_offered: bool) -> None:
    monkeypatch.setitem(LAUNCHERS, "far", dataclasses.replace(LAUNCHERS["warm"], hosts="many"))
    made = result(launches=[launch(fate(0))])
    conditions = replace(made.case.conditions, launcher=launcher)
    lines = launch_text(replace(made, case=replace(made.case, conditions=conditions)), rerun_command="pytest x")

    assert ("--distbench-attach 0" in lines) == is_offered


CHANGED = Finding(metric="fingerprint", code="communication", unit="", better="exact", reason="2 became 3")
EXACT = verdict("beyond-threshold", metric="steps", unit="", better="exact", current=3, baseline=2, threshold=0.0)


RED = verdict("beyond-threshold")
RED_22 = verdict("beyond-threshold", ratio=1.22)
NO_VALUE = verdict("beyond-threshold", current=None, reason="no value in 1 of 5 launches")
SIZES = [point(8), point(4096, "beyond-threshold")]


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (result(verdict()), ""),
        (result(**ended("failed", "hung")), "launch 1: hung"),
        (result(**ended("skipped", "no data")), "no data"),
        (result(**ended("skipped", "")), "all ranks skipped"),
        (result(RED), "step +50.0 % (threshold +10%)"),
        (result(RED, xfail_perf="bug 12"), "bug 12"),
        (result(RED_22), "step +22.0 % (threshold +10%)"),
        (result(RED_22, reference=PAIRED), "step +22.0 % against main (123) (threshold +10%)"),
        (result(RED, reference=PAIRED), "step +50.0 % against main (123) (threshold +10%)"),
        (result(RED, RED), "step +50.0 % (threshold +10%), 2 of 2 metrics"),
        (result(*SIZES), "latency at 4 KiB +50.0 % (threshold +10%), 1 of 2 sizes"),
        (
            result(*SIZES, reference=PAIRED),
            "latency at 4 KiB +50.0 % against main (123) (threshold +10%), 1 of 2 sizes",
        ),
        (result(EXACT), "steps: 3, baseline 2 (exact)"),
        (result(EXACT, reference=PAIRED), "steps against main (123): 3, baseline 2 (exact)"),
        (result(CHANGED), "communication changed: 2 became 3"),
        (result(CHANGED, reference=PAIRED), "communication changed against main (123): 2 became 3"),
        (result(RED, CHANGED), "step +50.0 % (threshold +10%); communication changed"),
        (result(NO_VALUE), "step: no value (no value in 1 of 5 launches), baseline 20 ms"),
    ],
)
def test_the_headline_says_what_decided_or_changed_and_by_how_much(made: CaseResult, line: str) -> None:
    assert conclude(made, STRICT).headline == line


def test_a_regression_has_its_columns_and_what_accepts_it() -> None:
    made = result(verdict("beyond-threshold", reason="why"))
    assert failure_text(made, recorded_at="3f2a91c0d4").splitlines() == [
        "step +50.0 % (threshold +10%)",
        "",
        "   metric  this run  baseline   change  threshold  n",
        "!  step       30 ms     20 ms  +50.0 %       +10%  5",
        f"  this run, baseline: {STATISTICS['median'].means}",
        "",
        "step: why",
        "baseline   baselines/x.json, recorded at 3f2a91c0d4",
        "           torch 2.13.0",
        "differs    torch 2.13.0 -> 2.14.0",
        "reproduce  pytest x",
        "intended?  pytest x --distbench-update, then commit the baselines",
    ]

    text = failure_text(result(verdict("beyond-threshold", mde=0.05), reference=PAIRED))
    assert "   metric  candidate  baseline   change  threshold  detects from  pairs" in text
    assert "baseline   main (123)  torch 2.13.0\ncandidate  torch 2.14.0\n" in text
    assert text.endswith("reproduce  pytest x")
    assert "update" not in text

    improved = verdict("better", ratio=0.5)
    text = failure_text(result(improved), Strictness(options=frozenset({"distbench-fail-on-improvement"})))
    assert text.startswith("step: improved: -50.0 %; --distbench-fail-on-improvement\n")
    assert text.endswith("intended?  pytest x --distbench-update, then commit the baselines")

    text = failure_text(result(verdict("no-baseline")), platforms=["gpu-y"])
    looked, record = (
        "looked in baselines/x.json for ws2.gloo.warm: 2 ranks forked with torch loaded, gloo",
        "record it:  pytest x --distbench-update=new",
    )
    assert text.splitlines() == ["no baseline for cpu-x (have: gpu-y)", "", looked, record]


def test_a_timing_that_regressed_names_the_places_that_explain_it() -> None:
    row = PlaceRow(
        place=("layers.py", 9, "norm"), what="aten::mm", calls=(12, 24), amounts=(0.0031, 0.00623), share=0.92,
        changed_at=("train.py", 31),
    )  # fmt: skip
    late = replace(row, place=OUTSIDE, what="Python", calls=(0, 0), share=0.08, rank=1, changed_at=("", 0))
    sentence = "92 % of the added 3.4 ms: layers.py:9 in norm"
    places = CasePlaces(sentence=sentence, rows=[row, late], overhead=1.84, launches=3, took_s=9.2)
    text = failure_text(result(verdict("beyond-threshold"), places=places)).splitlines()
    start = text.index(f"where      {sentence}")

    assert [" ".join(line.split()) for line in text[start + 1 : start + 6]] == [
        "place what calls time share changed at",
        "layers.py:9 in norm aten::mm 12 -> 24 3.1 ms -> 6.23 ms 92 % train.py:31",
        "outside of the repository, in rank 1 Python - 3.1 ms -> 6.23 ms 8 %",
        "by 3 more launches in 9 s, which are not judged; an iteration took 1.8 times as long in them",
        "",
    ]
    on_gpu = replace(result(verdict("beyond-threshold"), places=places), case=replace(result().case, device="cuda"))
    assert "in them; each operator was waited for, so nothing overlapped on the GPU\n" in failure_text(on_gpu)
    missing = failure_text(result(verdict("beyond-threshold"), places=CasePlaces(why_not="a pool")))
    assert "where      not known: a pool\n" in missing
    assert "where " not in failure_text(result(verdict("beyond-threshold")))


def test_memory_that_regressed_names_the_places_that_hold_it() -> None:
    row = PlaceRow(
        place=("layers.py", 9, "norm"), what="aten::mm", calls=(1, 12), amounts=(2**20, 2**25), share=0.9,
        is_counted=True,
    )  # fmt: skip
    sentence = "90 % of the added 34.44 MiB: layers.py:9 in norm"
    places = CasePlaces(metric="peak_memory", unit="B", sentence=sentence, rows=[row], launches=2, took_s=9.2)
    text = failure_text(result(verdict("beyond-threshold"), memory_places=places)).splitlines()
    start = text.index(f"where      {sentence}")

    assert [" ".join(line.split()) for line in text[start + 1 : start + 5]] == [
        "place made by tensors memory share changed at",
        "layers.py:9 in norm aten::mm 1 -> 12 1 MiB -> 32 MiB 90 %",
        "by 2 more launches in 9 s, which are not judged",
        "",
    ]

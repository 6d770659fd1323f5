"""Numbers out of what a script prints and writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.plans import make_plan

from pytest_distbench import read as public
from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers import Place, note_before, problem_with, read_tensorboard, readings
from pytest_distbench.read import NUMBER, csv, json, jsonl, mllog, stdout, tensorboard
from pytest_distbench.records.metric import Observation, Reader
from pytest_distbench.records.record import replace

OUTPUT = """\
starting
iter 0: loss 10.98, time 812.00ms
iter 1: loss 9.50, time 11.00ms
iter 2: loss 8.25, time 10.00ms
eval: 1,234.5 samples
"""


def lay(folder: Path, name: str, text: str) -> None:
    file = folder / name.replace("{launch_dir}", "work")
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def read(folder: Path, reader: Reader, text: str | None = OUTPUT) -> Observation:
    """What a reader finds in its file, or in the output of rank 0, while rank 1 has printed nothing."""
    plan = replace(make_plan(folder), read={"number": reader})
    if text is not None and reader.kind in ("csv", "jsonl", "json"):
        lay(folder, reader.source, text)
    elif text is not None:
        plan.files.log(0).write_text(text, newline="")
    plan.files.log(1).touch()
    [found], _ = readings(plan)
    return found


def test_matches_are_a_series_in_the_unit_that_the_scale_makes(tmp_path: Path) -> None:
    times = read(tmp_path, stdout(r"time ([\d.]+)ms", scale=1e-3, unit="s", better="lower", skip=1))

    assert times.values == pytest.approx([0.011, 0.010])
    assert (times.unit, times.better, times.is_series, times.identity) == ("s", "lower", True, {"skip": 1})


def test_bounds_are_in_the_unit_and_know_the_line_that_set_them(tmp_path: Path) -> None:
    reader = stdout(r"time ([\d.]+)ms", scale=1e-3, unit="s", at_most="20 ms", at_least=0.001)
    found = [(bound.side, bound.value) for bound in read(tmp_path, reader).bounds]

    assert found == [("least", 0.001), ("most", pytest.approx(0.02))]
    assert re.fullmatch(r"read\.stdout at test_readers\.py:\d+", reader.bounds[0].where)


@pytest.mark.parametrize(
    ("reading", "values", "is_series"),
    [
        ({"better": "curve", "first": 2}, [10.98, 9.5, 8.25], True),
        ({"better": "floor"}, [8.25], False),
        ({"take": "first"}, [10.98], False),
        ({"take": "min"}, [8.25], False),
        ({"take": "max", "skip": 1}, [9.5], False),
    ],
)
def test_a_series_becomes_a_curve_or_a_number(
    reading: dict[str, object], values: list[float], is_series: bool, tmp_path: Path
) -> None:
    found = read(tmp_path, stdout(r"loss ([\d.]+)", **reading))  # type: ignore[arg-type]

    assert (found.values, found.is_series) == (values, is_series)


def test_a_curve_keeps_the_text_that_the_script_wrote_with_each_value(tmp_path: Path) -> None:
    curve = read(tmp_path, stdout(r"loss ([\d.]+)", better="curve", skip=1))
    of_csv = read(tmp_path, csv("log.csv", "loss", better="curve"), "step,loss\n10,3.5\n")
    of_jsonl = read(tmp_path, jsonl("log.jsonl", "loss", better="curve"), '{"step": 10, "loss": 3.5}\n')

    assert curve.beside == ["iter 1: loss 9.50, time 11.00ms", "iter 2: loss 8.25, time 10.00ms"]
    assert read(tmp_path, stdout(r"loss ([\d.]+)")).beside == []
    assert of_csv.beside == ["step=10, loss=3.5"]
    assert of_jsonl.beside == ['{"step": 10, "loss": 3.5}']


def test_every_rank_may_be_read(tmp_path: Path) -> None:
    plan = replace(make_plan(tmp_path), read={"t": stdout(r"t (\d+)", rank="all", better="lower")})
    for rank in range(2):
        plan.files.log(rank).write_text(f"t {rank + 5}\n")

    assert [([*found.of_ranks], found.values) for found in readings(plan)[0]] == [([0], [5.0]), ([1], [6.0])]


MLLOG = """\
noise
:::MLLOG {"namespace": "", "time_ms": 1000, "event_type": "INTERVAL_START", "key": "run_start", "value": null}
:::MLLOG {"namespace": "", "time_ms": 1500, "event_type": "POINT", "key": "eval_accuracy", "value": 0.25}
[0] :::MLLOG {"namespace": "", "time_ms": 3500, "event_type": "POINT", "key": "eval_accuracy", "value": 0.75}
:::MLLOG {"namespace": "", "time_ms": 4000, "event_type": "INTERVAL_END", "key": "run_stop", "value": null}
"""
JSON = """\
\ufeff{"step": 1, "loss": 3}
{"eval": {"accuracy": 0.5}}
{"eval.accuracy": "0.75"}
{"eval": null}

"""
"""JSON with a byte order mark, as the second table has."""
OTHER_COMMAS = ["0,5", "12,34", "1,2345", "1_0", "1.000,5"]
HEAD = "no column 'loss'; its first line is"
WHOLE = stdout("loss " + NUMBER)
TABLE, TWICE = "step, loss\n1,3.5\n2,\n3,2.5\n", "\ufeffstep,loss, loss\n1,3.5,9\n"


@pytest.mark.parametrize(
    ("reader", "text", "values"),
    [
        (stdout(r"(eval|test): (?P<value>[\d.,]+)"), OUTPUT, [1234.5]),
        (stdout(r"loss=([\d.]+)"), "\x1b[32m 1/2\x1b[0m loss=3.0\r 2/2 loss=\x1b[1m2.5\x1b[0m\n", [3.0, 2.5]),
        (WHOLE, "loss information\nloss 0.5", [0.5]),
        (WHOLE, "loss 1.502e-05", [1.502e-05]),
        (WHOLE, "loss 150,234.5", [150234.5]),
        (jsonl("log.jsonl", "eval.accuracy"), JSON, [0.5, 0.75]),
        (jsonl("log.jsonl", "loss"), JSON, [3.0]),
        (csv("{launch_dir}/log.csv", "loss"), TABLE, [3.5, 2.5]),
        (csv("log.csv", "step"), TWICE, [1.0]),
        (mllog("eval_accuracy", better="floor"), MLLOG, [0.75]),
        (mllog("run_stop", since="run_start", unit="s", better="lower"), MLLOG, [3.0]),
    ],
)
def test_a_reader_finds_its_numbers(reader: Reader, text: str, values: list[float], tmp_path: Path) -> None:
    found = read(tmp_path, reader, text)

    assert (found.values, found.identity) == (values, {"since": "run_start"} if reader.since else {})


PANDAS = "step,loss\n0,1.0\n1,0.5\n2,\n3,\n"
LIGHTNING = """\
epoch,loss,lr-SGD,step,val_loss
,,0.05,0,
0,7.5,,0,
0,2.5,,1,
0,,,1,3.25
,,0.01,2,
1,1.5,,2,
1,1.0,,3,
1,,,3,0.5
"""
SPARSE = "step,lr,val\n" + "".join(f"{step},0.1,{step / 10 if step % 3 == 0 else ''}\n" for step in range(8))
OF_RANKS = "rank,step,loss\n0,0,4.0\n1,0,5.0\n0,1,3.0\n1,1,4.5\n"
STATE = """\
{"global_step": 2, "losses": [4, 3], "eval": {"acc": [0.5, 0.75]},
 "log_history": [{"step": 1, "loss": 2.5}, {"step": 1, "eval_loss": 2.0}, {"step": 2, "loss": 1.5}]}
"""
STATS = ':::MLLOG {"key": "tracked_stats", "value": {"throughput": 100.5}, "time_ms": 1}\n'
BARS = "1.05s/it\n20.00it/s, loss=0.5\n2s/it\n"
TRAIN_AND_VAL = "".join(
    f'{{"split": "{s}", "epoch": {e}, "loss": {e + 1}}}\n' for e in (0, 1) for s in ("train", "val")
)


@pytest.mark.parametrize(
    ("reader", "text", "values"),
    [
        (csv("log.csv", "loss", better="curve"), LIGHTNING, [7.5, 2.5, 1.5, 1.0]),
        (csv("log.csv", "val_loss", better="curve"), LIGHTNING, [3.25, 0.5]),
        (csv("log.csv", "lr-SGD", better="curve"), LIGHTNING, [0.05, 0.01]),
        (csv("log.csv", "val", better="curve"), SPARSE, [0.0, 0.3, 0.6]),
        (csv("log.csv", "loss", better="curve", where={"rank": 1}), OF_RANKS, [5.0, 4.5]),
        (csv("log.csv", "loss", better="curve", where={"rank": "1", "step": 0.0}), OF_RANKS, [5.0]),
        (csv("log.tsv", "loss", better="curve"), "step\tloss\n0\t1.5\n", [1.5]),
        (csv("log.csv", "size", unit="B"), "size\n2 KiB\n", [2048.0]),
        (jsonl("log.jsonl", "loss", where={"split": "val", "epoch": 0}), TRAIN_AND_VAL, [1.0]),
        (jsonl("log.jsonl", "m.1"), '{"m": [1, 2]}\n', [2.0]),
        (jsonl("log.jsonl", "m[1].a.b.c"), '{"m": [1, {"a.b": {"c": 3}}]}\n', [3.0]),
        (jsonl("log.jsonl", "val"), '{"step": 0, "val": 1}\n{"step": 1}\n', [1.0]),
        (jsonl("log.jsonl", "val"), '{"step": 0, "val": null}\n{"step": 1, "val": 4}\n', [4.0]),
        (json("state.json", "log_history[].loss", better="curve"), STATE, [2.5, 1.5]),
        (json("state.json", "log_history[].loss", where={"step": 2}), STATE, [1.5]),
        (json("state.json", "global_step"), STATE, [2.0]),
        (json("state.json", "eval.acc.0"), STATE, [0.5]),
        (json("state.json", "losses[]", better="curve"), STATE, [4.0, 3.0]),
        (json("list.json", "[].loss", better="curve"), '[{"loss": 2}, {"loss": 1}]', [2.0, 1.0]),
        (mllog("tracked_stats.throughput"), STATS, [100.5]),
        (
            stdout("took " + NUMBER, unit="s", better="curve"),
            "took 950 ms\ntook 1,200ms\ntook 1.5 s\n",
            [0.95, 1.2, 1.5],
        ),
        (stdout("took " + NUMBER, unit="s"), "took 3 steps\n", [3.0]),
        (stdout(NUMBER + "it/s", unit="it/s", better="curve"), BARS, [0.952380952, 20.0, 0.5]),
        (stdout(NUMBER + "s/it", unit="s", better="curve"), BARS, [1.05, 0.05, 2.0]),
        (stdout("s/it, loss=" + NUMBER, better="curve"), BARS, [0.5]),
        (stdout("held " + NUMBER, unit="B", better="curve"), "held 1MiB\nheld 2KiB\n", [1048576.0, 2048.0]),
    ],
)
def test_of_what_loggers_write_the_values_that_were_asked_for_count(
    reader: Reader, text: str, values: list[float], tmp_path: Path
) -> None:
    assert read(tmp_path, reader, text).values == values


@pytest.mark.parametrize(
    ("rows", "values", "said"),
    [
        ([(0, 5.0), (1, 4.0), (2, 3.0), (1, 4.5), (2, 3.5)], [5.0, 4.5, 3.5], "without 2 values"),
        ([(0, 5.0), (1, 4.0), (0, 6.0)], [6.0], "step 1 was followed by step 0"),
        ([(0, 5.0), (1, 4.0), (1, 4.5), (0, 6.0), (1, 5.5), (0, 7.0)], [7.0], "restarted 2 times, without 5 values"),
        ([(0, 5.0), (1, 4.0), (1, 3.0), (2, 2.0)], [5.0, 4.0, 3.0, 2.0], ""),
    ],
)
def test_what_a_restarted_training_made_again_counts_once_and_is_said(
    rows: list[tuple[int, float]], values: list[float], said: str, tmp_path: Path
) -> None:
    text = "step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in rows)
    lay(tmp_path, "log.csv", text)
    lay(tmp_path, "log.jsonl", "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in rows))
    plan = replace(
        make_plan(tmp_path),
        read={
            "a": csv("log.csv", "loss", better="curve"),
            "b": jsonl("log.jsonl", "loss", better="curve"),
            "c": csv("log.csv", "loss", better="curve", step=None),
        },
    )
    (of_csv, of_jsonl, of_all), remarks = readings(plan)

    assert of_csv.values == of_jsonl.values == values
    assert of_all.values == [loss for _, loss in rows]
    assert [remark.partition(":")[0] for remark in remarks] == (["a", "b"] if said else [])
    assert all(said in remark and str(tmp_path) not in remark for remark in remarks)


def test_a_fraction_of_an_epoch_that_is_rounded_is_no_restart(tmp_path: Path) -> None:
    text = "epoch,step,loss\n0.33,1,3\n0.67,2,2\n0.66,3,1\n"

    assert read(tmp_path, csv("log.csv", "loss", better="curve"), text).values == [3.0, 2.0, 1.0]


@pytest.mark.parametrize("columns", ["epoch,step", "epoch,iter"])
def test_a_step_that_restarts_in_each_epoch_is_no_restart_of_the_training(columns: str, tmp_path: Path) -> None:
    text = f"{columns},loss\n0,0,4\n0,1,3\n1,0,2\n1,1,1\n"

    assert read(tmp_path, csv("log.csv", "loss", better="curve"), text).values == [4.0, 3.0, 2.0, 1.0]
    assert read(tmp_path, csv("log.csv", "loss", better="curve", step=columns[6:]), text).values == [2.0, 1.0]


NO_TIME = "number: 0 s is no time that anything takes: line 1 of rank 0's output"
LOSS, TOOK = r"loss ([\d.]+)", r"took (\S+) ms"


@pytest.mark.parametrize(
    ("reader", "text", "said"),
    [
        (stdout(r"nowhere " + NUMBER), OUTPUT, r"the pattern 'nowhere ' \+ NUMBER matches nothing"),
        (stdout(NUMBER + " nowhere"), OUTPUT, r"the pattern NUMBER \+ ' nowhere' matches nothing"),
        (stdout(r"loss: ([\d.]+)"), OUTPUT, "matches nothing in the output of rank 0; the nearest lines are:\niter"),
        (stdout(LOSS, skip=3), OUTPUT, "3 values found, and skip=3 leaves nothing: line 4 of rank 0's output"),
        (stdout(LOSS, first=10), OUTPUT, "wanted the first 10 values, found 3"),
        (stdout(r"(starting)"), OUTPUT, "'starting' is no number: line 1 of rank 0's output"),
        (stdout(r"t (\d)", rank=1), OUTPUT, "in the output of rank 1, which is empty"),
        (stdout(TOOK, scale=1e-3, unit="s", better="lower"), "took 0.0 ms\n", NO_TIME),
        (stdout(TOOK, scale=1e-3, unit="s", better="info", at_most=1), "took 0.0 ms\n", NO_TIME),
        (stdout(LOSS), "loss 1.502e-05", "takes '1.502' of the number '1.502e-05'"),
        (stdout(LOSS), "loss 150,234.5", "takes '150' of the number '150,234.5'"),
        (WHOLE, "loss 0.5\nloss -inf", "number: the value is -inf: line 2 of rank 0's output: loss -inf"),
        *((stdout(r"loss (\S+)"), f"loss {text}\n", "is no number") for text in OTHER_COMMAS),
        (jsonl("log.jsonl", "loss"), '{"a": 1}\n{"b"', "log.jsonl:2: no JSON"),
        (jsonl("log.jsonl", "loss"), '{"a": 1}\n[2]\n', "no row has 'loss'; there are a"),
        (jsonl("log.jsonl", "loss"), "", "no row has 'loss'; there are no rows"),
        (csv("runs/log.csv", "loss"), None, "nor a folder"),
        (csv("log.csv", "acc"), TABLE, "no column 'acc'; there are step, loss"),
        (csv("log.csv", "loss"), TWICE, "2 columns are called 'loss'; there are step, loss, loss"),
        (csv("log.csv", "loss"), "step\tloss\n1\t3.5\n", rf"{HEAD} 'step\\tloss', without a comma"),
        (csv("log.csv", "loss"), "step;loss\n1;3.5\n", f"{HEAD} 'step;loss', without a comma"),
        (csv("log.csv", "loss"), PANDAS, r"the value is nan: .*log.csv:4: it is empty, as pandas writes nan"),
        (csv("log.csv", "loss", take="min"), "step,loss\n0,1\n1,\n2,2\n3,3\n", r"nan: .*log.csv:3"),
        (csv("log.csv", "val"), SPARSE + "8,0.1,\n9,0.1,\n", r"nan: .*log.csv:9"),
        (csv("log.csv", "loss"), "step,loss\n0,\n1,\n", "'loss' is empty in all rows, 2 rows"),
        (jsonl("log.jsonl", "a"), '{"a": 1}\n{"a": null}\n', r"nan: .*log.jsonl:2: it is empty"),
        (csv("log.csv", "loss"), OF_RANKS, r"rank is 0 \(.*:2\), and 1 \(.*:3\). Choose one: where={'rank': '1'}"),
        (jsonl("log.jsonl", "loss"), TRAIN_AND_VAL, "split is train .*Choose one: where={'split': 'val'}"),
        (csv("log.csv", "loss", where={"rank": 2}), OF_RANKS, r"where={'rank': 2}: no row has it; 'rank' is 0, 1"),
        (csv("log.csv", "loss", where={"ranks": 2}), OF_RANKS, "no column 'ranks'; there are rank, step, loss"),
        (jsonl("log.jsonl", "loss", where={"r": 2}), TRAIN_AND_VAL, "no row has 'r'; there are split, epoch, loss"),
        (csv("log.csv", "loss", step="rank", where={"rank": 1}), OF_RANKS.replace("\n1", "\nx"), "no row has it"),
        (jsonl("log.jsonl", "loss", step="n"), TRAIN_AND_VAL, "step='n' is no number in the row"),
        (csv("log.csv", "loss"), "loss,note\n1,a, b\n2,a,\n", "log.csv:2: more cells than the 2 columns"),
        (jsonl("log.jsonl", "a"), "[1]\n[2]\n", "no row has 'a'; there are 2 without names"),
        (csv("log.csv", "size"), "size\n2 KiB\n", "'2 KiB' is no number: .*; unit='KiB' without scale= reads it"),
        (jsonl("log.jsonl", "m"), '{"m": [1, 2]}\n', r"'m' is \[1, 2\]: wanted a number in it: m.0, m.1, .* m\[\]"),
        (jsonl("log.jsonl", "m"), '{"m": {"a": 1}}\n', "wanted a number in it: m.a: "),
        (jsonl("log.jsonl", "loss"), STATE, "no JSON: .* The file is one JSON document, which read.json reads"),
        (json("a.json", "loss"), '{"loss": 1}\n{"loss": 2}\n', "no JSON: Extra data.*; read.jsonl reads"),
        (json("a.json", "log_history.loss"), STATE, r"'log_history' is a list: wanted log_history\[\].loss, or"),
        (json("a.json", "log[].loss"), STATE, "no list 'log'; there are global_step, losses, eval, log_history"),
        (json("a.json", "log_history[].acc"), STATE, "no row has 'acc'; there are step, loss, eval_loss"),
        (mllog("tracked_stats"), STATS, "is no number"),
        (mllog("tracked_stats.speed"), STATS, "there are tracked_stats, tracked_stats.throughput"),
        (WHOLE, "loss 950 ms\nloss 1.2 s", "several units:\n950 ms in line 1 .*\n1.2 s in line 2 .*\n.*or give unit="),
        (stdout("loss " + NUMBER, scale=1e-3, unit="s"), "loss 950 ms\nloss 1.2 s", "takes numbers in several units"),
        (
            WHOLE,
            "loss 12.5k tokens/s\nloss 980 tokens/s",
            "12.5 k in line 1 .*\n980 tokens/s in line 2 .*\nLet the script",
        ),
        (mllog("loss"), MLLOG, "no event 'loss'; there are run_start, eval_accuracy, run_stop"),
        (mllog("loss"), "nothing\n", "there are no :::MLLOG lines"),
        (mllog("run_start", since="run_stop"), MLLOG, "'run_start' after a 'run_stop'"),
        (mllog("a"), ":::MLLOG {\n", "line 1 of rank 0's output: no JSON"),
        (mllog("a"), ":::MLLOG [1]\n", "cannot read 'the output': TypeError"),
        (mllog("a", since="a"), ':::MLLOG {"key": "a"}\n', "cannot read 'the output': KeyError: 'time_ms'"),
        pytest.param(
            csv("log.csv", "loss"), f"loss\n{'1' * 200_000}\n", r"number: cannot read 'log\.csv'", id="a cell"
        ),
        pytest.param(jsonl("log.jsonl", "loss"), "[" * 100_000, r"number: cannot read 'log\.jsonl'", id="a nesting"),
    ],
)
def test_a_reader_that_finds_no_number_says_what_there_is(
    reader: Reader, text: str | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ReadingError, match=said):
        read(tmp_path, reader, text)


def test_the_error_for_a_missing_file_lists_the_files_that_exist(tmp_path: Path) -> None:
    (tmp_path / "other.csv").touch()

    with pytest.raises(ReadingError, match=r"there is no .*/log.csv; .* has other.csv"):
        read(tmp_path, csv("log.csv", "loss"), None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("log.csv", "is older than this launch"),
        ("pipe.csv", "is neither a file nor a folder"),
        ("folder.csv", r"cannot read 'folder\.csv': IsADirectoryError"),
        ("x" * 300, "cannot read"),
    ],
)
def test_what_is_no_file_of_this_launch_is_not_read(name: str, said: str, tmp_path: Path) -> None:
    lay(tmp_path, "log.csv", "loss\n1\n")
    os.utime(tmp_path / "log.csv", (1, 1))
    (tmp_path / "began").touch()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()

    with pytest.raises(ReadingError, match=said):
        read(tmp_path, csv(name, "loss"), None)


def test_a_pattern_that_searches_for_ever_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_distbench.launch.readers.LONGEST_S", 0.2)

    with pytest.raises(ReadingError, match="searching took longer"):
        read(tmp_path, stdout(r"^(?:a+)+ loss ([\d.]+)$"), "a" * 60 + "!\n")


@pytest.mark.parametrize("text", ["nan", "NaN", "-inf", "Infinity"])
def test_nan_is_an_error_though_the_pattern_wants_digits(text: str, tmp_path: Path) -> None:
    output = f"loss 3.5\nloss {text}, banana 4\n"

    with pytest.raises(ReadingError, match=rf"the value is {text}: line 2 of rank 0's output"):
        read(tmp_path, stdout(r"loss ([\d.]+)", better="same"), output)
    assert read(tmp_path, stdout(r"loss ([\d.]+)", better="curve", first=1), output).values == [3.5, 1e300]
    assert read(tmp_path, stdout(r"banana ([\d.]+)"), output).values == [4.0]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("loss 0.5, 3 steps", 0.5),
        ("loss 12ms", 12.0),
        ("loss 5.", 5.0),
        ("loss 1,234", 1234.0),
        ("loss 12,345,678.5", 12345678.5),
        ("loss -1,000", -1000.0),
        ("loss -284641, 445.27 ms", -284641.0),
        ("loss 3,lr 1", 3.0),
    ],
)
def test_commas_may_separate_thousands_and_what_follows_a_number_is_not_of_it(
    line: str, value: float, tmp_path: Path
) -> None:
    assert read(tmp_path, stdout(r"loss (-?[\d.,]*[\d.])"), line).values == [value]
    assert read(tmp_path, stdout("loss " + NUMBER), line).values == [value]


PAGE = (Path(__file__).parents[2] / "docs" / "numbers.md").read_text()
BY_LOGGER = [
    code
    for row in re.findall(r"^\| .+? \| (.+?) \| .*\|$", PAGE.partition("## A line")[0], re.MULTILINE)
    for code in re.findall(r"`([^`]+)`", row)
]


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (json("a.json", "a[].b[].c"), r"more than 1 \[\]"),
        (jsonl("a.jsonl", "a[]"), r"more than 0 \[\]: read.json reads one list"),
        (jsonl("a.jsonl", "a", step=3), "step=3; wanted the name of a column, or None"),  # type: ignore[arg-type]
        (csv("a.csv", "a", where=["rank"]), r"where=\['rank'\]; wanted a dict"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_reader_of_rows_is_refused_before_a_launch(reader: Reader, said: str) -> None:
    assert re.search(said, problem_with(reader))


def test_each_reader_of_the_page_on_loggers_can_be_made() -> None:
    readers = [eval(code, vars(public)) for code in BY_LOGGER]

    assert len(readers) > 20
    assert [problem for reader in readers if (problem := problem_with(reader))] == []


pytestmark = pytest.mark.xdist_group("test_tensorboard")  # another worker would import torch to write the files again

WRITES = """
import sys
from torch.utils.tensorboard import SummaryWriter
def write(name, steps, value, start=0, **options):
    with SummaryWriter(f"{sys.argv[1]}/{name}", **options) as writer:
        for step in steps:
            writer.add_scalar("train/loss", value - step, step, walltime=start + step)
        writer.add_text("note", "no number")
write("purged", range(4), 9)
write("purged", range(2, 5), 5, start=9, purge_step=2)
write("restarted", range(4), 9)
write("restarted", range(2, 5), 5, start=9)
write("at_once", range(3), 9, start=0)
write("at_once", range(3), 5, start=0.5)
for part in (1, 0):
    write(f"parts/part{part}", range(3 * part, 3 * part + 3), 4)
with SummaryWriter(f"{sys.argv[1]}/scalars") as writer:
    for step in range(2):
        writer.add_scalars("loss", {"train": 2 - step, "val": 4 - step}, step)
with SummaryWriter(f"{sys.argv[1]}/hparams") as writer:
    writer.add_scalar("loss", 2, 1)
    writer.add_hparams({"lr": 0.1}, {"loss": 77})
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    subprocess.run([sys.executable, "-W", "ignore", "-c", WRITES, str(folder)], check=True)  # it imports torch
    return folder


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_a_tag_is_read_in_the_order_of_its_steps(runs: Path, tmp_path: Path) -> None:
    found = read_tensorboard(tensorboard(runs / "parts", "train/loss"), Place(make_plan(tmp_path), 0))

    assert [float(text) for text, *_ in found] == [4.0, 3.0, 2.0, 1.0, 0.0, -1.0]
    assert found[3][1:] == ("step 3 of part1", "step 3")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("folder", "tag", "values", "remarks"),
    [
        ("purged", "train/loss", [9.0, 8.0, 3.0, 2.0, 1.0], []),
        ("restarted", "train/loss", [9.0, 8.0, 3.0, 2.0, 1.0], ["step 3 was followed by step 2 (step 2 of restarted)"]),
        ("scalars/loss_train", "loss", [2.0, 1.0], []),
        ("hparams", "loss", [2.0], []),
    ],
)
def test_a_run_has_each_step_once_as_tensorboard_shows_it(
    folder: str, tag: str, values: list[float], remarks: list[str], runs: Path, tmp_path: Path
) -> None:
    place = Place(make_plan(tmp_path), 0)

    assert [float(text) for text, *_ in read_tensorboard(tensorboard(runs / folder, tag), place)] == values
    assert [remark.partition(": ")[0] for remark in place.remarks] == remarks


@pytest.mark.filterwarnings("ignore")
def test_event_files_of_earlier_runs_are_not_read(runs: Path, tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    for file in (runs / "parts/part0").iterdir():
        os.utime(file, (1.0, 1.0))
    plan.files.began.touch()
    for file in (runs / "parts/part1").iterdir():
        os.utime(file)
    found = [float(text) for text, *_ in read_tensorboard(tensorboard(runs / "parts", "train/loss"), Place(plan, 0))]

    assert found == [1.0, 0.0, -1.0]
    with pytest.raises(ReadingError, match="has no event file, but for 1 of earlier runs"):
        read_tensorboard(tensorboard(runs / "parts/part0", "train/loss"), Place(plan, 0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("folder", "tag", "error", "said"),
    [
        ("parts", "loss", ReadingError, "no tag 'loss'; there are train/loss"),
        ("", "loss", ReadingError, "has no event file"),
        ("parts/part0", "note/text_summary", ValueError, "could not convert string to float"),
        ("scalars", "loss", ReadingError, r"2 runs have the tag 'loss': loss_train, loss_val. .* in loss_val. Name"),
        ("at_once", "train/loss", ReadingError, "several processes have written .*, with step 0 in both"),
    ],
)
def test_a_tag_that_is_no_scalar_is_an_error(
    folder: str, tag: str, error: type[Exception], said: str, runs: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        read_tensorboard(tensorboard(runs / folder if folder else tmp_path, tag), Place(make_plan(tmp_path), 0))


def test_the_error_without_tensorboard_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)

    with pytest.raises(ReadingError, match="pip install tensorboard"):
        read_tensorboard(tensorboard(tmp_path, "loss"), Place(make_plan(tmp_path), 0))


def test_a_file_that_a_launch_appended_to_is_refused_and_a_rewritten_one_is_read(tmp_path: Path) -> None:
    plan = replace(make_plan(tmp_path), read={"loss": jsonl("log.jsonl", "loss")})
    note_before(plan)
    assert not plan.files.before.exists()  # where nothing lay nothing is noted
    log = tmp_path / "log.jsonl"
    log.write_text('{"loss": 1}\n')
    note_before(plan)
    log.write_text('{"loss": 1}\n{"loss": 9}\n')
    with pytest.raises(ReadingError, match="before this launch, which appended to it: its first 12 bytes"):
        Place(plan, 0).path("log.jsonl")
    log.write_text('{"loss": 2}\n{"loss": 3}\n')

    assert Place(plan, 0).path("log.jsonl") == log

"""A run, or a table of it, in each format."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from markdown_it import MarkdownIt
from support.results import point, result, run, verdict

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.formats import FORMATS, Format, write_as
from pytest_distbench.report.tables import LAUNCHES, VERDICTS
from pytest_distbench.report.tables.table import DataTable

SECTION = VERDICTS.table([result(verdict("beyond-threshold", metric="a|\x1bb"))])


def written(name: str, section: DataTable) -> bytes:
    out = io.BytesIO()
    FORMATS[name].write(run(), {"one": section}, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "first", "cell"),
    [
        ("text", "verdict    reason            test          metric", "a|\\x1bb"),
        ("markdown", "| verdict | reason | test | metric |", "| a&#124; b |"),
        ("csv", "verdict,code,test,metric", "a|\\x1bb"),
    ],
)
def test_a_table_is_written_so_that_its_readers_are_safe(name: str, first: str, cell: str) -> None:
    text = written(name, SECTION).decode()

    assert text.startswith(first)
    assert cell in text


def test_people_get_aligned_text_and_markdown_and_parquet_is_for_files() -> None:
    section = LAUNCHES.table([result()])
    assert written("text", section).decode().splitlines() == [
        "test         launch  outcome   time  memory  cores of others  reason",
        "test_a[ws2]  1       passed   1.5 s       -                -",
    ]
    assert written("markdown", section).decode().splitlines()[1] == "|---|---|---|---:|---:|---:|---:|"

    table = pyarrow.parquet.read_table(io.BytesIO(written("parquet", LAUNCHES.table([result()]))))
    assert table.to_pylist()[0]["wall_s"] == 1.5

    assert [name for name, row in FORMATS.items() if not row.is_text] == ["parquet"]

    section = replace(SECTION, footer=["# <img src=x onerror=a>", "# Avg bus bandwidth: 1"])
    below = written("markdown", section).decode().rpartition("\n\n")[2]
    text = "<p>#<!-- --> &lt;img src=x onerror=a&gt;<br>\n#<!-- --> Avg bus bandwidth: 1<br></p>\n"
    assert MarkdownIt("gfm-like").render(below) == text


def everything() -> RunRecord:
    """A training to a target and a sweep, which all formats have something of."""
    at = {"seed": 3}
    when = {"at": at, "facts": {"every": 5}}
    training = [
        Sample(name="steps_to_accuracy", unit="steps", better="steps", value=10, at=at),
        Sample(name="time_to_accuracy", unit="s", better="lower", value=7.0, at=at),
        Sample(name="evaluated_accuracy", unit="", better="info", value=0.5, values=[0.5, 0.9], **when),
    ]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.5, measurements=training)
    sweep = Sample(
        name="latency", unit="s", better="lower", value=0.5, at={"message_bytes": 8}, values=[0.5],
        facts={"busbw_factor": 1.5, "parts": 4, "operation": "all_reduce", "dtype": "float32"},
    )  # fmt: skip
    return run(
        result(verdict("beyond-threshold"), launches=[launch]),
        result(point(8), launches=[msgspec.structs.replace(launch, measurements=[sweep])]),
    )


def damaged(document: Any, nonsense: object) -> Iterator[Any]:
    """The same document again and again, each time with another text, or what lies under another name, replaced."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield document | {name: nonsense}
            yield {other: kept for other, kept in document.items() if other != name}
            yield from (document | {name: other} for other in damaged(value, nonsense))
    elif isinstance(document, list):
        for i, value in enumerate(document):
            yield from ([*document[:i], other, *document[i + 1 :]] for other in damaged(value, nonsense))


@pytest.mark.parametrize("nonsense", ["no date", "\0<img src=x>", -1], ids=repr)
def test_a_damaged_record_is_written_or_a_one_line_error_in_every_format(nonsense: object) -> None:
    tried = 0
    for document in damaged(msgspec.to_builtins(everything()), nonsense):
        try:
            record = msgspec.convert(document, RunRecord)
        except msgspec.ValidationError:
            continue
        tried += 1
        sections = {"one": SECTION}
        for name in (name for name, row in FORMATS.items() if row.is_whole):
            try:
                write_as(name, record, sections, io.BytesIO())
            except DistbenchError as error:
                assert "\n" not in str(error)  # noqa: PT017 many do not raise

    assert tried > 40


def test_what_a_format_does_not_find_in_a_record_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(record: RunRecord, sections: object, out: object) -> None:
        record.settings["every"]

    monkeypatch.setitem(FORMATS, "mine", Format(write=look_up, is_whole=True))

    with pytest.raises(DistbenchError, match="--format mine cannot describe this run: KeyError: 'every'"):
        write_as("mine", everything(), {}, io.BytesIO())

"""The tables of a run, and the formats they are written in."""

from __future__ import annotations

import csv
import io

import pytest
from support.results import PAIRED, point, result, verdict

from pytest_distbench.judging.links import Link
from pytest_distbench.records.gpu import Gpu, GpuHost
from pytest_distbench.records.metric import metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.formats import FORMATS
from pytest_distbench.report.sections import (
    bucket_section,
    collective_section,
    environment_section,
    launch_section,
    link_matrix_section,
    link_section,
    sections_of,
    verdict_section,
)


def written(section_format: str, section: object) -> bytes:
    out = io.BytesIO()
    FORMATS[section_format].write(section, out)  # type: ignore[arg-type]
    return out.getvalue()


def test_verdicts_come_the_gravest_first_with_values_for_machines_and_texts_for_people() -> None:
    section = verdict_section([result(verdict("unchanged")), result(verdict("regressed"))])

    assert [row[0].value for row in section.rows] == ["regressed", "unchanged"]
    assert section.header == ["verdict", "test", "metric", "this run", "baseline", "change", "limit", "n"]
    assert section.texts[0] == ["regressed", "test_a[ws2]", "step", "30 ms", "20 ms", "+50.0 %", "+10%", "5"]
    (row, _) = csv.DictReader(written("csv", section).decode().splitlines())
    assert (row["test"], row["current"], row["ratio"]) == ("suites/test_a.py::test_a[ws2]", "0.03", "1.5")


def test_beside_another_revision_the_other_side_has_its_name() -> None:
    assert "reference" in verdict_section([result(verdict(), reference=PAIRED)]).header


def test_collectives_have_the_columns_of_nccl_tests() -> None:
    section = collective_section([result(point(1_000_000, current=0.001))])

    assert section.header == ["test", "size", "time us", "algbw GB/s", "busbw GB/s", "#wrong", "verdict"]
    assert section.texts == [["test_a[ws2]", "976.6 KiB", "1000.0", "1.000", "1.500", "-", "unchanged"]]
    assert [cell.value for cell in section.rows[0][1:5]] == [1_000_000, 0.001, pytest.approx(1.0), pytest.approx(1.5)]


def test_links_are_rows_and_a_matrix() -> None:
    links = [
        verdict(metric=metric_key("latency", Link(*pair).at), at=Link(*pair).at, current=seconds)
        for pair, seconds in (((0, 1), 1e-4), ((0, 2), 5e-4), ((1, 2), 1e-4))
    ]

    assert link_section([result(*links)]).texts[1] == [
        "test_a[ws2]", "0", "2", "500.0", "-", "5.00", "this link", "unchanged",
    ]  # fmt: skip
    matrix = link_matrix_section([result(*links)])
    assert matrix.header == ["test", "", "from", "to 0", "to 1", "to 2"]
    assert [row[2:] for row in matrix.texts] == [["0", "-", "100", "500"], ["1", "-", "-", "100"]]
    assert list(matrix.table.columns)[2:] == ["from", "to_0", "to_1", "to_2"]


def test_buckets_are_told_beside_the_fewest_tensors() -> None:
    points = []
    for tensors, seconds in ((1, 0.001), (214, 0.01)):
        at = {"calls": "each", "tensors": tensors}
        metric, facts = metric_key("latency", at), {"message_bytes": 10**6}
        points.append(verdict(metric=metric, at=at, facts=facts, current=seconds))

    assert [row[1:] for row in bucket_section([result(*points)]).texts] == [
        ["each", "1", "976.6 KiB", "1000.0", "1.00", "1.000", "unchanged"],
        ["each", "214", "976.6 KiB", "10000.0", "10.00", "0.100", "unchanged"],
    ]


def test_the_environment_tells_what_cases_differ_in() -> None:
    first = result()
    other = replace(first, environment=replace(first.environment, software={"torch": "2.15.0"}))
    values = [cells[0].value for cells in environment_section([first, other]).rows]

    assert values == ["platform", "device", "cores", "torch", "torch"]


def test_a_run_has_the_tables_that_have_rows() -> None:
    record = RunRecord(
        schema=2, distbench="0", started="", duration_s=1.0, world_sizes=[2], gpu=False, results=[result(verdict())]
    )

    assert list(sections_of(record)) == ["verdicts", "environment", "launches"]


def test_text_is_aligned_and_markdown_escaped() -> None:
    section = launch_section([result()])

    assert written("text", section).decode().splitlines() == [
        "test         launch  outcome   time  memory  cores of others  reason",
        "test_a[ws2]  1       passed   1.5 s       -                -",
    ]
    assert written("markdown", section).decode().splitlines()[1] == "|---|---|---|---:|---:|---:|---:|"


def test_parquet_holds_the_values() -> None:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(written("parquet", launch_section([result()]))))

    assert table.to_pylist()[0]["wall_s"] == 1.5


def test_the_environment_of_a_run_on_gpus_has_each_of_them_and_what_joins_them() -> None:
    gpus = [Gpu(name="NVIDIA H200", uuid=f"GPU-{i}", index=i, ecc=True, power_limit_w=700.0) for i in (2, 3)]
    host = GpuHost(
        driver="570", cuda="12.8", cpu="Xeon", gpus=gpus, links=[["", "nvlink4x18"], ["nvlink4x18", ""]],
        unreadable=["GPU 0: lost"],
    )  # fmt: skip
    on_gpus = replace(result(), environment=replace(result().environment, gpu_host=host))
    rows = {cells[0].value: cells[1].value for cells in environment_section([on_gpus]).rows}

    assert rows["GPU 2"] == "NVIDIA H200, 700 W, ECC on, GPU-2"
    assert rows["links of GPU 3"] == "GPU 2 nvlink4x18"
    assert (rows["host CPU"], rows["not used"]) == ("Xeon", "GPU 0: lost")

"""The tables of a run, and the formats they are written in."""

from __future__ import annotations

import csv
import io

from support.results import PAIRED, point, result, verdict

from pytest_distbench.judging.links import Link
from pytest_distbench.records.gpu import Gpu, GpuHost
from pytest_distbench.records.metric import LINK_PEAK, metric_key
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

RECORD = RunRecord(
    schema=2, distbench="0", started="", duration_s=1.0, world_sizes=[2], gpu=False, results=[result(verdict())]
)


def written(section_format: str, section: object) -> bytes:
    out = io.BytesIO()
    FORMATS[section_format].write(section, RECORD, out)  # type: ignore[arg-type]
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


def test_where_the_peak_of_the_links_is_known_its_share_has_a_column() -> None:
    facts = {"collective": "all_reduce", "busbw_factor": 1.5, LINK_PEAK: 3.0}
    section = collective_section([result(replace(point(1_000_000, current=0.001), facts=facts))])

    assert section.header[section.header.index("busbw(GB/s)") + 1] == "of peak"
    assert "50.0%" in section.texts[0]


def test_collectives_have_the_columns_of_nccl_tests() -> None:
    facts = {"collective": "all_reduce", "dtype": "float32", "busbw_factor": 1.5, "count": 250_000, "redop": "sum"}
    measured = replace(point(1_000_000, current=0.001), facts=facts)
    section = collective_section([result(measured, point(64))])

    side = ["algbw(GB/s)", "busbw(GB/s)", "#wrong"]
    assert section.header == [
        "collective", "backend", "mode", "ranks", "size(B)", "count", "type", "redop", "root",
        "in-place time(us)", *side, "verdict",
    ]  # fmt: skip
    assert section.texts == [
        [
            *("all_reduce", "gloo", "per-iteration", "2", "1000000", "250000", "float32", "sum", "-1"),
            *("1000.00", "1.000", "1.500", "N/A"),
            "unchanged",
        ]
    ]
    assert written("text", section).decode().splitlines()[-2:] == [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 1.5",
    ]
    assert len(section.table.rows[0]) == len(section.columns) == 23


def test_both_placements_have_columns_where_both_ran() -> None:
    sides = [
        replace(point(64, current=0.001), facts={"collective": "all_gather", "in_place": in_place})
        for in_place in (False, True)
    ]
    section = collective_section([result(side) for side in sides])

    assert [heading for heading in section.header if "time" in heading] == [
        "out-of-place time(us)",
        "in-place time(us)",
    ]
    assert len(section.texts) == 1


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
    assert list(sections_of(RECORD)) == ["verdicts", "environment", "launches"]


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

"""Sweeps of several backends, and by several transports, side by side."""

from __future__ import annotations

from support.results import point, result, verdict

from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.side_by_side import BACKENDS, NETWORKS, TRANSPORTS

FACTS = {"collective": "all_reduce", "dtype": "float32", "redop": "sum", "count": 16, "mode": "per-iteration"}


def swept(backend: str, *verdicts: Verdict, world_size: int = 2) -> CaseResult:
    made = result(*verdicts)
    conditions = replace(made.case.conditions, backend=backend, world_size=world_size)
    return replace(made, case=replace(made.case, id=f"ws{world_size}-{backend}", conditions=conditions))


def told(size: int, seconds: float, *, in_place: bool = True) -> Verdict:
    return replace(point(size, current=seconds), facts={**FACTS, "in_place": in_place})


def refused(size: int) -> Verdict:
    made = verdict("missing", metric="supported", better="exact", unit="", current=0.0, baseline=None)
    return replace(made, facts={**FACTS, "reason": "Invalid scalar type", "message_bytes": size})


def test_a_message_has_a_row_and_a_backend_a_column() -> None:
    section = BACKENDS.section([swept("mpi", told(64, 3e-6), told(128, 4e-6)), swept("gloo", told(64, 1e-6))])

    assert section.header[-2:] == ["gloo time(us)", "mpi time(us)"]
    assert [row[4:6] + row[-2:] for row in section.texts] == [
        ["64", "16", "1.00", "3.00"],
        ["128", "16", "-", "4.00"],
    ]
    assert section.rows[0][-1].value == 3e-6


def test_in_place_and_out_of_place_are_rows_of_their_own() -> None:
    both = [told(64, 1e-6), told(64, 2e-6, in_place=False)]
    section = BACKENDS.section([swept("gloo", *both[:1]), swept("gloo", *both[1:]), swept("mpi", told(64, 3e-6))])

    assert [row[-2:] for row in section.texts] == [["1.00", "3.00"], ["2.00", "-"]]


def test_what_a_backend_has_not_is_said_in_its_column() -> None:
    section = BACKENDS.section([swept("gloo", told(64, 1e-6)), swept("mpi", refused(64))])

    assert [row[-2:] for row in section.texts] == [["1.00", "unsupported"]]


def test_one_backend_alone_and_other_world_sizes_are_not_beside_it() -> None:
    assert not BACKENDS.section([swept("gloo", told(64, 1e-6))]).rows
    assert not BACKENDS.section([swept("gloo", told(64, 1e-6)), swept("mpi", told(64, 1e-6), world_size=4)]).rows


def over(network: str, *verdicts: Verdict) -> CaseResult:
    made = swept("gloo", *verdicts)
    around = {"network": network} if network else {}
    return replace(made, case=replace(made.case, conditions=replace(made.case.conditions, around=around)))


def test_a_network_has_a_column_and_how_many_times_the_first_it_takes() -> None:
    section = NETWORKS.section(
        [
            over("", told(64, 9e-6)),
            over("1gbit", told(64, 2e-6)),
            over("1gbit,overlay", told(64, 3e-6), told(128, 4e-6)),
        ]
    )

    assert section.header[-3:] == ["1gbit time(us)", "1gbit,overlay time(us)", "x 1gbit,overlay"]
    assert [row[-3:] for row in section.texts] == [["2.00", "3.00", "1.500"], ["-", "4.00", "-"]]


def test_one_network_alone_and_none_that_was_chosen_are_no_comparison() -> None:
    assert not NETWORKS.section([over("", told(64, 1e-6)), over("1gbit", told(64, 1e-6))]).rows


def sent_by(transport: str, size: int, seconds: float) -> CaseResult:
    made = swept("nccl", told(size, seconds))
    return replace(made, case=replace(made.case, params={"transport": transport} if transport else {}))


def test_a_transport_has_a_column_and_so_has_what_the_backend_would_have_taken() -> None:
    section = TRANSPORTS.section([sent_by("tree", 64, 3e-6), sent_by("ring", 64, 1e-6), sent_by("", 64, 2e-6)])

    assert section.header[-3:] == ["ring time(us)", "tree time(us)", "usual time(us)"]
    assert [row[-3:] for row in section.texts] == [["1.00", "3.00", "2.00"]]
    assert "backend" in section.header
    assert "transport" not in section.header


def test_backends_are_beside_each_other_by_the_same_transport_alone() -> None:
    assert not BACKENDS.section([swept("gloo", told(64, 1e-6)), sent_by("ring", 64, 1e-6)]).rows

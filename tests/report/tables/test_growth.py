"""The table of growth: what is sent and held by world size."""

from __future__ import annotations

from support.fingerprints import of, reduce
from support.results import result

from pytest_distbench.records.case import CaseKey
from pytest_distbench.records.fingerprint import Fingerprint
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.growth import GROWTH, growth_rows


def at(case_id: str, ranks: int, fingerprint: Fingerprint) -> CaseResult:
    made = result()
    key = CaseKey(case_id=case_id, backend="fake", launcher="warm")
    launch = replace(made.launches[0], fingerprints={"step": fingerprint})
    return replace(made, case=replace(made.case, key=key, world_size=ranks), launches=[launch])


def test_sizes_of_one_test_stand_together_with_the_factor_to_the_smallest() -> None:
    results = [
        at("fsdp-ws64", 64, of(reduce(1024), parameter_bytes={"0": 128})),
        at("ddp-ws8", 8, of(reduce(4))),
        at("ddp-ws64", 64, of(reduce(4))),
        at("fsdp-ws8", 8, of(reduce(1024), parameter_bytes={"0": 1024})),
    ]

    assert GROWTH.section(results).texts == [
        ["test_a[fsdp]", "step", "8", "1", "1 KiB", "1 KiB", "0 B"],
        ["test_a[fsdp]", "step", "64", "1 (x1)", "1 KiB (x1)", "128 B (x0.125)", "0 B"],
        ["test_a[ddp]", "step", "8", "1", "4 B", "0 B", "0 B"],
        ["test_a[ddp]", "step", "64", "1 (x1)", "4 B (x1)", "0 B", "0 B"],
    ]


def test_runs_of_one_test_at_several_sizes_stand_apart_by_their_names() -> None:
    sizes = {"ws64:small@ws8": 8, "ws64:large@ws64": 64, "ws64": 64, "ws64:small@ws4": 4, "ws8": 8}
    results = [at(case_id, ranks, of()) for case_id, ranks in sizes.items()]

    assert [(row[0], row[2]) for row in growth_rows(results)] == [
        ("test_a[small]", 4),
        ("test_a[small]", 8),
        ("test_a", 8),
        ("test_a", 64),
    ]


def test_what_ran_at_one_world_size_did_not_grow() -> None:
    assert growth_rows([at("ws2", 2, of()), at("ws2", 2, of())]) == []


def test_what_has_no_fingerprint_has_no_row() -> None:
    assert growth_rows([at("ws2", 2, Fingerprint(missing="not recorded")), result()]) == []

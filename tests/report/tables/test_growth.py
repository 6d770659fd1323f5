"""The table of growth: what is sent and held by world size."""

from __future__ import annotations

from support.fingerprints import of, reduce
from support.results import result

from pytest_distbench.records.case import Conditions
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.communication import GROWTH, growth_rows


def at(family: str, ranks: int, fingerprint: Fingerprint, *, run: str = "") -> CaseResult:
    made = result()
    conditions = Conditions(world_size=ranks, backend="fake", launcher="warm", fake_rank=0)
    launch = replace(made.launches[0], fingerprints={"step": fingerprint})
    case_id = f"{family}-ws{ranks}".strip("-")
    named = replace(made.case, id=case_id, family=family, run=run, names_size=bool(run), conditions=conditions)
    return replace(made, case=named, launches=[launch])


def test_sizes_of_one_test_stand_together_with_the_factor_to_the_smallest() -> None:
    results = [
        at("fsdp", 64, of(reduce(1024), parameter_bytes={"0": 128})),
        at("ddp", 8, of(reduce(4))),
        at("ddp", 64, of(reduce(4))),
        at("fsdp", 8, of(reduce(1024), parameter_bytes={"0": 1024})),
    ]

    assert GROWTH.section(results).texts == [
        ["test_a[fsdp]", "step", "8", "1", "1 KiB", "1 KiB", "0 B"],
        ["test_a[fsdp]", "step", "64", "1 (x1)", "1 KiB (x1)", "128 B (x0.125)", "0 B"],
        ["test_a[ddp]", "step", "8", "1", "4 B", "0 B", "0 B"],
        ["test_a[ddp]", "step", "64", "1 (x1)", "4 B (x1)", "0 B", "0 B"],
    ]


def test_what_did_not_grow_or_has_no_fingerprint_has_no_row() -> None:
    assert growth_rows([at("", 2, of()), at("", 2, of())]) == []
    assert growth_rows([at("", 2, Fingerprint(missing="not recorded")), result()]) == []

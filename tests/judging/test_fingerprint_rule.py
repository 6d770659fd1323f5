"""Fingerprints: only differences are reported, each in a sentence; and what a fingerprint says in numbers."""

from __future__ import annotations

import pytest
from support.fingerprints import BARRIER, MIB, of, reduce

from pytest_distbench.judging import fingerprint_rule
from pytest_distbench.judging.fingerprint_rule import (
    DIFFERS,
    differences,
    judge_fingerprints,
    structure_metrics,
    structure_of,
)
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.worker import fingerprint as worker

SMALL = "all_reduce of 8 B float32"
FULL, SIX_MORE = of(is_full=True), of(is_full=True, beyond={"all": (6, 30)})
MESH = {"all": [("mesh_tp", 2, 1)]}
ORDER = "the same collectives in another order: number 1 was"
SUM_FIRST, MAX_FIRST = (
    of(reduce(8, how=first), reduce(8, how=last)) for first, last in (("sum", "max"), ("max", "sum"))
)
IN_TP = of(reduce(8, group="mesh_tp")), of(reduce(16, group="mesh_tp"))
FEW, MANY = of(totals={"parameters": 1000}), of(totals={"parameters": 2000})


def test_what_a_rank_counts_has_a_sentence() -> None:
    assert list(fingerprint_rule.FACTS) == list(worker.FACTS)
    assert list(fingerprint_rule.TOTALS) == list(worker.TOTALS)


@pytest.mark.parametrize(
    ("stored", "current", "told"),
    [
        (of(reduce(25 * MIB, 2)), of(reduce(25 * MIB, 2)), []),
        (
            of(reduce(25 * MIB, 2)),
            of(reduce(104858, 214)),
            ["2 all_reduce of 25 MiB became 214 of 102.4 KiB", "50 MiB sent per rank became 21.4 MiB"],
        ),
        (
            of(reduce(4096)),
            of(reduce(2048, dtype="bfloat16")),
            ["1 all_reduce of 4 KiB float32 became 1 of 2 KiB bfloat16", "4 KiB sent per rank became 2 KiB"],
        ),
        (of(reduce(4096)), of(reduce(4096), BARRIER), ["1 barrier was added"]),
        (of(reduce(40_000_000)), of(reduce(40_000_004)), ["1 all_reduce of 40,000,000 B became 1 of 40,000,004 B"]),
        (
            of(reduce(4096), reduce(1024)),
            of(),
            ["2 all_reduce of 1 KiB to 4 KiB float32 were removed", "5 KiB sent per rank became 0 B"],
        ),
        (of(reduce(4096), BARRIER), of(BARRIER, reduce(4096)), [f"{ORDER} all_reduce of 4 KiB float32, is barrier"]),
        (SUM_FIRST, MAX_FIRST, [f"{ORDER} {SMALL} (sum), is {SMALL} (max)"]),
        (*IN_TP, ["1 all_reduce of 8 B in mesh_tp became 1 of 16 B", "8 B sent per rank became 16 B"]),
        (
            of(totals={"parameters": 10, "optimizer_steps": 1}),
            of(totals={"parameters": 10, "optimizer_steps": 2}),
            ["1 optimizer step of all ranks became 2"],
        ),
        (of(reduce(8, how="sum")), of(reduce(8, how="max")), ["1 all_reduce of 8 B (sum) became 1 of 8 B (max)"]),
        (of(reduce(8, how=None)), of(reduce(8, how="max")), []),
        (
            FULL,
            of(is_full=True, groups=MESH),
            ["1 process group mesh_tp of 2 ranks with stride 1 was added"],
        ),
        (
            of(is_full=True, groups={"all": [("group 1", 8, 1)]}),
            of(is_full=True, groups={"all": [("group 1", 8, 8)]}),
            ["process group group 1: 8 ranks with stride 1 became 8 ranks with stride 8"],
        ),
        (
            of(is_full=True, groups={"all": [("tp", 8, 1), ("tp", 4, 0)]}),
            of(is_full=True, groups={"all": [("tp", 8, 1)]}),
            ["1 process group tp of 4 ranks at irregular distances is gone"],
        ),
        (of(), of(is_full=True, groups=MESH), []),
        (
            of(is_full=True, facts={"parameter_bytes": {"0": 4096}}),
            of(is_full=True, facts={"parameter_bytes": {"0": 8192}}),
            ["4 KiB of parameters per rank became 8 KiB"],
        ),
        (FULL, SIX_MORE, ["collectives that not every iteration has: none became 6 in 30 iterations"]),
        (of(is_full=True, beyond={"all": (2, 10)}), SIX_MORE, []),
        (FEW, MANY, ["1,000 parameters in the optimizers of all ranks became 2,000"]),
    ],
)
def test_a_difference_is_described_in_a_sentence(stored: Fingerprint, current: Fingerprint, told: list[str]) -> None:
    assert differences(stored, current) == told


def test_a_rank_that_differs_is_named_and_another_wording_of_the_same_is_no_difference() -> None:
    current = Fingerprint(collectives={"0,2-3": [reduce(8)], "1": [reduce(8), BARRIER]})
    assert differences(of(reduce(8)), current) == ["rank 1: 1 barrier was added"]

    stored = of(is_full=True, totals={"parameters": 42}, facts={"parameter_bytes": {"all": 84}})
    current = of(is_full=True, totals={"parameters": 21}, facts={"parameter_bytes": {"0": 84, "1": 0}})
    assert differences(stored, current) == [
        "rank 1: 84 B of parameters are no longer trained by any optimizer",
        "42 parameters in the optimizers of all ranks became 21",
    ]

    assert differences(Fingerprint(collectives={"0": [reduce(8)], "1": [reduce(8)]}), of(reduce(8))) == []

    assert differences(of(reduce(8, 2)), of(reduce(8), reduce(8))) == []


@pytest.mark.parametrize(
    ("stored", "current", "kind", "reason"),
    [
        ({"a": of(BARRIER)}, {"a": of(BARRIER)}, "unchanged", ""),
        ({"a": of(BARRIER)}, {"a": of()}, "changed", "a: 1 barrier was removed (and the software: torch 1 -> 2)"),
        ({}, {"a": of()}, "new", "the baseline has no communication fingerprint of a"),
        ({"a": of()}, {}, "missing", "the baseline has a communication fingerprint of a; this run has none"),
        ({"a": of()}, {"a": Fingerprint(missing="off")}, "inconclusive", "a: off"),
        ({"a": Fingerprint(missing="off")}, {"a": of()}, "new", "the baseline has no communication fingerprint of a"),
        ({"a": Fingerprint(missing="off")}, {"a": Fingerprint(missing="off")}, "unchanged", "a: off"),
        ({"a": Fingerprint(missing=DIFFERS)}, {"a": of()}, "unchanged", f"a: {DIFFERS}"),
        (
            {"a": of(reduce(8), BARRIER)},
            {"a": of()},
            "changed",
            "a: 1 all_reduce of 8 B float32 was removed, and 2 more differences (and the software: torch 1 -> 2)",
        ),
        (
            {"a": of(BARRIER), "b": of(BARRIER)},
            {"a": of(), "b": of()},
            "changed",
            "a and 1 more: 1 barrier was removed (and the software: torch 1 -> 2)",
        ),
    ],
)
def test_the_verdict_on_all_fingerprints_of_a_case(
    stored: dict[str, Fingerprint], current: dict[str, Fingerprint], kind: str, reason: str
) -> None:
    verdict = judge_fingerprints(stored, current, launches=1, software="torch 1 -> 2")

    assert (verdict.kind, verdict.reason) == (kind, reason)
    assert verdict.is_failure == (kind in ("changed", "missing"))


# In numbers

ROWS = [reduce(100, 3), Collective("recv", "float32", 40, "default", 1, "from +1")]


def test_a_structure_is_of_the_first_rank_and_what_is_received_is_not_sent() -> None:
    told = Fingerprint(
        collectives={"5": ROWS, "6": []}, facts={"parameter_bytes": {"5": 7}, "optimizer_bytes": {"5-6": 8}}
    )

    assert structure_of(told) == {"collectives": 4, "sent_bytes": 300, "parameter_bytes": 7, "optimizer_bytes": 8}


def test_its_numbers_are_exact_metrics_by_loop() -> None:
    found = structure_metrics({"step": of(*ROWS), "silent": of(), "lost": Fingerprint(missing="why")})

    counts = {"collectives[of=step]": 4, "sent_bytes[of=step]": 300, "collectives[of=silent]": 0}
    assert {m.key: m.value for m in found} == counts
    assert {m.better for m in found} == {"exact"}

"""What a fingerprint says in numbers."""

from __future__ import annotations

from support.fingerprints import of, reduce

from pytest_distbench.judging.fingerprint_rule import structure_metrics, structure_of
from pytest_distbench.records.iteration import Collective, Fingerprint

ROWS = [reduce(100, 3), Collective("recv", "float32", 40, "default", 1, "from +1")]


def test_a_structure_is_of_the_first_rank_and_what_is_received_is_not_sent() -> None:
    told = Fingerprint(collectives={"5": ROWS, "6": []}, parameter_bytes={"5": 7}, optimizer_bytes={"5-6": 8})

    assert structure_of(told) == {
        "collectives": 4,
        "sent_bytes": 300,
        "parameter_bytes": 7,
        "optimizer_bytes": 8,
    }


def test_its_numbers_are_exact_metrics_by_loop() -> None:
    found = structure_metrics({"step": of(*ROWS), "silent": of(), "lost": Fingerprint(missing="why")})

    assert {m.key: m.value for m in found} == {
        "collectives[of=step]": 4,
        "sent_bytes[of=step]": 300,
        "collectives[of=silent]": 0,
    }
    assert {m.better for m in found} == {"exact"}

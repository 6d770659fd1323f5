"""Sequences of collectives in words; how two of them differ is held by ``test_fingerprint_rule``."""

from __future__ import annotations

from support.fingerprints import BARRIER, reduce

from pytest_distbench.judging.fingerprint_rule import changes, payload_bytes, sent_text
from pytest_distbench.records.iteration import PICKLE, Collective


def test_a_sequence_is_described_by_operations_and_groups_and_a_pickle_has_no_size() -> None:
    rows = [reduce(4, how="sum"), BARRIER, reduce(4096, 2), reduce(8, group="mesh_tp")]
    sent = "3 all_reduce of 4 B to 4 KiB float32 and 1 barrier and 1 all_reduce of 8 B float32 in mesh_tp"
    assert sent_text(rows) == sent
    assert sent_text([]) == "nothing"

    pickle = Collective("broadcast", PICKLE, 0, "default", 1, "root 0")
    size = Collective("broadcast", "int64", 8, "default", 1, "root 0")
    assert changes([], [pickle]) == ["1 broadcast of pickle was added"]
    assert changes([size], [size, size, pickle])[0] == "2 broadcast of 8 B int64 and pickle were added"

    assert payload_bytes([reduce(4, 3), Collective("recv", "float32", 64, "default", 1)]) == 12

    assert changes([reduce(4, how="sum")], [reduce(4)]) == []
    [told] = changes([reduce(4, how="sum")], [reduce(4, how="max")])
    assert told == "1 all_reduce of 4 B (sum) became 1 of 4 B (max)"

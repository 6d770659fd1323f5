"""What a case is called: made of its parts, and never taken apart again."""

from __future__ import annotations

import msgspec
import pytest
from support.cases import ON_TWO
from support.plans import BODY

from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.plan import Ranks
from pytest_distbench.records.record import replace

FAKE = replace(ON_TWO, backend="fake", fake_rank=1)


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({}, "gloo.warm"),
        ({"id": "x-ws2"}, "x-ws2.gloo.warm"),
        ({"id": "ws2", "run": "one"}, "ws2:one.gloo.warm"),
        ({"id": "ws4", "run": "one", "names_size": True}, "ws4:one@ws2.gloo.warm"),
        ({"id": "ws4", "names_size": True}, "ws4:@ws2.gloo.warm"),
        ({"id": "ws2", "conditions": FAKE}, "ws2:@rank1.fake.warm"),
        ({"id": "ws2", "conditions": replace(FAKE, fake_rank=0)}, "ws2.fake.warm"),
        ({"id": "ws2", "run": "one", "names_size": True, "conditions": FAKE}, "ws2:one@ws2@rank1.fake.warm"),
        (
            {"id": "ws2", "conditions": replace(ON_TWO, around={"network": "wan", "load": "busy"})},
            "ws2:@load=busy@network=wan.gloo.warm",
        ),
    ],
)
def test_a_key_is_made_of_the_id_the_run_and_the_conditions(parts: dict[str, object], key: str) -> None:
    made = Case(**{"test": "t.py::t", "conditions": ON_TWO, "device": "cpu"} | parts)  # type: ignore[arg-type]

    assert made.key.removeprefix(".") == key


def test_a_workload_is_apart_from_backend_and_launcher_and_a_series_from_its_world_size() -> None:
    # Stored entries carry it: what it is made of must not change
    case = Case(test="t", id="x-ws2", conditions=ON_TWO, device="cpu", params={"b": [1, 2.5], "a": "x"})
    other = replace(case, conditions=replace(ON_TWO, backend="nccl", launcher="torchrun"))
    assert case.workload == "c6b2b44a" == other.workload

    conditions = Conditions(world_size=2, backend="gloo", launcher="warm", kind=Ranks(body=BODY).kind)
    assert msgspec.json.decode(msgspec.json.encode(conditions)) == {
        "world_size": 2,
        "backend": "gloo",
        "launcher": "warm",
    }

    made = Case(test="t.py::t", id="x-ws2", family="x", run="warm", conditions=ON_TWO, device="cpu")
    assert made.series == replace(made, id="x-ws4", conditions=replace(ON_TWO, world_size=4)).series == "t[x:warm]"
    assert replace(made, id="ws2", family="", run="").series == "t"

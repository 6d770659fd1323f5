"""The table of engines: what each row has, and what a stand-in makes of another's timers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pytest_distbench.jobs.engines.table import (
    DEFAULT_ENGINE,
    ENGINES,
    FAST_PARTS,
    EngineKind,
    fast_problem,
    torch_release,
)
from pytest_distbench.machine.hardware import installed_version


def test_the_default_can_be_used_everywhere() -> None:
    assert ENGINES[DEFAULT_ENGINE].problem() == ""


@pytest.mark.parametrize("kind", ENGINES.values(), ids=list(ENGINES))
def test_each_row_has_what_controller_and_workers_need_and_a_stand_in_that_can_always_be_used(kind: EngineKind) -> None:
    assert {"collective_s", "settle_s"} <= kind.timers.keys()
    assert kind.stand_in in ("", DEFAULT_ENGINE)
    assert all(isinstance(timer.default, int) for timer in kind.timers.values() if timer.is_whole)


def test_timers_that_were_not_given_are_the_rows_and_those_of_another_engine_are_made_to_fit() -> None:
    found = ENGINES["stock"].all_timers({"last_call_s": 0.3, "keep_alive_s": 2, "poll_s": 0.05})

    assert list(found) == list(ENGINES["stock"].timers)
    assert (found["last_call_s"], found["keep_alive_s"], found["settle_s"]) == (1, 2, 120)


def test_the_fast_engine_can_be_used_with_this_torch_and_this_python() -> None:
    """The tests run under each release that docs/versions.md has a row of."""
    assert ENGINES["fast"].problem() == ""


def test_what_a_torch_lacks_of_the_private_parts_of_the_fast_engine_is_named_and_stock_stands_in(
    tmp_path: Path,
) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    source = Path(str(torch.origin)).parent / "distributed/elastic/rendezvous/dynamic_rendezvous.py"
    (tmp_path / "changed.py").write_text(source.read_text().replace("_op_executor", "_executor"))
    told = f"{torch_release()} does not have, in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, "

    assert fast_problem(tmp_path / "changed.py") == f"{told}_op_executor"
    assert fast_problem(tmp_path / "moved.py") == told + ", ".join(sorted(FAST_PARTS))
    assert ENGINES["fast"].stand_in == "stock"


def test_a_release_of_torch_is_told_without_its_build() -> None:
    assert f"{installed_version('torch')}.".startswith(f"{torch_release().removeprefix('torch ')}.")

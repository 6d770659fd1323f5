"""What the fast engine tells of its agents; with real ones: tests/end_to_end/test_elastic_engines.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_distbench.jobs.engines.contract import CannotGoOn
from pytest_distbench.jobs.engines.fast import FastEngine
from pytest_distbench.launch.starters import forkserver


def test_ends_that_were_made_up_are_not_told_before_the_forkserver_is_seen_to_be_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pipes close a moment earlier."""
    engine: Any = FastEngine.__new__(FastEngine)
    engine._agents = {0: SimpleNamespace(exitcode=forkserver.LOST)}
    engine._nodes = {0: SimpleNamespace(is_told=False)}
    engine._clock = lambda: 0.0
    alive = iter([True, True, False, False])
    monkeypatch.setattr(forkserver, "is_alive", lambda: next(alive))

    with pytest.raises(CannotGoOn, match="the forkserver that all agents and workers are forked from has ended"):
        engine.poll()

"""Where the seconds of a cell of ``models.py`` go. Preloaded by its ranks, of which the first appends a line of JSON.

Parts exclude each other: what the reference takes inside of the controls is the reference's.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_distbench.layouts import compare, from_transformers
from pytest_distbench.layouts.reference import StepReference

FILE = "DISTBENCH_PARTS"
LAYOUT = "layout"  # the rest
_seconds: defaultdict[str, float] = defaultdict(float)
_running: list[str] = []
_since: float = 0.0


def _turn(name: str) -> None:
    """Count the time so far to the part that runs; then another does."""
    global _since
    now = time.perf_counter()
    if _running:
        _seconds[_running[-1]] += now - _since
    _since = now
    if name:
        _running.append(name)
    else:
        _running.pop()


def _timed(owner: Any, function: str, part: str) -> None:
    plain: Callable[..., Any] = getattr(owner, function)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        _turn(part)
        try:
            return plain(*args, **kwargs)
        finally:
            _turn("")

    setattr(owner, function, call)


def _kept(rank: Any, *args: Any, **kwargs: Any) -> None:
    _turn(LAYOUT)
    try:
        _compare(rank, *args, **kwargs)
    finally:
        _turn("")
        if rank.rank == 0:
            with Path(os.environ[FILE]).open("a") as file:
                file.write(json.dumps([rank.params["model"], rank.params["layout"], _seconds]) + "\n")


_timed(from_transformers, "training", "model")
_timed(compare, "highest", "reference")
_timed(StepReference, "differentiate", "reference")
_timed(StepReference, "see_state", "reference")
_timed(compare, "_shared_limits", "controls")
_timed(compare, "_module", "modules")
_compare, compare.compare = compare.compare, _kept

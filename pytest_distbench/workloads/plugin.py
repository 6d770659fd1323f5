"""The fixtures of workloads, and the option of their data. What they hand out is imported when one asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.plugin.fixtures import settings_of
from pytest_distbench.records.options import ADVANCED, Option
from pytest_distbench.records.wanted import Wanted

if TYPE_CHECKING:
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.workloads.fixtures import CollectiveSweep, Communication
    from pytest_distbench.workloads.scaling import Scaling, TimeToAccuracy


def _read_place(text: str) -> str:
    """A URL as it is, and a path as an absolute one: ranks need not run where pytest does."""
    if "://" in text:
        from pytest_distbench.workloads.data import why_no_store

        if why := why_no_store(text):
            raise ConfigurationError(f"{text}: {why}")
        return text
    path = Path(text).absolute()
    if not path.is_dir():
        raise ConfigurationError(f"there is no folder {path}; give one, or a URL such as s3://bucket")
    return str(path)


DATA = Option(
    "folder or URL of full-size data sets",
    "An object store is s3://bucket/prefix.",
    metavar="DIR",
    wanted=Wanted("a folder or a URL", _read_place),
    name="data",
    group=ADVANCED,
    default="",
)


@pytest.fixture
def collective_sweep(request: pytest.FixtureRequest, distbench: Distbench) -> CollectiveSweep:
    """Measure one collective over message sizes: ``collective_sweep("all_reduce", dtype="float32")``."""
    from pytest_distbench.workloads.fixtures import CollectiveSweep

    return CollectiveSweep(distbench, settings_of(request.config).max_message_bytes)


@pytest.fixture
def time_to_accuracy(distbench: Distbench) -> TimeToAccuracy:
    """Train to a goal: ``time_to_accuracy(train, goal=0.97)``."""
    from pytest_distbench.workloads.scaling import TimeToAccuracy

    return TimeToAccuracy(distbench)


@pytest.fixture
def scaling(distbench: Distbench) -> Scaling:
    """Train on one worker, two, four, ...: ``scaling("train.py::train", mode="weak", params={"batch": 8})``."""
    from pytest_distbench.workloads.scaling import Scaling

    return Scaling(distbench)


@pytest.fixture
def communication(request: pytest.FixtureRequest, distbench: Distbench) -> Communication:
    """Measure a shape of real communication: ``communication.links()``, ``buckets``, ``overlap``, ``compression``."""
    from pytest_distbench.workloads.fixtures import Communication

    return Communication(distbench, settings_of(request.config).max_message_bytes)

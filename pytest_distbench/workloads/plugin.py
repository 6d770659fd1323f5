"""The fixtures of workloads. What they hand out is imported when one asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_distbench.plugin.fixtures import settings_of

if TYPE_CHECKING:
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.workloads.fixtures import CollectiveSweep, Communication
    from pytest_distbench.workloads.scaling import Scaling, TimeToAccuracy


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

"""The fixtures that a test may ask for. What they hand out is imported when one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_distbench.plugin import carry
from pytest_distbench.plugin.names import RANKS
from pytest_distbench.plugin.state import (
    STATE,
    session_for,
    settings_for,
    settings_of,
    terminal_for_rank,
)

if TYPE_CHECKING:
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.plugin.elastic import Elastic, ElasticPool
    from pytest_distbench.plugin.scaling import Scaling
    from pytest_distbench.plugin.shapes import CollectiveSweep, TimeToAccuracy
    from pytest_distbench.plugin.traffic import Communication
    from pytest_distbench.records.run import CaseResult
    from pytest_distbench.run.confirm import Again

FIXTURE = "distbench"
"""A test is ours that asks for it, or for one that does."""
CASES = pytest.StashKey[dict[str, "CaseResult"]]()
MADE = pytest.StashKey["Distbench"]()
"""What a test has measured, and with what."""
AGAIN = pytest.StashKey["Again"]()
"""How a test is run again whose stored comparisons are in doubt."""
WHY_NOT_AGAIN = pytest.StashKey[str]()
"""Why it cannot be run again."""


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """Ranks of the test's process groups; parametrized from the markers and --world-size."""
    if FIXTURE in request.fixturenames and RANKS not in request.node.stash:
        from pytest_distbench.plugin.markers import UnfitClass, sizes_of_class
        from pytest_distbench.plugin.outcomes import Misuse

        try:
            sizes_of_class(request.cls)
        except UnfitClass as error:
            raise Misuse(str(error)) from None
    ranks: int = request.node.stash.get(RANKS, settings_of(request.config).largest)
    return ranks


@pytest.fixture
def distbench_backend(request: pytest.FixtureRequest) -> str:
    """Backend of the test's process groups; parametrized where --distbench-backend names several."""
    return settings_for(request.node).backends[0]


@pytest.fixture
def distbench(request: pytest.FixtureRequest, world_size: int, distbench_backend: str) -> Iterator[Distbench]:
    """Run bodies in process groups, measure them and compare with the baseline. See the README."""
    from pytest_distbench.plugin.distbench import Distbench
    from pytest_distbench.plugin.markers import warn_of_left_out
    from pytest_distbench.plugin.names import rerun_command

    config, node = request.config, request.node
    cases = node.stash[CASES] = {}  # anew where a plugin runs the test again
    carry.forget_numbers(node)
    if "world_size" not in getattr(getattr(node, "callspec", None), "params", {}):
        node.stash[RANKS] = world_size  # of one that asks for the fixture by request.getfixturevalue too
    warn_of_left_out(node)
    session = session_for(node)
    progress = config.stash[STATE].progress
    assert progress is not None
    progress.begin(node.name)

    def record(result: CaseResult) -> None:
        cases[result.case.key] = result

    command = rerun_command(config, node)
    again: Again | None = node.stash.get(AGAIN, None)
    made = node.stash[MADE] = Distbench(
        session,
        node,
        world_size,
        distbench_backend,
        record,
        command,
        lambda: terminal_for_rank(config),
        again=again,
        why_not_again=node.stash.get(WHY_NOT_AGAIN, ""),
    )
    yield made
    progress.end()
    session.launching.outputs.forget()


@pytest.fixture
def collective_sweep(request: pytest.FixtureRequest, distbench: Distbench) -> CollectiveSweep:
    """Measure one collective over message sizes: ``collective_sweep("all_reduce", dtype="float32")``."""
    from pytest_distbench.plugin.shapes import CollectiveSweep

    return CollectiveSweep(distbench, settings_of(request.config).max_message_bytes)


@pytest.fixture
def time_to_accuracy(distbench: Distbench) -> TimeToAccuracy:
    """Train to a goal: ``time_to_accuracy(train, goal=0.97)``."""
    from pytest_distbench.plugin.shapes import TimeToAccuracy

    return TimeToAccuracy(distbench)


@pytest.fixture
def scaling(distbench: Distbench) -> Scaling:
    """Train on one worker, two, four, ...: ``scaling("train.py::train", mode="weak", params={"batch": 8})``."""
    from pytest_distbench.plugin.scaling import Scaling

    return Scaling(distbench)


@pytest.fixture
def elastic(request: pytest.FixtureRequest, distbench: Distbench) -> Elastic:
    """Train on nodes that come and go: ``elastic(train, nodes=(1, 2), plan=cycle(period_s=8))``."""
    from pytest_distbench.plugin.elastic import Elastic

    return Elastic(distbench, settings_for(request.node))


@pytest.fixture
def elastic_pool(request: pytest.FixtureRequest, distbench: Distbench) -> ElasticPool:
    """Let jobs share slots: ``elastic_pool([job("A", train, nodes=(1, 2)), ...], slots=2, policy="elastic")``."""
    from pytest_distbench.plugin.elastic import ElasticPool

    return ElasticPool(distbench, settings_for(request.node))


@pytest.fixture
def communication(request: pytest.FixtureRequest, distbench: Distbench) -> Communication:
    """Measure a shape of real communication: ``communication.links()``, ``buckets``, ``overlap``, ``compression``."""
    from pytest_distbench.plugin.traffic import Communication

    return Communication(distbench, settings_of(request.config).max_message_bytes)

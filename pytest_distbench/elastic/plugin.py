"""The fixtures of elastic jobs. What they hand out is imported when one asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_distbench.plugin.fixtures import settings_for

if TYPE_CHECKING:
    from pytest_distbench.elastic.fixtures import Elastic, ElasticPool
    from pytest_distbench.plugin.distbench import Distbench


@pytest.fixture
def elastic(request: pytest.FixtureRequest, distbench: Distbench) -> Elastic:
    """Train on nodes that come and go: ``elastic(train, nodes=(1, 2), plan=cycle(period_s=8))``."""
    from pytest_distbench.elastic.fixtures import Elastic

    return Elastic(distbench, settings_for(request.node))


@pytest.fixture
def elastic_pool(request: pytest.FixtureRequest, distbench: Distbench) -> ElasticPool:
    """Let jobs share slots: ``elastic_pool([job("A", train, nodes=(1, 2)), ...], slots=2, policy="elastic")``."""
    from pytest_distbench.elastic.fixtures import ElasticPool

    return ElasticPool(distbench, settings_for(request.node))

"""The fixture of forecasts. What it hands out is imported when a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_distbench.forecast.fixtures import ForecastCall
    from pytest_distbench.plugin.distbench import Distbench


@pytest.fixture
def forecast(distbench: Distbench) -> ForecastCall:
    """Forecast a step on many ranks: ``forecast(train, worlds=[64, 1024], cluster="h100-ib400")``."""
    from pytest_distbench.forecast.fixtures import ForecastCall

    return ForecastCall(distbench)

"""Conditions of cases that nobody measured."""

from __future__ import annotations

from pytest_distbench.records.case import Conditions

ON_TWO = Conditions(world_size=2, backend="gloo", launcher="warm")

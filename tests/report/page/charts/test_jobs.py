"""Charts of elastic jobs and pools."""

from __future__ import annotations

from support.pools import POOL, SERVED, served, shared
from support.results import result
from support.timelines import JOB, killed

from pytest_distbench.jobs.measures.measure import measure

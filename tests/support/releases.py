"""What the torch of these tests can do: under `tox run -e oldest` some is missing."""

from __future__ import annotations

from importlib import metadata

import pytest

from pytest_distbench.releases import PARTS, release_of

RECORDS = release_of(metadata.version("torch")) >= PARTS["recorder"].since
"""Whether it records the collectives of gloo."""

needs_numa = pytest.mark.skipif(
    release_of(metadata.version("torch")) < PARTS["numa"].since, reason="this torch has no NUMA binding"
)
needs_recorder = pytest.mark.skipif(not RECORDS, reason="this torch does not record the collectives of gloo")
refuses_bf16 = pytest.mark.skipif(
    release_of(metadata.version("torch")) >= (2, 15), reason="this torch compresses gradients to bf16 on gloo too"
)

"""What the torch of these tests can do: under `tox run -e oldest` some is missing."""

from __future__ import annotations

from importlib import metadata

import pytest

from pytest_distbench.releases import NUMA_SINCE, release_of

_TORCH = release_of(metadata.version("torch"))
needs_numa = pytest.mark.skipif(_TORCH < NUMA_SINCE, reason="this torch has no NUMA binding")
refuses_bf16 = pytest.mark.skipif(_TORCH >= (2, 15), reason="this torch compresses gradients to bf16 on gloo too")

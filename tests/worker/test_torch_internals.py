"""What this torch has is what the table of releases says of it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from pytest_distbench.releases import PARTS, release_of


@pytest.mark.spawn
def test_this_torch_has_what_the_table_says() -> None:
    """In a process of its own: torch has no place in this one. Under `tox run -e oldest` it is another torch."""
    code = "from pytest_distbench.worker import torch_internals; print(torch_internals.has_recorder())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(release_of(metadata.version("torch")) >= PARTS["recorder"].since)

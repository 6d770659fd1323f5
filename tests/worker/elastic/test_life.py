"""What a worker of an elastic job tells of itself. Its life in a group: tests/end_to_end/test_elastic.py."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from pytest_distbench.worker.elastic.life import count_generation
from pytest_distbench.worker.load import process_began


def test_generations_and_processes_have_a_number_and_a_beginning(tmp_path: Path) -> None:
    assert [count_generation(tmp_path) for _ in range(3)] == [0, 1, 2]

    age_s = time.time() - psutil.Process().create_time()
    assert time.monotonic() - process_began() == pytest.approx(age_s, abs=1.0)

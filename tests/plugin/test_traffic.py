"""The fixture ``communication``: what it refuses, and what it hands to the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support.fixtures import made_up_distbench
from support.projects import Project, run

from pytest_distbench.plugin.outcomes import Misuse
from pytest_distbench.plugin.traffic import Communication


@pytest.mark.parametrize(
    ("shape", "arguments", "told"),
    [
        (
            "buckets",
            {"tensors": [1, 214], "message_bytes": 400},
            "214 tensors of 100 elements: there can be 100 at",
        ),
        ("buckets", {"message_bytes": 10}, "10 B are no whole number of float32 elements, which take 4 B each"),
        ("buckets", {"message_bytes": 1 << 60}, "wanted a whole number of at least 1 and at most"),
        ("buckets", {"tensors": []}, "tensors=[]; wanted a list"),
        ("buckets", {"tensors": [2, numpy.int64(2)]}, "each can be measured once only"),
        ("buckets", {"tensors": torch.tensor(3.0)}, "tensors=tensor(3.); wanted a list"),
        ("buckets", {"calls": ["all"]}, "unknown calls 'all': known are each, coalesced, flattened"),
        ("buckets", {"dtype": "float33"}, "unknown dtype 'float33': known are"),
        ("buckets", {"root": 0}, "communication.buckets: unknown keyword root; known are message_bytes, "),
        ("overlap", {"dtype": "int32"}, "dtype='int32'; matrices have one of float32, float16, bfloat16, float64"),
        ("overlap", {"message_bytes": 6}, "6 B are no whole number of float32 elements"),
        ("overlap", {"matrix": 0}, "matrix=0; wanted a whole number of at least 1"),
        ("compression", {"hook": "gzip"}, "unknown hook 'gzip': known are none, fp16, bf16, powersgd"),
        ("compression", {"hook": "powersgd", "width": 8, "approximation_rank": 9}, "approximation_rank=9; wanted"),
        ("links", {"pattern": "ring"}, "unknown pattern 'ring': known are ping-pong, one-way"),
        ("links", {"max_imbalance": 1}, "max_imbalance=1; wanted a finite number above 1"),
        ("links", {"world_size": 1}, "communication.links: a link needs two ranks, and this test has 1"),
    ],
)
def test_what_cannot_be_measured_is_explained(shape: str, arguments: dict[str, Any], told: str, tmp_path: Path) -> None:
    communication = Communication(made_up_distbench(Path(__file__), tmp_path), None)
    with pytest.raises(Misuse) as refused:
        getattr(communication, shape)(**arguments)

    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("call", "size"),
    [("overlap()", "4 MiB"), ("buckets(message_bytes=2**21)", "2 MiB"), ("links(bandwidth_bytes=2**17)", "128 KiB")],
)
def test_messages_larger_than_the_option_allows_are_not_sent(project: Project, call: str, size: str) -> None:
    folder = project(f"def test_it(communication):\n    communication.{call}\n")

    result = run(folder, "--distbench-max-message=64KiB", "-rs")

    result.stdout.fnmatch_lines([f"SKIPPED*not run: its message has {size}, --distbench-max-message is 64 KiB"])

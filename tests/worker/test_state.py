"""What a training computes with and holds: precision, random streams, parameters, optimizer's memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from support.launching import Launch

from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.training import make_deterministic

CHOICES = [
    "",
    "torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.set_float32_matmul_precision('high')",
]
"""Ways to ask for TF32."""
if hasattr(torch.backends, "fp32_precision"):
    CHOICES += [
        "torch.backends.fp32_precision = 'tf32'",
        "torch.backends.cudnn.fp32_precision = 'tf32'",
        "torch.backends.cudnn.conv.fp32_precision = torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    ]

FORBID = """
forbid_tf32()
with torch.backends.cudnn.flags(enabled=True):
    pass
print([value for name, value in settings().items() if "precision" in name])
print(torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
"""
CHANGE = """
note_autocast()
before = settings()
with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", dtype=torch.float16, enabled=False):
    pass
torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = False, True
torch.use_deterministic_algorithms(True)
after = settings()
print(*(f"{name} {before[name]} {after[name]}" for name in after), sep=chr(10))
"""

EACH_IN_A_FORK = """
import os
import sys
import torch
from pytest_distbench.worker.state import forbid_tf32, note_autocast, settings

torch.cuda.is_initialized = lambda: True
for program in sys.argv[1:]:
    if not (child := os.fork()):
        exec(program)
        print("end", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def run(*programs: str) -> list[str]:
    """What each printed, in a process that has loaded torch and believes that it uses CUDA."""
    command = [sys.executable, "-c", EACH_IN_A_FORK, *programs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split("end\n")[:-1]


def test_float32_is_not_rounded_to_tf32_whoever_asked_for_it_and_what_was_chosen_is_told() -> None:
    """Matrix products, convolutions and RNNs; and who reads the flags of before is told the same, and no error.

    Autocast is told, though the body has left it.
    """
    *forbidden, found = run(*(choice + FORBID for choice in CHOICES), CHANGE)

    assert forbidden == ["['ieee', 'ieee', 'ieee']\nFalse False\n"] * len(CHOICES)
    assert found.splitlines() == [
        "autocast off bfloat16",
        "deterministic off on",
        "matmul_precision ieee tf32",
        "conv_precision tf32 ieee",
        "rnn_precision tf32 ieee",
        "cudnn_benchmark off on",
        "cudnn_deterministic off on",
    ]
    assert {line.split()[0] for line in found.splitlines()} == SETTINGS


def computes_in_bfloat16(rank: RankContext) -> None:
    make_deterministic(rank.seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.ones(8, 8) @ torch.ones(8, 8)


@pytest.mark.spawn
def test_a_ranks_report_has_it(on_cuda: Launch) -> None:
    record = on_cuda("computes_in_bfloat16", world_size=1)

    assert record.reason == ""
    assert {name: record.software[name] for name in SETTINGS} == {
        "autocast": "bfloat16",
        "deterministic": "on",
        "matmul_precision": "ieee",
        "conv_precision": "ieee",
        "rnn_precision": "ieee",
        "cudnn_benchmark": "off",
        "cudnn_deterministic": "off",
    }

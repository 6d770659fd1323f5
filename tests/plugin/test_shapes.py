"""The ready fixtures: what they refuse."""

from __future__ import annotations

import pytest
from support.projects import Project, run


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("len", "*collective=<built-in function len>: wanted a torch name, or 'my_operations.py::ROW'*"),
        ("'gone.py::ROW'", "*there is no file *gone.py*"),
        ("'all_reduze'", "*unknown collective 'all_reduze'; known are all_reduce*"),
        ("'all_reduce', dtype='float33'", "*unknown dtype 'float33'; known are bfloat16*"),
        ("'all_reduce', sizes='huge'", "*unknown preset of sizes 'huge'*"),
        ("'all_reduce', sizes=[1 << 30], max_bytes=1024", "*no message size left of 1*"),
        ("'all_reduce', buffers='pinned'", "*buffers='pinned'; wanted one of plain, registered*"),
        ("'all_reduce', buffers='registered'", "*buffers='registered' needs NCCL on GPUs: give --gpu*"),
        ("'all_reduce', mode='loop'", "*mode='loop'; wanted one of per-iteration, batch, graph*"),
        (
            "'all_reduce', mode='graph'",
            "*mode='graph' replays one call with its buffers: it needs --gpu, and cache='hot'*",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_explained(project: Project, call: str, message: str) -> None:
    result = run(project(f"def test_sweep(collective_sweep):\n    collective_sweep({call})\n"))

    result.stdout.fnmatch_lines([message.replace(";", "?")])
    assert result.ret == 1

"""What nodes print: whole lines with the time at which they came, and all of it in the agent's log."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_distbench.jobs.engines import NodeOutputs, Printed
from pytest_distbench.records.launch_files import LaunchFiles


def test_lines_come_whole_with_their_slot_and_an_unfinished_one_at_the_end(tmp_path: Path) -> None:
    files = LaunchFiles(tmp_path)
    outputs = NodeOutputs(files, clock=lambda: 7.0)
    stdout, stderr = outputs.open(1)
    os.write(stdout, b"step 1\nste")
    os.write(stdout, b"p 2\r50 %\nthe end")
    for descriptor in (stdout, stderr):
        os.close(descriptor)
    outputs.finish()

    assert outputs.take() == [Printed(1, 7.0, text) for text in ("step 1", "step 2", "50 %", "the end")]
    assert outputs.take() == []
    assert files.agent_log(1).read_bytes() == b"step 1\nstep 2\r50 %\nthe end"

"""The engine torchft: its lighthouse and its command lines. Its nodes: tests/end_to_end/test_elastic_torchft.py."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import pytest
from support.plans import make_plan
from support.timelines import JOB
from torch.distributed.run import get_args_parser

from pytest_distbench.jobs.engines.contract import EngineSetup
from pytest_distbench.jobs.engines.table import ENGINES
from pytest_distbench.records.record import replace

pytest.importorskip("torchft", reason="engine='torchft' needs torchft")


def test_nodes_are_torchruns_of_one_worker_that_know_a_lighthouse_which_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUST_LOG", raising=False)
    kind = ENGINES["torchft"]
    job = replace(JOB, engine="torchft", timers=kind.all_timers({}), checkpoint_every=None)
    engine = kind.make(EngineSetup(job=job, files=make_plan(tmp_path).files, variables={"MINE": "1"}))
    variables = engine._variables  # type: ignore[attr-defined]
    command = engine._command(1)  # type: ignore[attr-defined]
    with urllib.request.urlopen(variables["TORCHFT_LIGHTHOUSE"], timeout=10) as answer:
        page = answer.read().decode()
    engine.close()

    assert "Lighthouse" in page
    assert (variables["MINE"], variables["RUST_LOG"]) == ("1", "warn")
    assert command[:2] == [sys.executable, "-c"]
    assert "--rdzv-backend=distbench-loopback" in command
    parsed = get_args_parser().parse_args(command[3:])
    assert (parsed.nnodes, parsed.nproc_per_node) == ("1", "1")
    assert (parsed.training_script, parsed.training_script_args[0]) == ("pytest_distbench.worker", "torchft")

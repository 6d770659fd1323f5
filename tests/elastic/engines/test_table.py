"""Engines: what each can do, how it is made, what its failures mean, and what its nodes print."""

from __future__ import annotations

import ast
import importlib.util
import os
from pathlib import Path

import pytest
from support.timelines import JOB

from pytest_distbench.elastic import engines, join, kill
from pytest_distbench.elastic.engines import ENGINES, NodeOutputs
from pytest_distbench.elastic.progress import explain_agent_end, explain_slow, explain_split, explain_unstable
from pytest_distbench.elastic.records import PARTS, ElasticJob, event
from pytest_distbench.machine.hardware import installed_version
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event

CHANGED = event("changed", t=10.0, index=0, kind="kill", slots=[1], expected=[0])
MET = event("rendezvous", t=11.0, slot=0, seconds=1.0)
STARTED = event("started", t=12.0, slot=0, pid=7, process_t=11.5, restarts=10_000)
SPLIT = event("stepped", t=12.0, slot=1, generation=0, step=3, world_size=2)


def job_of(engine: str) -> ElasticJob:
    return replace(JOB, engine=engine, timers=ENGINES[engine].all_timers({}))


def texts(job: ElasticJob) -> list[str]:
    """All texts about a job's failures that depend on its engine."""
    of = {"t": 1.0, "index": 0, "slots": [1], "before": 2, "after": 1}
    slow = [
        event("change", **of, kind=kind, recovery_s=seconds + 1, parts={part: seconds})
        for kind in ("kill", "join")
        for part in PARTS
        for seconds in (40.0, 400.0)
    ]
    found: list[list[Event]] = [[CHANGED], [CHANGED, MET], [CHANGED, MET, STARTED]]
    return [
        *(explain_unstable(lines, {0}, change, job) for lines in found for change in (kill(at_s=1), join(at_s=1))),
        explain_split(SPLIT, 1, job),
        explain_agent_end([CHANGED, STARTED], event("agent_ended", t=13.0, slot=0, code=1), job, log=""),
        *(explain_slow(change, job) for change in slow),
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_can_be_used_here_and_has_timers_a_stand_in_and_advice_for_every_failure(engine: str) -> None:
    """The tests run under each release of torch that docs/dev/versions.md has a row of."""
    kind = ENGINES[engine]

    assert kind.problem() == ""
    assert {"collective_s", "settle_s"} <= kind.timers.keys()
    assert kind.stand_in in ("", engines.DEFAULT_ENGINE)
    assert all(texts(job_of(engine)))
    assert set(kind.knobs) == set(PARTS) - {"rendezvous"}


def test_rows_of_engines_have_what_controller_and_workers_need() -> None:
    told = " ".join(texts(job_of("fast")))
    assert "--max-restarts" not in told
    assert "torchrun" not in told

    told = " ".join(texts(job_of("stock")))
    words = ("torchrun restarts workers", "--max-restarts=1000", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "last_call_timeout")
    assert [word for word in words if word not in told] == []

    found = ENGINES["stock"].all_timers({"last_call_s": 0.3, "keep_alive_s": 2, "poll_s": 0.05})
    assert list(found) == list(ENGINES["stock"].timers)
    assert (found["last_call_s"], found["keep_alive_s"], found["settle_s"]) == (1, 2, 120)

    assert f"{installed_version('torch')}.".startswith(f"{engines.torch_release().removeprefix('torch ')}.")


def test_what_a_torch_lacks_of_the_private_parts_of_the_fast_engine_is_named_and_stock_stands_in(
    tmp_path: Path,
) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    source = Path(str(torch.origin)).parent / "distributed/elastic/rendezvous/dynamic_rendezvous.py"
    (tmp_path / "changed.py").write_text(source.read_text().replace("_op_executor", "_executor"))
    text = f"{engines.torch_release()} does not have, in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, "

    assert engines.fast_problem(tmp_path / "changed.py") == f"{text}_op_executor"
    assert engines.fast_problem(tmp_path / "moved.py") == text + ", ".join(sorted(engines.FAST_PARTS))
    assert ENGINES["fast"].stand_in == "stock"


def test_lines_come_whole_with_their_slot_and_an_unfinished_one_at_the_end(tmp_path: Path) -> None:
    files = LaunchFiles(tmp_path)
    outputs = NodeOutputs(files, clock=lambda: 7.0)
    stdout, stderr = outputs.open(1)
    os.write(stdout, b"step 1\nste")
    os.write(stdout, b"p 2\r50 %\nthe end")
    for descriptor in (stdout, stderr):
        os.close(descriptor)
    outputs.finish()
    found = outputs.take()

    assert found == [event("printed", slot=1, t=7.0, text=text) for text in ("step 1", "step 2", "50 %", "the end")]
    assert outputs.take() == []
    assert files.agent_log(1).read_bytes() == b"step 1\nstep 2\r50 %\nthe end"


def test_the_fast_engine_looks_for_every_part_that_it_uses_of_torchs_rendezvous() -> None:
    fast = ast.parse(Path(engines.__file__).with_name("fast_agent.py").read_text())
    parts = [part for part in fast.body if getattr(part, "name", "") != "_Agent"]
    nodes = [node for part in parts for node in ast.walk(part)]
    reached = [(ast.unparse(n.value).split(".")[0], n.attr) for n in nodes if isinstance(n, ast.Attribute)]
    used = {name for of, name in reached if of in ("private", "state")}
    used |= {name for of, name in reached if of in ("self", "FastRendezvous") and name.startswith("_")}
    used |= {n.arg for n in nodes if isinstance(n, ast.keyword)} & {"cache_duration"}

    assert used == engines.FAST_PARTS

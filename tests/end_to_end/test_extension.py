"""What is added from outside, by a row in a table: no edit of the package is needed."""

from __future__ import annotations

import pytest

from pytest_distbench.frames import read_run

LAUNCHER = """
import os
import msgspec
from pytest_distbench.launch.contract import Exit
from pytest_distbench.launch.launchers import LAUNCHERS, LauncherKind
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.rank import RankReport


class Launched:
    def __init__(self):
        self.readable, writable = os.pipe()
        os.close(writable)

    def fileno(self):
        return self.readable

    def poll(self):
        os.close(self.readable)
        return Exit(codes={0: 0, 1: 0})

    def pids(self):
        return {}

    def abandon(self):
        pass


class Mine:
    name = "mine"

    def __init__(self, setup):
        self.session = setup.session

    def prepare(self, variables):
        pass

    def start(self, plan):
        for rank in range(plan.world_size):
            step = Observation(
                name="step", unit="s", better="lower", reduce="max", values=[0.02], is_series=False
            )
            report = RankReport(
                rank=rank, pid=os.getpid(), outcome="passed", phase="body", phases={"begin": 0.0}, observations=[step]
            )
            plan.files.report(rank).write_bytes(msgspec.json.encode(report))
        return Launched()

    def leftovers(self):
        return []

    def close(self):
        pass


LAUNCHERS["mine"] = LauncherKind(help="a launcher of my own", make=Mine, is_spaced=False, local_lock=False)
"""


def test_a_launcher_is_one_row(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(LAUNCHER)
    pytester.makepyfile(test_it="def body(rank):\n    pass\n\ndef test_step(distbench):\n    distbench.run(body)\n")
    command = ("-p", "no:sugar", "-p", "no:cacheprovider", "--distbench-launcher", "mine")
    recorded = pytester.runpytest_subprocess(*command, "--distbench-update", "--distbench-launches", "3")

    assert recorded.ret == 0
    assert [path.name for path in pytester.path.rglob("*.mine.json")] == ["ws2.gloo.mine.json"]
    compared = pytester.runpytest_subprocess(*command)
    compared.stdout.fnmatch_lines(["distbench *mine launcher*", "*step*20 ms*20 ms*"])
    assert compared.ret == 0


@pytest.mark.spawn
@pytest.mark.parametrize("launcher_name", ["warm", "torchrun"])
def test_a_collective_is_one_row(pytester: pytest.Pytester, launcher_name: str) -> None:
    pytester.makepyfile(
        my_operations="""
        import torch.distributed as dist

        from pytest_distbench.workloads.collectives import Operation

        BROADCAST = Operation(
            name="broadcast",
            busbw_factor=lambda n: 1,
            source="nccl-tests src/broadcast.cu",
            call=lambda buffers: dist.broadcast(buffers.sent, src=0),
            expected=lambda inputs: inputs.of(0),
            options={"root": 0},
        )
        """,
        test_broadcast="""
        def test_broadcast(collective_sweep):
            collective_sweep("my_operations.py::BROADCAST", sizes=[4, 4096], iterations=5, launches=1)
        """,
    )
    result = pytester.runpytest_subprocess(
        "-p", "no:sugar", f"--distbench-launcher={launcher_name}", "--distbench-json=run.json"
    )

    assert result.ret == 0
    rows = read_run(pytester.path / "run.json")
    found = {(row.metric, row.message_bytes): row.value for row in rows.itertuples()}
    assert found["wrong_elements", 4] == found["wrong_elements", 4096] == 0
    assert found["latency", 4096] > 0

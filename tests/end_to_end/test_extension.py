"""What is added from outside, by a row in a table: no edit of the package is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from pytest_distbench.commands.cli import main
from pytest_distbench.frames import read_run
from pytest_distbench.report.formats import FORMATS, Format
from pytest_distbench.report.sections import Section

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


@pytest.mark.spawn
def test_a_metric_kind_is_one_row(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        test_worst="""
        import os

        from pytest_distbench.records.kinds import METRIC_KINDS, MetricKind

        METRIC_KINDS["worst"] = MetricKind(
            summary="the slowest iteration: may not rise",
            reduce="max",
            launch_value=max,
            rule="noisy",
            sign=1,
            limit_text=lambda limit: f"<= {1 + limit:.1f} times",
        )

        def body(rank):
            factor = float(os.environ.get("SLOWER", "1"))
            rank.record("pause", [0.01, 0.01, (0.5 + rank.launch % 3 / 100) * factor], unit="s", better="worst")

        def test_pause(distbench):
            distbench.run(body)
        """
    )
    command = ("-p", "no:sugar", "-p", "no:cacheprovider")
    recorded = pytester.runpytest_subprocess(*command, "--distbench-update")
    same = pytester.runpytest_subprocess(*command)
    monkeypatch.setenv("SLOWER", "2")
    slower = pytester.runpytest_subprocess(*command)

    assert (recorded.ret, same.ret, slower.ret) == (0, 0, 1)
    slower.stdout.fnmatch_lines(["pause +*% (limit <= 1.* times)*"])


def test_a_report_format_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_names(section: Section, out: BinaryIO) -> None:
        out.write(b"".join(f"{row[0].value}\n".encode() for row in section.rows))

    monkeypatch.setitem(FORMATS, "names", Format(write=write_names))
    record = str(Path(__file__).parents[1] / "store" / "run_record_1.json")

    assert main(["report", record, "--table", "launches", "--format", "names"]) == 0
    assert capsys.readouterr().out == "a.py::t[ws2]\n" * 3
    assert main(["report", record, "--format", "names", "-o", str(tmp_path / "names.txt")]) == 0
    assert (tmp_path / "names.txt").read_text() == "regressed\nregressed\n"


SUSPICIOUS = """
from pytest_distbench.judging.draft import Judgement
from pytest_distbench.records.kinds import VERDICT_KINDS, VerdictKind
from pytest_distbench.records.record import replaced
from pytest_distbench.run import references

VERDICT_KINDS["suspicious"] = VerdictKind(mark="$", words="too good to be true", fails=True, is_answer=True)
judge_as_ever = references.judge_launches


def judge_with_suspicion(*arguments, **options):
    found = judge_as_ever(*arguments, **options)
    return [
        Judgement(replaced(j.verdict, kind="suspicious", reason="nobody is that fast"), is_open=False)
        if j.verdict.kind == "improved"
        else j
        for j in found
    ]


references.judge_launches = judge_with_suspicion
"""


def test_a_verdict_kind_is_one_row(project: Callable[[str], pytest.Pytester], monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(
        """
        def body(rank):
            pass

        def test_step(distbench):
            distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]}})
        """
    )
    with (made.path / "conftest.py").open("a") as file:
        file.write(SUSPICIOUS)
    command = ("-p", "no:sugar", "-p", "no:cacheprovider")
    assert made.runpytest_subprocess(*command, "--distbench-update", "--distbench-launches=5").ret == 0
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "0.2")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(made.path / "summary.md"))
    result = made.runpytest_subprocess(*command)

    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "$  test_step[[]ws2]  step *",
            "1 metric of 1 case in * launch*: 1 too good to be true",
            "::error file=test_it.py,title=test_step[[]ws2]::step: suspicious: nobody is that fast",
        ]
    )
    assert "| suspicious | test_step[ws2] | step |" in (made.path / "summary.md").read_text()

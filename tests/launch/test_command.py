"""Commands that start their processes themselves: measured, read, watched and ended."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.plans import make_plan
from support.processes import wait_for, working_in

from pytest_distbench.launch.controlled import launch_command
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.supervise import Side
from pytest_distbench.read import jsonl, stdout
from pytest_distbench.records.environment import End
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.plan import Command
from pytest_distbench.records.record import replace

pytestmark = pytest.mark.spawn

Run = Callable[..., LaunchRecord]

JOINS = """
import sys, types
sys.path.insert(0, sys.argv[1])
import torch.distributed as dist
dist.init_process_group(ranks=int(sys.argv[2]))
"""
"""Joins groups of a fake torch.distributed, which only says how many ranks there are."""

STARTS_OTHERS = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(1000)"], env={})
print("up", flush=True)
def waits():
    time.sleep(float(sys.argv[1]))
waits()
"""

NOTES = """
import os, sys
from pytest_distbench import phase, record
for i in range(3):
    with phase("part"):
        record("loss", 3 - i, better="curve")
if len(sys.argv) > 1:
    os._exit(0)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Launches Python code as a command; afterwards nothing of it is alive."""

    def launch(
        code: str,
        *words: str,
        timeout_s: float = 60.0,
        read: dict[str, Reader] | None = None,
        program: Path | None = None,
        makes_group: bool = False,
        delay: float = 0.0,
        **env: str,
    ) -> LaunchRecord:
        directory = tmp_path / f"launch{time.monotonic_ns()}"
        directory.mkdir()
        plan = replace(
            make_plan(directory),
            work=Command(words=[str(program or sys.executable), "-c", code, *words], makes_group=makes_group),
            folder=str(tmp_path),
            is_mirrored=True,
            own_variables=env,
            timeout_s=timeout_s,
            delay=delay,
            read=read or {},
            variables=dict(os.environ),
        )
        record = launch_command(plan, Side())
        wait_for(lambda: not working_in(directory))
        return record

    return launch


def test_it_is_measured_and_read(run: Run) -> None:
    code = "import os, sys; print('loss', 0.5, sys.argv[1]); open('log.jsonl', 'w').write('{\"a\": 3}')"
    read = {"loss": stdout(r"loss (\S+)", better="same"), "a": jsonl("log.jsonl", "a", better="exact")}
    record = run(code, "{world_size}", read=read)

    values = {m.key: m.value for m in record.measurements}
    assert record.outcome == "passed"
    assert (values["loss"], values["a"]) == (0.5, 3.0)
    assert values["wall_time"] == record.wall_s > 0
    assert record.peak_memory_bytes > 2**20
    assert record.output(0) == "loss 0.5 2\n"


COMPUTES = """
import subprocess, sys, time
work = "import time\\nwhile time.process_time() < 0.3: pass\\n"
helper = subprocess.Popen([sys.executable, "-c", work + "print(flush=True); time.sleep(1000)"], stdout=subprocess.PIPE)
needed = bytearray(b"x") * (int(sys.argv[1]) * 2**20)
exec(work)
helper.stdout.readline()
"""
"""Computes while a helper runs that is still there when it ends."""


def test_what_it_has_started_is_its_own_and_its_largest_process_is_measured(run: Run) -> None:
    few, many = run(COMPUTES, "1"), run(COMPUTES, "200")
    [little], [much] = ([m for m in record.measurements if m.name == "peak_memory"] for record in (few, many))

    assert (much.better, much.facts) == ("memory", {"of": "its largest process"})
    assert much.value - little.value == pytest.approx(199 * 2**20, rel=0.1)
    used = msgspec.json.decode(LaunchFiles(Path(few.logs)).used.read_bytes(), type=End)
    assert used.load is not None
    assert used.load.own_s >= 0.55
    assert (few.foreign_cores, few.crowding) == (used.load.foreign_cores, used.load.crowding)


STOPS = "import os, signal, time; os.kill(os.{}(), signal.SIGSTOP); time.sleep(0.2)"


@pytest.mark.parametrize("who", ["getppid", "getpid"], ids=["its guardian", "itself"])
def test_one_that_waits_for_a_stopped_process_is_ended_and_says_so(
    run: Run, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(processes, "STOPPED_S", 1.0)
    record = run(STOPS.format(who))

    assert (record.outcome, record.timed_out) == ("failed", False)
    assert re.match(r"the process \d+, which starts the others .* has been stopped \(SIGSTOP\)", record.reason)
    assert record.fates[0].how == "was ended"


def test_a_failed_command_is_reported_with_the_end_of_its_output(run: Run) -> None:
    record = run("print('bad luck'); raise SystemExit(3)")

    assert (record.outcome, record.reason) == ("failed", "the command ended with exit code 3")
    assert record.fates[0].log_tail == "bad luck"
    assert run("import os; os.abort()").reason == "the command was killed by SIGABRT"

    record = run("print('loss: 3')", read={"loss": stdout(r"loss=(\d)")})

    assert record.reason.endswith("the nearest lines are:\nloss: 3")


def test_one_that_hangs_shows_where_and_is_ended_with_all_it_started(run: Run) -> None:
    record = run(STARTS_OTHERS, "1000", timeout_s=3.0)

    assert record.timed_out
    assert re.match(r"the command had not ended after \d+\.\d s", record.reason)
    assert record.reason.endswith("its Python processes reported their stacks")
    assert "in waits" in record.fates[0].log_tail


def test_a_hanging_command_without_python_is_reported_without_stacks(run: Run) -> None:
    record = run("import os; print('up', flush=True); os.execvp('sleep', ['sleep', '1000'])", timeout_s=3.0)

    assert record.reason.endswith("and was ended; none of its processes reported its stack")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo hello\n", "Exec format error; a script says in its first line what runs it: #!/bin/sh"),
        ("#!/nowhere/sh\n", "No such file or directory; is what its first line names, after #!, installed?"),
    ],
)
def test_a_program_that_cannot_be_started_is_reported_in_a_line(text: str, told: str, run: Run, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(0o700)
    record = run("", program=program)

    assert record.reason == "the command ended with exit code 126"
    assert record.fates[0].log_tail == f"cannot start '{program}': {told}"


def test_what_it_leaves_running_is_ended_and_named(run: Run) -> None:
    record = run(STARTS_OTHERS, "0")

    assert record.outcome == "passed"
    assert re.fullmatch(r"left .*python.* running; they were ended", record.remarks[0])


def test_one_that_ends_before_its_training_does_has_shown_nothing(run: Run) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)']); print(3)"
    record = run(code, read={"x": stdout(r"(\d)")}, makes_group=True)

    assert record.reason.startswith("no process of the command joined a process group of 2")


def test_what_its_processes_record_is_among_its_numbers_and_what_they_lost_fails_it(run: Run) -> None:
    record = run(NOTES, RANK="0", WORLD_SIZE="1")

    measured = {m.key: m for m in record.measurements}
    assert measured["loss"].values == [3.0, 2.0, 1.0]
    assert set(measured) == {"wall_time", "loss", "phase/part", "peak_memory"}

    assert run(NOTES, "hard").reason.startswith("rank 0: it recorded numbers, and ended before it could write them")


def test_secrets_of_its_command_line_are_masked_and_in_no_file(run: Run, tmp_path: Path) -> None:
    record = run("raise SystemExit(3)", "--password", "hunter2hunter2")

    assert "hunter2hunter2" not in record.command
    assert [p for p in tmp_path.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()] == []


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """Folder of a torch that has groups and nothing else."""
    package = tmp_path / "stand_in" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("from .distributed_c10d import *")
    (package / "distributed_c10d.py").write_text(
        "size = 0\ndef init_process_group(*, ranks):\n    global size\n    size = ranks\n"
        "def get_world_size():\n    return size\n"
    )
    return str(package.parents[1])


def test_the_groups_that_its_pythons_join_are_known_and_one_that_never_met_fails_whatever_it_prints(
    run: Run, stand_in: str
) -> None:
    assert run(JOINS, stand_in, "2", makes_group=True).outcome == "passed"
    assert "or made one of its own" in run(JOINS, stand_in, "1", makes_group=True).reason

    code = "import sys; sys.path.insert(0, sys.argv[1]); import torch.distributed; print('loss 3')"
    record = run(code, stand_in, makes_group=True, read={"loss": stdout(r"loss (\d)")})

    assert record.reason.startswith(
        "no process of the command joined a process group of 2: it ended without one, and each"
    )
    assert record.reason.endswith("the output of rank 0 ends with:\nloss 3")


RAISES = """
import os, sys, types
sys.path.insert(0, sys.argv[1])
import torch.distributed
if sys.argv[2] == os.environ["TORCHELASTIC_RESTART_COUNT"]:
    raise ValueError("bad batch")
"""
"""A rank that raises in one of its lives."""


TWO_LIVES = """
import os, subprocess, sys
for life in "01":
    for rank in "01":
        there = {**os.environ, "RANK": rank, "TORCHELASTIC_RESTART_COUNT": life}
        subprocess.run([sys.executable, "-c", *sys.argv[1:]], env=there)
print("took 5 ms")
"""
"""Starts each of two ranks in two lives, and loses their exit codes."""


@pytest.mark.parametrize(("raises_in", "outcome"), [(1, "failed"), (0, "passed"), (2, "passed")])
def test_a_rank_that_raised_and_was_not_restarted_fails_a_command_with_exit_code_0(
    run: Run, stand_in: str, raises_in: int, outcome: str
) -> None:
    took = {"step": stdout(r"took (\d+) ms", unit="ms", better="lower")}
    record = run(TWO_LIVES, RAISES, stand_in, str(raises_in), read=took)

    assert record.outcome == outcome
    if outcome == "failed":
        assert record.reason == (
            "the command ended with exit code 0, but ranks 0, 1 raised ValueError: bad batch (<string>:6)"
        )


STARTS_RANKS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch.distributed
class Failure:
    exitcode = int(sys.argv[2])
    def signal_name(self):
        return "SIGKILL"
class ChildFailedError(Exception):
    def get_first_failure(self):
        return 1, Failure()
raise ChildFailedError
"""
"""What torchrun raises where a rank has died."""

LOSES_ITS_EXIT_CODE = """
import subprocess, sys
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
print("took 5 ms")
"""


ADVICE = "; a pipe hides exit codes: begin with 'set -o pipefail'"


@pytest.mark.parametrize(
    ("code", "piped", "words"),
    [
        (-9, [], "rank 1 died of SIGKILL"),
        (3, [], "rank 1 ended with exit code 3"),
        (3, ["| tee log"], f"rank 1 ended with exit code 3{ADVICE}"),
    ],
)
def test_a_rank_that_died_fails_a_command_that_ends_well(
    run: Run, stand_in: str, code: int, piped: list[str], words: str
) -> None:
    took = {"step": stdout(r"took (\d+) ms", unit="ms", better="lower")}
    record = run(LOSES_ITS_EXIT_CODE, STARTS_RANKS, stand_in, str(code), *piped, read=took)

    assert (record.outcome, record.reason) == ("failed", f"the command ended with exit code 0, but {words}")


def test_one_without_torch_has_to_show_a_number(run: Run) -> None:
    assert "no process of the command joined" in run("print('busbw 3')", makes_group=True).reason
    assert run("print('busbw 3')", makes_group=True, read={"bw": stdout(r"bw (\d)")}).outcome == "passed"


def test_a_delay_has_a_command_and_all_it_starts_stand_still_for_a_share_of_the_time(run: Run) -> None:
    """The command's own timing shows it. While other processes take the cores it catches up in part."""
    code = "import time; t = time.perf_counter()\nwhile time.process_time() < 0.5: pass\nprint(time.perf_counter() - t)"
    read = {"took": stdout("(.+)", unit="s", better="lower")}
    healthy, delayed = (run(code, read=read, delay=share) for share in (0.0, 2.0))
    took = [next(m.value for m in launch.measurements if m.name == "took") for launch in (healthy, delayed)]

    assert healthy.delayed_s == 0
    assert delayed.delayed_s == pytest.approx(delayed.wall_s * 2 / 3, rel=0.2)
    assert took[1] > 1.2 * took[0]

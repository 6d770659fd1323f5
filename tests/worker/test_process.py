"""The process of a rank: what it is made of, what it uses, and who computes on its CPUs."""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from support.launching import Launch
from support.plans import make_plan
from support.processes import wait_for
from support.releases import needs_numa

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import LAUNCHERS, Launcher, LauncherSetup
from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.records.record import replace
from pytest_distbench.worker import process
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.load import Descendants, LoadWindow, busy_s, oldest_marked, usable_cpus
from pytest_distbench.worker.process import MemoryPeak, enter_namespaces, forbid_tf32, mpi_version, own_cpu_s, software


def test_a_missing_or_invalid_namespace_is_an_error(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, namespaces=[str(tmp_path / "none" / f"host{rank}") for rank in range(2)])
    with pytest.raises(
        LauncherError, match=r"rank 1 cannot enter its network: .*/none/host1/net: No such file or directory"
    ):
        enter_namespaces(plan, 1)

    (tmp_path / "host0").mkdir()
    (tmp_path / "host0" / "net").write_text("")
    plan = make_plan(tmp_path, namespaces=[str(tmp_path / "host0")])
    with pytest.raises(LauncherError, match=r"/host0/net: (Invalid argument|Operation not permitted)"):
        enter_namespaces(plan, 0)


CPUS = sorted(os.sched_getaffinity(0))


def checks_its_cpus(rank: RankContext) -> None:
    cpus = os.sched_getaffinity(0)
    later: set[int] = set()
    thread = threading.Thread(target=lambda: later.update(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    assert later == cpus
    (rank.data_dir / f"rank{rank.rank}").write_text(" ".join(map(str, cpus)))


@pytest.mark.spawn
@needs_numa
@pytest.mark.skipif(len(CPUS) < 2, reason="two ranks cannot have a CPU each")
def test_ranks_are_bound_to_the_cpus_that_torchrun_would_bind_them_to(on_cuda_apart: Launch, tmp_path: Path) -> None:
    """Exclusive: both simulated GPUs are near node 0, so that each rank has a part of it for itself."""
    here = {"CUDA_VISIBLE_DEVICES": "0,1"}
    record = on_cuda_apart("checks_its_cpus", backend="nccl", numa_binding="exclusive", variables=here)

    assert record.reason == ""
    first, second = (set(path.read_text().split()) for path in sorted(tmp_path.glob("rank?")))
    assert first
    assert second
    assert not first & second
    assert record.software["numa_binding"] == "exclusive"


def test_a_machine_that_does_not_report_a_gpus_place_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(index: int, mode: str) -> set[int]:
        raise FileNotFoundError(2, "No such file or directory", "/sys/bus/pci/devices/0000:19:00.0/numa_node")

    monkeypatch.setattr(process, "cpus_near_gpu", fail)

    with pytest.raises(ConfigurationError, match=r"binding = node: .* near GPU 3 .*0000:19:00.*leave the key out"):
        process.bind_near_gpu(3, "node")


def test_a_control_group_is_entered_by_whatever_number_the_process_has_there(tmp_path: Path) -> None:
    process.enter_control_group(str(tmp_path))

    assert (tmp_path / "cgroup.procs").read_text() == "0"


def leaves_a_thread_that_raises(rank: RankContext) -> None:
    def write() -> None:
        raise OSError("disk full")

    saver = threading.Thread(target=write, name="saver")
    saver.start()
    saver.join()


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_a_launch_whose_thread_raised_passes_and_says_so(launcher: Launcher, tmp_path: Path) -> None:
    record = Launch(launcher, tmp_path, Path(__file__))("leaves_a_thread_that_raises")

    assert record.outcome == "passed"
    assert record.remarks == ["rank 0, 1: thread saver raised OSError: disk full"]


def uses_cuda(rank: RankContext) -> None:
    del rank
    torch.cuda.init()


def checks_how_cuda_was_asked_for(rank: RankContext) -> None:
    del rank
    assert sys.modules["support.preloaded"].CHECK == "1"
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ


def draws(rank: RankContext) -> None:
    module = sys.modules["support.preloaded"]
    seeded = [torch.initial_seed(), random.random(), np.random.random(), module.SEEDED.random()]
    found = {"seeded": seeded, "unseeded": module.UNSEEDED.random()}
    (rank.data_dir / f"rank{rank.rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    setup = LauncherSetup(
        directory=tmp_path_factory.mktemp("preloaded"),
        session=uuid.uuid4().hex,
        preload=["no_such_module", "support.preloaded", "support.results"],
    )
    made = LAUNCHERS["warm"].make(setup)
    yield made
    made.close()


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    return Launch(launcher, tmp_path, Path(__file__))


@pytest.mark.spawn
def test_a_module_that_leaves_the_ranks_no_cuda_is_named(launch: Launch) -> None:
    record = launch("uses_cuda", device="cuda", devices=[0, 1])

    _, _, told = record.reason.partition(" raised ")  # both ranks do, in either order
    assert told.startswith(
        "ConfigurationError: importing support.preloaded (distbench_preload) used CUDA in the process"
    )
    assert "no_such_module" not in record.reason
    assert "take it out of distbench_preload" in record.reason


@pytest.mark.spawn
def test_ranks_on_the_cpu_are_none_the_worse_for_it(launch: Launch) -> None:
    record = launch("checks_how_cuda_was_asked_for")

    assert (record.outcome, record.reason) == ("passed", "")


@pytest.mark.spawn
def test_a_body_that_uses_cuda_after_a_preload_did_gets_advice(launch: Launch) -> None:
    record = launch("uses_cuda", world_size=1)
    first, second = record.reason.splitlines()

    assert first.partition(" raised ")[2].startswith(
        "RuntimeError: CUDA was in use before the rank was forked: Cannot re-init"
    )
    assert "a module of distbench_preload" in second


@pytest.mark.spawn
def test_what_a_module_seeds_stays_seeded_and_what_it_does_not_differs_between_ranks(launch: Launch) -> None:
    """The result is as if every rank had imported it."""
    record = launch("draws")

    assert record.outcome == "passed", record.reason
    first, second = (json.loads((launch.directory / f"rank{rank}.json").read_text()) for rank in (0, 1))
    random.seed(1)
    assert first["seeded"] == second["seeded"]
    assert first["seeded"][:2] == [3, random.random()]
    assert first["seeded"][2:] == [np.random.RandomState(2).random(), np.random.default_rng(4).random()]
    assert first["unseeded"] != second["unseeded"]


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
from pytest_distbench.worker.process import forbid_tf32, note_autocast, settings

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


def test_float32_is_never_rounded_to_tf32_and_the_chosen_settings_are_reported() -> None:
    """Matrix products, convolutions and RNNs are checked; torch's older flags say the same, without an error.

    Autocast is reported, though the body has left it.
    """
    *forbidden, found = run(*(choice + FORBID for choice in CHOICES), CHANGE)

    assert forbidden == ["['none', 'ieee', 'ieee', 'ieee']\nFalse False\n"] * len(CHOICES)
    assert found.splitlines() == [
        "autocast off bfloat16",
        "lower_precision none none",
        "deterministic off on",
        "matmul_precision ieee tf32",
        "conv_precision tf32 ieee",
        "rnn_precision tf32 ieee",
        "cudnn_benchmark off on",
        "cudnn_deterministic off on",
    ]
    assert {line.split()[0] for line in found.splitlines()} == SETTINGS


def computes_in_bfloat16(_rank: RankContext) -> None:
    torch.use_deterministic_algorithms(mode=True)
    forbid_tf32()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.ones(8, 8) @ torch.ones(8, 8)


@pytest.mark.spawn
def test_a_ranks_report_has_it(on_cuda: Launch) -> None:
    record = on_cuda("computes_in_bfloat16", world_size=1)

    assert record.reason == ""
    assert {name: record.software[name] for name in SETTINGS} == {
        "autocast": "bfloat16",
        "lower_precision": "none",
        "deterministic": "on",
        "matmul_precision": "ieee",
        "conv_precision": "ieee",
        "rnn_precision": "ieee",
        "cudnn_benchmark": "off",
        "cudnn_deterministic": "off",
    }


def test_an_editable_install_leads_into_the_tree_of_this_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as setuptools installs it; one that leads elsewhere, or into the tree already, stays."""
    hook = ModuleType("__editable___pkg_1_finder")
    tree, working = tmp_path / "working" / "tmp" / "tree", tmp_path / "working"
    vars(hook)["MAPPING"] = {"pkg": f"{working}/pkg", "other": "/elsewhere/other", "own": f"{tree}/own"}
    monkeypatch.setitem(sys.modules, hook.__name__, hook)
    monkeypatch.setattr(sys, "path", [*sys.path])
    plan = make_plan(tmp_path, python_path=[str(tree)])
    process.take_path(plan)
    assert vars(hook)["MAPPING"]["pkg"] == f"{working}/pkg"
    process.take_path(replace(plan, tree=str(tree), foreign_tree=str(working)))

    assert sys.path == [str(tree)]
    assert vars(hook)["MAPPING"] == {"pkg": f"{tree}/pkg", "other": "/elsewhere/other", "own": f"{tree}/own"}


CASTS = """
end = watch_casts()
torch.ones(2).to("cpu"), torch.ones(2).double(), torch.ones(2).to(torch.bfloat16).half()
end()
torch.ones(2).to(torch.float8_e5m2)
print(settings()["lower_precision"])
"""


def test_casts_below_float32_are_remembered_while_somebody_looks() -> None:
    [found] = run("from pytest_distbench.worker.process import watch_casts" + CASTS)

    assert found == "bfloat16+float16\n"


COMPUTES = "import time\nwhile time.process_time() < {seconds}: pass\nprint('done', flush=True)\ntime.sleep(1000)"
"""A process that computes for so long, and lives on."""

STARTS_ONE = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(1000)"
"""A process whose child does."""


class Times(NamedTuple):
    """What psutil says of a CPU, as far as the busy time is made of it."""

    user: float
    system: float
    idle: float


def test_work_on_cpus_that_are_another_jobs_is_none_of_the_machines_but_where_some_are_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    per_cpu = [Times(user=1.0, system=0.5, idle=9.0), Times(user=20.0, system=0.0, idle=1.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: per_cpu)
    monkeypatch.setattr("os.sysconf", lambda name: len(per_cpu))

    assert busy_s(frozenset({0}))[0] == 1.5
    assert busy_s(frozenset({1}))[0] == 20.0

    # Their list leaves those out, so that its indices are not the CPUs'
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [Times(1.0, 0.0, 5.0), Times(2.0, 0.0, 5.0)])
    monkeypatch.setattr("os.sysconf", lambda name: 4)

    assert busy_s(frozenset({1}))[0] == 3.0


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code, and waits for what it prints; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *words: str, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, **options)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for one in started:
        processes.kill(processes.family([one.pid]))
        one.communicate()


def test_threads_that_ended_early_count_if_they_were_looked_at(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """Their times go with them."""
    window = LoadWindow(os.getpid(), usable_cpus())
    window.begin()
    process = start(COMPUTES.format(seconds=0.15))
    window.look()
    process.kill()
    process.wait()
    window.end()

    assert window.load is not None
    assert window.load.ran_s >= 0.15


def test_the_oldest_of_a_launch_is_found_by_its_mark(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Below a shell that has the mark, and one that has another."""
    code = "from pytest_distbench.worker.load import oldest_marked as f; import os; print(os.getppid(), f('MARK'))"
    inner = f'import subprocess, sys; subprocess.run([sys.executable, "-c", {code!r}]); print(end="", flush=True)'
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    outer = subprocess.run(
        [sys.executable, "-c", inner], env={**env, "MARK": "mine"}, capture_output=True, text=True, check=True
    )
    parent, found = map(int, outer.stdout.split())

    assert found == parent
    assert oldest_marked("A_VARIABLE_THAT_NOBODY_HAS") == os.getpid()


def test_work_shows_in_the_processes_own_time() -> None:
    before, until = own_cpu_s(), time.process_time() + 0.05
    while time.process_time() < until:
        pass

    assert own_cpu_s() - before >= 0.04


def test_memory_is_what_is_needed_beyond_what_the_process_had_without_pages_of_files(tmp_path: Path) -> None:
    had = bytearray(b"x") * 2**26
    peak = MemoryPeak(make_plan(tmp_path))
    before = peak.num_bytes()
    needed = bytearray(b"x") * 2**26
    del had, needed
    now = peak.num_bytes()

    assert before is not None
    assert now is not None
    assert before < 2**24
    assert now == pytest.approx(2**26, rel=0.2)

    needed = bytearray(b"x") * 2**26
    del needed

    assert (MemoryPeak(make_plan(tmp_path)).num_bytes() or 0) < 2**24

    (tmp_path / "data").write_bytes(bytes(2**25))
    peak = MemoryPeak(make_plan(tmp_path))
    with open(tmp_path / "data", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        touched = sum(data[i] for i in range(0, 2**25, 4096))
        now = peak.num_bytes()

    assert touched == 0
    assert (now or 0) < 2**24


def test_peak_memory_is_unknown_without_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)

    assert MemoryPeak(make_plan(tmp_path)).num_bytes() is None


def test_versions_are_those_that_run_and_on_the_cpu_the_driver_is_not_loaded_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("this loads the driver"))

    assert "cuda" not in software(make_plan(tmp_path))

    found = software(make_plan(tmp_path))

    assert found["torch"] == str(torch.__version__)
    assert {"python", "numpy", "cpu_capability", "threads"} <= found.keys()


class Mpi:
    """A process that has loaded an MPI library."""

    @staticmethod
    def MPI_Get_library_version(told: Any, length: Any) -> int:  # noqa: N802 its name in the standard
        told.value = b"Open MPI v5.0.6, package: Open MPI a@b Distribution\n"
        return 0


def test_the_version_of_mpi_is_that_of_the_library() -> None:
    assert mpi_version(Mpi()) == "Open MPI v5.0.6"
    assert mpi_version(object()) == ""


def test_a_child_that_still_runs_counts_as_own_and_not_what_it_computed_before(start: Callable[..., object]) -> None:
    start(COMPUTES.format(seconds=0.3))
    window = LoadWindow(os.getpid(), usable_cpus())
    window.begin()
    window.end()

    assert window.load is not None
    assert window.load.own_s < 0.2
    assert window.load.ran_s < 0.2

    window = LoadWindow(os.getpid(), usable_cpus())
    window.begin()
    start(COMPUTES.format(seconds=0.15))
    start(STARTS_ONE, COMPUTES.format(seconds=0.15))
    window.end()

    assert window.load is not None
    assert window.load.own_s + 0.04 >= 0.3  # ticks of 10 ms
    assert window.load.own_s <= window.load.busy_s + 0.1
    assert window.load.ran_s >= 0.3
    assert window.load.waited_s >= 0.0


def test_a_process_of_somebody_else_is_not_own(start: Callable[..., subprocess.Popen[str]]) -> None:
    family = Descendants(start("print(flush=True); import time; time.sleep(1000)").pid)
    start(COMPUTES.format(seconds=0.15))
    before = family.cpu_s
    family.look()

    assert family.cpu_s - before < 0.1


def test_threads_that_want_one_cpu_wait_for_it(start: Callable[..., subprocess.Popen[str]]) -> None:
    cpu = {min(usable_cpus())}
    window = LoadWindow(os.getpid(), frozenset(cpu))
    window.begin()
    code = f"import os; os.sched_setaffinity(0, {cpu}); "
    both = [
        subprocess.Popen([sys.executable, "-c", code + "import time\nwhile time.process_time() < 0.2: pass"])
        for _ in range(2)
    ]
    wait_for(lambda: window.look() or all(process.poll() is not None for process in both))
    window.end()

    assert window.load is not None
    assert window.load.waited_s > 0.1

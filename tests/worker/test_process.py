"""What a rank makes of its process before anything of the user's runs, and what is imported once for all ranks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from support.launching import Launch
from support.plans import make_plan
from support.releases import needs_numa

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.starters import LAUNCHERS, Launcher, LauncherSetup
from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.records.record import replace
from pytest_distbench.worker import process
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.process import enter_namespaces, forbid_tf32


def test_what_is_no_namespace_or_gone_is_told(tmp_path: Path) -> None:
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


def tells_its_cpus(rank: RankContext) -> None:
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
    """Exclusive: both GPUs of the stand-in are near node 0, so that each rank has a part of it for itself."""
    here = {"CUDA_VISIBLE_DEVICES": "0,1"}
    record = on_cuda_apart("tells_its_cpus", backend="nccl", numa_binding="exclusive", variables=here)

    assert record.reason == ""
    first, second = (set(path.read_text().split()) for path in sorted(tmp_path.glob("rank?")))
    assert first
    assert second
    assert not first & second
    assert record.software["numa_binding"] == "exclusive"


def test_a_machine_that_does_not_tell_where_a_gpu_sits_is_an_error_with_the_way_out(
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


def tells_how_cuda_was_asked_for(rank: RankContext) -> None:
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
    record = launch("tells_how_cuda_was_asked_for")

    assert (record.outcome, record.reason) == ("passed", "")


@pytest.mark.spawn
def test_a_body_that_uses_cuda_all_the_same_is_told_what_to_do(launch: Launch) -> None:
    record = launch("uses_cuda", world_size=1)
    first, second = record.reason.splitlines()

    assert first.partition(" raised ")[2].startswith(
        "RuntimeError: CUDA was in use before the rank was forked: Cannot re-init"
    )
    assert "a module of distbench_preload" in second


@pytest.mark.spawn
def test_what_a_module_seeds_stays_seeded_and_what_it_does_not_differs_between_ranks(launch: Launch) -> None:
    """As if every rank had imported it."""
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


def test_float32_is_not_rounded_to_tf32_whoever_asked_for_it_and_what_was_chosen_is_told() -> None:
    """Matrix products, convolutions and RNNs; and who reads the flags of before is told the same, and no error.

    Autocast is told, though the body has left it.
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
    """As setuptools installs it, and not where it leads elsewhere, or into the tree already."""
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

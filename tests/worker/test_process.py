"""What a rank makes of its process before anything of the user's runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from support.launching import Launch
from support.plans import make_plan
from support.releases import needs_numa

from pytest_distbench.errors import ConfigurationError, LauncherError
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.network import Network
from pytest_distbench.worker import process
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.process import enter_network


def test_what_is_no_namespace_or_gone_is_told(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, network=Network(), network_place=str(tmp_path / "none"))
    with pytest.raises(
        LauncherError, match=r"rank 1 cannot enter its network: .*/none/host1: No such file or directory"
    ):
        enter_network(plan, 1)

    (tmp_path / "host0").write_text("")
    plan = make_plan(tmp_path, network=Network(), network_place=str(tmp_path))
    with pytest.raises(LauncherError, match=r"/host0: (Invalid argument|Operation not permitted)"):
        enter_network(plan, 0)


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

    with pytest.raises(ConfigurationError, match=r"binding=node: .* near GPU 3 .*0000:19:00.*leave the option out"):
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

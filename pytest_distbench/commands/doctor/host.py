"""Checks of the host: its processors, limits and network, what else runs on it, and what earlier runs left. Linux."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from pytest_distbench.commands.doctor.finding import Finding
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters.contract import SESSION_VARIABLE
from pytest_distbench.machine import hardware
from pytest_distbench.units import format_bytes

WATCH_S = 1.0
"""How long other processes are watched."""
BUSY_CORES = 0.2
"""Other work above this many cores disturbs a measurement on a small machine."""
FEW_FILES = 4096
SMALL_SHM_BYTES = 64 * 2**20
SHM_OF_A_GPU_BYTES = 40 * 2**20
"""What NCCL takes of /dev/shm for each rank, where it sends over the network at the latest."""
FEW_FREE_BYTES = 2**30


def processor() -> Iterator[Finding]:
    """Name of the CPU, and how many of its cores are ours."""
    mine, all_cores = hardware.cores(), os.cpu_count() or 1
    share = f"{mine} of {all_cores} cores may be used" if mine < all_cores else f"{mine} cores"
    yield Finding("ok", "processor", f"{hardware.cpu_name()}, {share}")


def other_work(shares: Sequence[tuple[float, str, int]]) -> Iterator[Finding]:
    """CPU time that other processes take right now: shares as of :func:`foreign_shares`."""
    busy = sum(share for share, _, _ in shares)
    cores = hardware.cores()
    top = ", ".join(f"{name} (pid {pid}) {share:.2f}" for share, name, pid in shares[:3] if share > 0.02)
    if busy > BUSY_CORES:
        advice = "end them, or expect inconclusive verdicts; more launches help: --distbench-launches 3"
        yield Finding("warn", "other processes", f"{busy:.2f} of {cores} cores busy: {top}", advice)
    else:
        yield Finding("ok", "other processes", f"{busy:.2f} of {cores} cores busy")


def container_limits(root: Path) -> Iterator[Finding]:
    """CPU quota and memory limit of the control group, versions 1 and 2."""
    quota = _cpu_quota(root)
    cores = hardware.cores()
    if quota is not None and quota < cores:
        yield Finding(
            "warn",
            "CPU quota",
            f"{quota:g} CPUs of {cores} visible cores: ranks are stopped for a part of every 100 ms",
            "give the container whole cores (docker run --cpuset-cpus=0-3), not a quota (--cpus)",
        )
    else:
        yield Finding("ok", "CPU quota", "none" if quota is None else f"{quota:g} CPUs")


def memory() -> Iterator[Finding]:
    """Free memory, and swap in use."""
    now = psutil.virtual_memory()
    text = f"{format_bytes(now.available)} of {format_bytes(now.total)} available"
    if now.available < 0.1 * now.total:
        yield Finding("warn", "memory", text, "end what uses it: a rank that swaps or is killed measures nothing")
    else:
        yield Finding("ok", "memory", text)


def open_files() -> Iterator[Finding]:
    """RLIMIT_NOFILE: a store needs a descriptor per rank, and ranks one per peer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FEW_FILES:
        advice = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}; with too few a large group fails to connect"
        yield Finding("warn", "open files", f"limit {soft} (RLIMIT_NOFILE)", advice)
    else:
        yield Finding("ok", "open files", f"limit {soft}")


def shared_memory(path: Path, *, gpus: int) -> Iterator[Finding]:
    """/dev/shm, which NCCL and DataLoader workers use: NCCL for each of so many GPUs."""
    wanted = max(SMALL_SHM_BYTES, gpus * SHM_OF_A_GPU_BYTES)
    advice = (
        "a tmpfs has to be mounted there: docker run --shm-size=8g; in Kubernetes an emptyDir, "
        "as docs/kubernetes/trainjob.yaml has it"
    )
    try:
        space = shutil.disk_usage(path)
    except OSError:
        yield Finding("warn", "shared memory", f"there is no {path}", advice)
        return
    text = f"{format_bytes(space.free)} free in {path}"
    if space.free <= wanted:
        of = f"NCCL takes {format_bytes(SHM_OF_A_GPU_BYTES)} for each of {gpus} GPUs" if gpus else "NCCL takes more"
        yield Finding("warn", "shared memory", text, f"{of}, DataLoader workers besides: {advice}")
    else:
        yield Finding("ok", "shared memory", text)


def run_directory() -> Iterator[Finding]:
    """The place for logs, rank reports and sockets."""
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory(prefix="distbench-doctor-") as made, socket.socket(socket.AF_UNIX) as probe:
            probe.bind(f"{made}/s")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding("fail", "run directory", f"{folder}: {error.strerror or error}", "set TMPDIR to a local folder")
        return
    if free < FEW_FREE_BYTES:
        yield Finding("warn", "run directory", f"{folder}: {format_bytes(free)} free", "make room, or set TMPDIR")
    else:
        yield Finding("ok", "run directory", f"{folder}: {format_bytes(free)} free")


def loopback() -> Iterator[Finding]:
    """Whether ranks can talk over 127.0.0.1."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            pass
    except OSError as error:
        yield Finding("fail", "loopback", f"127.0.0.1: {error.strerror or error}", "ip link set lo up")
        return
    yield Finding("ok", "loopback", "127.0.0.1 accepts connections")


def leftovers() -> Iterator[Finding]:
    """Processes that a run of ours left behind: there should never be one."""
    found = [p for p in processes.find_carrying(SESSION_VARIABLE) if p.ppid() == 1]
    if found:
        pids = " ".join(str(p.pid) for p in found)
        yield Finding("warn", "leftovers", f"{len(found)} processes of a run that has ended", f"kill -9 {pids}")
    else:
        yield Finding("ok", "leftovers", "no process of an earlier run")


def foreign_shares() -> list[tuple[float, str, int]]:
    """(cores used, name, pid) of all other processes, over WATCH_S, the busiest first."""
    watched = [p for p in psutil.process_iter(["name"]) if p.pid != os.getpid()]
    for process in watched:
        with contextlib.suppress(psutil.Error):
            process.cpu_percent()
    time.sleep(WATCH_S)
    shares = []
    for process in watched:
        with contextlib.suppress(psutil.Error):
            shares.append((process.cpu_percent() / 100, str(process.info["name"]), process.pid))
    return sorted(shares, reverse=True)


def _cpu_quota(root: Path) -> float | None:
    for path in root.glob("sys/fs/cgroup/cpu.max"):
        quota, _, period = _text(path).partition(" ")
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    quota, period = (_text(root / f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

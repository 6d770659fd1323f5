"""``distbench doctor``: is this machine fit to measure? Each check reports what it found, and what to do about it.

Checks of the host are Linux's. GPUs are asked through NVML; torch is imported in other processes, never here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import psutil

from pytest_distbench.commands import NegativeError, Subcommand
from pytest_distbench.errors import ConfigurationError, StoredFileError
from pytest_distbench.judging.entry import sensitivity_lines, sensitivity_of
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.local import py_spy
from pytest_distbench.machine import hardware
from pytest_distbench.machine.driver import Driver, DriverError
from pytest_distbench.machine.gpu_watch import held_by, processes_on
from pytest_distbench.machine.gpus import Gpus, connect, kinds, read_gpus
from pytest_distbench.machine.visible import VARIABLE
from pytest_distbench.records.environment import Gpu
from pytest_distbench.records.run import Finding
from pytest_distbench.records.wanted import DEFAULT_TOLERANCE
from pytest_distbench.records.wire import SESSION_VARIABLE
from pytest_distbench.releases import NUMA_SINCE, TESTED, check_torch, nearest, own_version, release_of, text, untested
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.units import counted, format_bytes

Level = Literal["ok", "note", "warn", "fail"]
"""*note*: worth knowing. *warn*: numbers are noisier, or a feature is missing. *fail*: tests cannot run."""


def found(level: Level, about: str, sentence: str, advice: str = "") -> Finding:
    return Finding(case=about, code=level, reason=sentence, differences=[advice] if advice else [])


def within(is_well: bool, about: str, sentence: str, advice: str) -> Finding:  # noqa: FBT001
    """Make the finding of a check: *ok*, or a warning with advice if ``is_well`` is False."""
    return found("ok", about, sentence) if is_well else found("warn", about, sentence, advice)


def report(findings: Iterable[Finding]) -> Iterator[str]:
    counts = Counter[str]()
    for finding in findings:
        counts[finding.code] += 1
        yield f"{finding.code:<5} {finding.case:<17} {finding.reason}"
        yield from (f"{'':<23} -> {advice}" for advice in finding.differences)
    yield ""
    warnings = counted(counts["warn"], "warning")
    if counts["fail"]:
        yield f"{counts['fail']} failed, so tests cannot run here yet; {warnings}"
        raise NegativeError
    yield f"{warnings}: usable, but expect noisy timings" if counts["warn"] else "fit to measure"


_CUDA_TIMEOUT_S = 120.0
_USE_EVERY_DEVICE = """
import json, torch
names = []
for i in range(torch.cuda.device_count()):
    torch.ones(1024, device=f"cuda:{i}").sum().item()
    names.append(torch.cuda.get_device_name(i))
print(json.dumps([torch.version.cuda or torch.version.hip, names]))
"""


def use_every_device(variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run torch on each CUDA device, in another process that prints its CUDA version and their names as JSON."""
    return subprocess.run(
        [sys.executable, "-c", _USE_EVERY_DEVICE],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_CUDA_TIMEOUT_S,
        check=False,
    )


def gpus(
    variables: Mapping[str, str],
    *,
    use: Callable[[Mapping[str, str]], subprocess.CompletedProcess[str]] = use_every_device,
) -> Iterator[Finding]:
    gpus = read_gpus(variables)
    if gpus.failure:
        level: Level = "note" if gpus.is_absent else "warn"
        yield found(level, "GPU", f"none: {gpus.failure}", "--gpu cannot run here; everything else runs on the CPU")
        return
    yield found("ok", f"{gpus.maker} driver", gpus.driver + (f", for CUDA up to {gpus.cuda}" if gpus.cuda else ""))
    for reason in gpus.unreadable:
        yield found("warn", "GPU", reason, "the other GPUs can be used")
    for remark in gpus.remarks:
        yield found("warn", "visible GPUs", remark)
    if not gpus.visible:
        yield found("warn", "visible GPUs", f"none of {gpus.count}, {gpus.setting}", "--gpu cannot run here")
        return
    if len(gpus.visible) < gpus.count or gpus.visible[0].slice_of:
        labels = ", ".join(gpu.label for gpu in gpus.visible)
        yield found("note", "visible GPUs", f"{labels}, {gpus.setting}")
    try:
        with connect() as driver:
            for gpu in gpus.visible:
                yield from _gpu(driver, gpu)
    except DriverError as error:
        yield found("warn", "GPU", str(error))
    if gpus.links:
        yield found("ok", "links", f"between GPUs: {', '.join(kinds(gpus.links))}")
    yield found("ok", "platform", gpus.platform)
    yield from _cuda(gpus, lambda: use({**variables, **gpus.variables}))


def _gpu(driver: Driver, gpu: Gpu) -> Iterator[Finding]:
    subject = f"GPU {gpu.index}"
    device = driver.ask("GetHandleByUUID", gpu.uuid)
    card = driver.ask("GetHandleByUUID", gpu.slice_of) if gpu.slice_of else device
    text = gpu.name
    if (memory := driver.ask("GetMemoryInfo", device)) is not None:
        text += f", {format_bytes(memory.used)} of {format_bytes(memory.total)} in use"
    if (degrees := driver.ask("GetTemperature", card, driver.binding.NVML_TEMPERATURE_GPU)) is not None:
        text += f", {degrees} C"
    yield found("ok", subject, text)
    if pids := processes_on(driver, device):
        yield found("warn", subject, f"in use by pid {', '.join(map(str, pids))}", "end them, or use another GPU")
    if held := sorted(held_by(driver, card)):
        yield found("warn", subject, f"slowed down by: {', '.join(held)}", "let it cool; check power and fans")
    if gpu.is_capped:
        text = f"power limit {gpu.power_limit_w:.0f} W, by default {gpu.default_power_limit_w:.0f} W"
        set_it = f"sudo {driver.tool} {driver.sets_power} sets the limit"
        advice = f"a GPU with another power limit is another platform; {set_it}"
        yield found("note", subject, text, advice)
    if gpu.persistence is False:
        yield found("note", subject, "persistence mode is off, so the first launch waits", "sudo nvidia-smi -pm 1")


def _cuda(gpus: Gpus, use: Callable[[], subprocess.CompletedProcess[str]]) -> Iterator[Finding]:
    done = None
    try:
        done = use()
        version, names = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        text = f"no answer within {_CUDA_TIMEOUT_S:.0f} s"
        yield found("fail", "CUDA", text, "see dmesg: a faulty GPU blocks every process that uses it")
        return
    except (ValueError, IndexError, TypeError):
        assert done is not None
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield found("fail", "CUDA", f"does not work: {last[:200]}", f"{gpus.tool}, dmesg; a torch built for the driver")
        return
    shown = [gpu.name for gpu in gpus.visible]
    if version is None:
        advice = f"pip install a torch for CUDA {gpus.cuda} or older: https://pytorch.org/get-started/locally"
        yield found("fail", "CUDA", "this torch is built without CUDA, so --gpu cannot run", advice)
    elif names != shown:
        found_text = f"torch computes on {', '.join(names) or 'no GPU'}; the driver shows {', '.join(shown)}"
        yield found("warn", "CUDA", found_text, f"name the GPUs by UUID, as {gpus.tool} does, in {VARIABLE}")
    else:
        yield found("ok", "CUDA", f"{version} computes on {counted(len(names), 'GPU')}")


WATCH_S = 1.0
BUSY_CORES = 0.2  # other work above this many cores disturbs a measurement on a small machine
FEW_FILES = 4096
SMALL_SHM_BYTES = 64 * 2**20
SHM_OF_A_GPU_BYTES = 40 * 2**20
"""Bytes of /dev/shm that NCCL takes for each rank, at the latest when it sends over the network."""
FEW_FREE_BYTES = 2**30


def processor() -> Iterator[Finding]:
    mine, all_cores = hardware.cores(), os.cpu_count() or 1
    share = f"{mine} of {all_cores} cores may be used" if mine < all_cores else f"{mine} cores"
    yield found("ok", "processor", f"{hardware.cpu_name()}, {share}")


def other_work(shares: Sequence[tuple[float, str, int]]) -> Iterator[Finding]:
    busy = sum(share for share, _, _ in shares)
    top = ", ".join(f"{name} (pid {pid}) {share:.2f}" for share, name, pid in shares[:3] if share > 0.02)
    is_well = busy <= BUSY_CORES
    text = f"{busy:.2f} of {hardware.cores()} cores busy{'' if is_well else f': {top}'}"
    advice = "end them, or expect inconclusive verdicts (noise); more launches help: --distbench-launches 3"
    yield within(is_well, "other processes", text, advice)


def container_limits(root: Path) -> Iterator[Finding]:
    cores = hardware.cores()
    limit, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not limit.isdigit() or not period.isdigit():
        limit, period = (_text(root / f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    quota = int(limit) / int(period) if limit.isdigit() and period.isdigit() and int(period) else None
    if quota is not None and quota < cores:
        text = f"{quota:g} CPUs of {cores} visible cores, so ranks are stopped for a part of every 100 ms"
        advice = "give the container whole cores (docker run --cpuset-cpus=0-3) instead of a quota (--cpus)"
        yield found("warn", "CPU quota", text, advice)
    else:
        yield found("ok", "CPU quota", "none" if quota is None else f"{quota:g} CPUs")


def memory() -> Iterator[Finding]:
    now = psutil.virtual_memory()
    text = f"{format_bytes(now.available)} of {format_bytes(now.total)} available"
    advice = "end what uses it: a rank that swaps or is killed gives no usable number"
    yield within(now.available >= 0.1 * now.total, "memory", text, advice)


def open_files() -> Iterator[Finding]:
    """Check RLIMIT_NOFILE: a store needs a descriptor per rank, and ranks one per peer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_well = soft >= FEW_FILES
    advice = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}; a large group needs more to connect"
    yield within(is_well, "open files", f"limit {soft}{'' if is_well else ' (RLIMIT_NOFILE)'}", advice)


def shared_memory(path: Path, *, gpus: int) -> Iterator[Finding]:
    wanted = max(SMALL_SHM_BYTES, gpus * SHM_OF_A_GPU_BYTES)
    advice = "mount a tmpfs there: docker run --shm-size=8g; in Kubernetes an emptyDir whose medium is Memory"
    try:
        space = shutil.disk_usage(path)
    except OSError:
        yield found("warn", "shared memory", f"there is no {path}", advice)
        return
    of = f"NCCL takes {format_bytes(SHM_OF_A_GPU_BYTES)} for each of {gpus} GPUs" if gpus else "NCCL takes more"
    text = f"{format_bytes(space.free)} free in {path}"
    yield within(space.free > wanted, "shared memory", text, f"{of}, DataLoader workers besides: {advice}")


def run_directory() -> Iterator[Finding]:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory(prefix="distbench-doctor-") as made, socket.socket(socket.AF_UNIX) as probe:
            probe.bind(f"{made}/s")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield found("fail", "run directory", f"{folder}: {error.strerror or error}", "set TMPDIR to a local folder")
        return
    text = f"{folder}: {format_bytes(free)} free"
    yield within(free >= FEW_FREE_BYTES, "run directory", text, "free space, or set TMPDIR")


def loopback() -> Iterator[Finding]:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            pass
    except OSError as error:
        yield found("fail", "loopback", f"127.0.0.1: {error.strerror or error}", "ip link set lo up")
        return
    yield found("ok", "loopback", "127.0.0.1 accepts connections")


def leftovers() -> Iterator[Finding]:
    if pids := [str(p.pid) for p in processes.find_marked(SESSION_VARIABLE) if p.ppid() == 1]:
        text = f"{len(pids)} processes are left of a run that has ended"
        yield found("warn", "leftovers", text, f"kill -9 {' '.join(pids)}")
    else:
        yield found("ok", "leftovers", "no process of an earlier run")


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


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


_IMPORT_TIMEOUT_S = 300.0


def versions() -> Iterator[Finding]:
    names = ("torch", "numpy", "pytest", "pytest-benchmark", "msgspec", "psutil", "filelock", "nvidia-ml-py")
    others = ", ".join(f"{name} {hardware.installed_version(name)}" for name in names)
    yield found("ok", "versions", f"distbench {own_version()}, python {platform.python_version()}, {others}")


def torch_import() -> Iterator[Finding]:
    code = (
        "import torch, torch.distributed as d\n"
        "names = ('gloo', 'nccl', 'mpi', 'ucc', 'xccl')\n"
        "have = [n for n in names if getattr(d, f'is_{n}_available', lambda: False)()]\n"
        "nccl = '.'.join(map(str, torch.cuda.nccl.version())) if 'nccl' in have else '-'\n"
        'print(f\'{torch.__version__}, CUDA {torch.version.cuda or "-"}, NCCL {nccl}, backends {", ".join(have)}\')\n'
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"import torch did not end within {_IMPORT_TIMEOUT_S:.0f} s"
        yield found("fail", "torch", text, "a slow or hanging file system? try python -X importtime -c 'import torch'")
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield found("fail", "torch", f"cannot be imported: {last}", "pip install torch, in this environment")
    else:
        yield found("ok", "torch", done.stdout.strip())


def release(torch: str, python: str) -> Iterator[Finding]:
    """Check whether we have results of this release of torch with this Python, and what it lacks."""
    subject = "torch release"
    try:
        check_torch(torch)
    except ConfigurationError as error:
        yield found("fail", subject, *str(error).split(": ", 1))
        return
    have = release_of(torch)
    pythons = f"with Python {', '.join(TESTED[nearest(have)])}"
    if unknown := untested(torch):
        advice = f"pip install 'torch=={text(nearest(have))}.*', or see in a clone: python benchmarks/versions.py"
        yield found("note", subject, f"{unknown}, {pythons}", advice)
    elif text(release_of(python)) not in TESTED[have]:
        yield found("note", subject, f"{text(have)} is tested {pythons}, not {text(release_of(python))}")
    else:
        yield found("ok", subject, f"{text(have)} is tested {pythons}")
    if have < NUMA_SINCE:
        yield found("note", subject, "no distbench_numa_binding", f"torch {text(NUMA_SINCE)} or later has it")


def debugging() -> Iterator[Finding]:
    """Check for py-spy, which shows the stacks of ranks that cannot show them themselves."""
    if py_spy() is not None:
        yield found("ok", "py-spy", "installed: a second source for stacks of hung ranks")
    else:
        advice = "optional: pip install py-spy shows ranks that hang before they can answer a signal"
        yield found("note", "py-spy", "not installed", advice)
    if importlib.util.find_spec("xdist") is not None:
        yield found("note", "pytest-xdist", "installed: measurements still run one at a time on this host")


def baselines(folder: Path, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Report the smallest slowdown that this machine's baselines detect, with and without its GPUs."""
    gpus = read_gpus(variables)
    for platform_name in [hardware.cpu_class(), *([gpus.platform] if gpus.visible else [])]:
        known = []
        try:
            for file in Baselines(folder, platform_name).read_all():
                by_hand = {key: file.entry.by_hand(key) for key in file.entry.metrics}
                tolerances = {
                    key: next((t for t in given if t is not None), DEFAULT_TOLERANCE) for key, given in by_hand.items()
                }
                if (one := sensitivity_of(file.entry.metrics, tolerances)) is not None:
                    known.append((str(file.name), one))
        except StoredFileError as error:
            yield found("warn", "baselines", str(error))
            continue
        if lines := sensitivity_lines(known):
            yield found("note" if len(lines) > 1 else "ok", "baselines", f"{platform_name}: {lines[0]}", *lines[1:])


def examine(
    root: Path = Path("/"), variables: Mapping[str, str] = os.environ, *, stored: Path = Path("baselines")
) -> Iterator[Finding]:
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        processor,
        lambda: other_work(foreign_shares()),
        lambda: container_limits(root),
        memory,
        open_files,
        lambda: shared_memory(root / "dev/shm", gpus=len(read_gpus(variables).visible)),
        run_directory,
        loopback,
        lambda: gpus(variables),
        versions,
        lambda: release(hardware.installed_version("torch"), platform.python_version()),
        torch_import,
        debugging,
        leftovers,
        lambda: baselines(stored, variables),
    )
    for check in checks:
        yield from check()


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        type=Path,
        default=Path("baselines"),
        help="show how small a slowdown its baselines detect",
    )


def _doctor(options: argparse.Namespace) -> Iterator[str]:
    yield from report(examine(stored=options.baselines))


DOCTOR = Subcommand("is this machine fit to measure? findings with next steps", _add_options, _doctor)

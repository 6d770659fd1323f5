"""What the texts of torch, gloo, NCCL and CUDA say of the rank that met them: it waited, it lost a peer, or it is ill.

NCCL's own words are those of ``ncclGetErrorString`` and of its warnings (``src/init.cc``, ``src/bootstrap.cc``,
``src/misc/shmutils.cc``, ``src/transport``); torch puts before them ``NCCL error in: FILE:LINE`` and after them what
the code means, and ``Last error:`` with NCCL's latest warning (``NCCLUtils.cpp``, ``ProcessGroupNCCL.cpp``). CUDA's are
those of ``cudaGetErrorString``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["wait", "victim", "cause"]


@dataclass(frozen=True, slots=True)
class Sign:
    """What a text, searched in any case, is a sign of.

    ``wait``: another rank did not come. ``victim``: another rank is gone. ``cause``: it began here.
    """

    kind: Kind
    text: str
    meaning: str = ""
    advice: str = ""


_SEE_XID = (
    "sudo dmesg | grep -i xid names the fault; nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT shows the memory"
)
_NCCL_DEBUG = "run it again with NCCL_DEBUG=WARN: the rank's log then says what failed"
_TORCH_FOR_DRIVER = (
    "uv pip install --reinstall-package torch --torch-backend=auto torch installs the one that fits the driver"
)
_BLOCKING = "CUDA reports it late: run it again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer"

MISMATCH = "collectives do not match"
"""What gloo finds where a message is longer than what the rank that receives it has room for."""

SIGNS: Sequence[Sign] = (
    # A wait: of NCCL's watchdog, of NCCL_BLOCKING_WAIT, of a store.
    Sign("wait", r"watchdog caught collective operation timeout|timed out in blocking wait"),
    Sign("wait", r"store.*(timeout|timed out)|wait timeout after|timed out waiting|timeout waiting|DistStoreError"),
    # A peer is gone. Before the causes: NCCL's latest warning stands behind these, and may be an old one.
    Sign("victim", r"remote process exited or there was a network error|ncclRemoteError"),
    Sign(
        "cause",
        r"connectFullMesh failed.*remote=\[(::ffff:)?127\.(?!0\.0\.1\])",
        "gloo uses an address that leads each host to itself",
        "the host's name leads to it in /etc/hosts: set GLOO_SOCKET_IFNAME to the interface between hosts (ip -brief "
        "addr lists them)",
    ),
    Sign("victim", r"connectFullMesh failed"),
    Sign("victim", r"connection (closed|reset) by (remote )?peer|connection was (closed|reset)"),
    Sign("victim", r"broken pipe|application timeout"),
    Sign(
        "cause",
        r"initialize the default process group twice",
        "the process group exists when a function begins",
        "remove init_process_group from the body, or let it make the group: distbench.run(body, makes_group=False)",
    ),
    Sign(
        "cause",
        r"received data size doesn't match expected size",
        MISMATCH,
        "the usual causes are a branch that depends on the rank or its data, or a rank that runs its loop once more; "
        "shapes and dtypes must be equal in all ranks",
    ),
    # The device is full, ill, or not ours.
    Sign(
        "cause",
        r"/dev/shm/nccl-|shared memory segment|unable to (write to|mmap).*</torch_",
        "/dev/shm is full",
        "NCCL needs 10 to 40 MB there per rank: docker run --shm-size=1g, or remove the files of a killed run (ls "
        "/dev/shm/nccl-*)",
    ),
    Sign(
        "cause",
        r"(CUDA|Cuda failure).*out of memory|OutOfMemoryError|ErrorMemoryAllocation|CU\w+_STATUS_ALLOC_FAILED",
        "the GPU's memory is full",
        "nvidia-smi shows what else uses it; NCCL needs a few hundred MB in addition to torch's allocator",
    ),
    Sign("cause", r"uncorrectable ECC error|double.bit ECC", "the GPU's memory is damaged", _SEE_XID),
    Sign("cause", r"uncorrectable NVLink error|nvlink.*hardware error", "an NVLink failed", _SEE_XID),
    Sign("cause", r"\bxid\b|fallen off the bus|GPU is lost|hardware stack error", "the GPU failed", _SEE_XID),
    Sign(
        "cause",
        r"system not yet initialized",
        "the NVSwitches are not set up",
        "check systemctl status nvidia-fabricmanager: it must run, in the driver's version",
    ),
    Sign(
        "cause",
        r"unspecified launch failure|illegal (memory access|instruction)|misaligned address|invalid program counter"
        r"|device-side assert",
        "a kernel failed, of the body or of a library",
        _BLOCKING,
    ),
    Sign(
        "cause",
        r"busy or unavailable",
        "the GPU accepts no further process",
        "check nvidia-smi -q -d COMPUTE: in exclusive mode each rank needs its own GPU",
    ),
    Sign(
        "cause",
        r"no kernel image is available",
        "this torch has no kernels for this GPU",
        "install a torch that fits the GPU; python -c 'import torch; print(torch.cuda.get_arch_list())' lists what "
        "this one has",
    ),
    Sign(
        "cause",
        r"driver version is insufficient|driver combination|found no NVIDIA driver|driver on your system is too old",
        "the driver does not fit this torch",
        f"{_TORCH_FOR_DRIVER}; or install a newer driver",
    ),
    Sign(
        "cause",
        r"torch not compiled with CUDA enabled|has no attribute '_cuda_",
        "this torch is built for the CPU only",
        _TORCH_FOR_DRIVER,
    ),
    Sign(
        "cause",
        r"no CUDA GPUs are available|no CUDA-capable device is detected",
        "the rank sees no GPU",
        "check CUDA_VISIBLE_DEVICES in the rank's environment: it names a missing GPU; or the container has none "
        "(docker run --gpus all)",
    ),
    Sign(
        "cause",
        r"invalid device ordinal",
        "the rank sees fewer GPUs than it has to choose from",
        "compare CUDA_VISIBLE_DEVICES in the rank's environment with nvidia-smi -L: a scheduler or a container may "
        "give each task one GPU (Slurm: use --gpus-per-node, not --gpus-per-task)",
    ),
    Sign(
        "cause",
        r"re-initialize CUDA in forked subprocess",
        "CUDA was in use before the rank was forked",
        "a module of distbench_preload, or the body before it forks, uses CUDA: remove the module, or use "
        "--distbench-launcher=torchrun",
    ),
    # NCCL was asked for what it cannot do.
    Sign(
        "cause",
        r"duplicate GPU detected|multiple ranks are using the same (GPU|partition)",
        "two ranks use one GPU",
        "give each rank its own GPU (CUDA_VISIBLE_DEVICES), or let them share one: --distbench-share=gpu",
    ),
    Sign(
        "cause",
        r"mismatched NCCL version",
        "the ranks have different NCCL versions",
        "check pip list | grep nccl, LD_LIBRARY_PATH and LD_PRELOAD: one of them leads a rank to another libnccl",
    ),
    Sign(
        "cause",
        r"no socket interface found|failed to find.*interface",
        "NCCL found no network interface",
        "set NCCL_SOCKET_IFNAME to an interface of this host (ip -brief addr lists them)",
    ),
    Sign(
        "cause",
        r"NVLink SHARP|NVLS",
        "NVLink SHARP does not work here",
        "switch it off with NCCL_NVLS_ENABLE=0, or check systemctl status nvidia-fabricmanager",
    ),
    Sign(
        "cause",
        r"too many open files",
        "too many open files",
        "raise ulimit -n: NCCL opens several files for each pair of ranks",
    ),
    Sign(
        "cause",
        r"ibv_\w+ failed|cannot allocate memory",
        "memory could not be registered, or there is none left",
        "set ulimit -l unlimited for InfiniBand; free shows the host's memory",
    ),
    Sign(
        "cause",
        r"watchdog got stuck",
        "a call of CUDA or NCCL did not come back, or a thread holds Python's lock",
        "the rank's stacks show where; TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC sets how long it may take",
    ),
    # What the code alone says, where NCCL's latest warning says no more.
    Sign("cause", r"ncclUnhandledCudaError|unhandled cuda error", "a call of CUDA failed inside NCCL", _NCCL_DEBUG),
    Sign("cause", r"ncclSystemError|unhandled system error", "a call of the system failed inside NCCL", _NCCL_DEBUG),
    Sign("cause", r"ncclInternalError|NCCL.*internal error", "a check inside NCCL failed", _NCCL_DEBUG),
    Sign("cause", r"ncclInvalidArgument|NCCL.*invalid argument", "NCCL was given a wrong argument", _NCCL_DEBUG),
    Sign(
        "cause",
        r"ncclInvalidUsage|NCCL.*invalid usage",
        "NCCL was used in an invalid way",
        f"{_NCCL_DEBUG}; often two ranks use one GPU, or sizes and types differ between ranks",
    ),
    # An abort without a reason: somebody else's. With one, the reason has been found above.
    Sign("victim", r"NCCL communicator was aborted"),
    Sign(
        "cause",
        r"CU(BLAS|DNN)_STATUS_NOT_INITIALIZED",
        "cuBLAS or cuDNN could not begin on the GPU",
        "its memory is often full (nvidia-smi shows what uses it), or LD_LIBRARY_PATH leads to another version (pip "
        "list | grep nvidia)",
    ),
    Sign(
        "cause",
        r"\bCU(BLAS|DNN|FFT|SOLVER|SPARSE)\w*_STATUS_\w+",
        "a CUDA library refused a call, or its kernel failed",
        f"{_BLOCKING}; LD_LIBRARY_PATH may lead to another version of the library (pip list | grep nvidia)",
    ),
    Sign(
        "cause",
        r"CUDA driver error",
        "a call of the CUDA driver failed",
        f"the driver may be too old for this torch (nvidia-smi shows its version); {_TORCH_FOR_DRIVER}",
    ),
    Sign("cause", r"CUDA error", "a call of CUDA failed", _BLOCKING),
)
"""The first one whose text is found tells what it is: the more telling ones come first."""


def read(text: str) -> Sign | None:
    """What an error's text is a sign of; None: nothing that is known."""
    return next((sign for sign in SIGNS if re.search(sign.text, text, re.IGNORECASE)), None)


def last_error(text: str) -> str:
    """NCCL's latest warning, which torch puts behind an error of its own; empty: none."""
    _, _, after = text.partition("Last error:")
    return next((line.strip() for line in after.splitlines() if line.strip()), "")

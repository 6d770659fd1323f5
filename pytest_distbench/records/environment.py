"""What hardware and software a launch ran on."""

from __future__ import annotations

from pytest_distbench.records.gpu import GpuHost
from pytest_distbench.records.record import Record

SETTINGS = frozenset(
    {
        "autocast",
        "conv_precision",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "deterministic",
        "matmul_precision",
        "rnn_precision",
    }
)
"""Parts of ``software`` that the code under test chooses. Another choice is told, and is no excuse: what it moves is
judged as ever, where a number under other versions is compared with none."""


class Environment(Record, frozen=True, kw_only=True):
    """What hardware and software a launch ran on. Holds no host name and no secret."""

    platform: str
    """Hardware class, the key of baselines."""
    device: str
    """Product name of the GPU, or of the CPU."""
    cores: int
    """CPU cores this process may use."""
    software: dict[str, str]
    """Versions that can change a result: python, torch, numpy; with the backend mpi its library; for GPUs cuda, nccl,
    cudnn and the driver; and :data:`SETTINGS`."""
    system: dict[str, str] = {}
    """What it ran below: OS, kernel, firmware, and the machine's product name. Described, and compared with none."""
    variables: dict[str, str] = {}
    """Environment variables on the allow-list."""
    shares_gpu: bool = False
    """Several ranks ran on one GPU: the numbers say nothing about the hardware, and are compared with none."""
    shares_host: bool = False
    """Other runs may have measured at the same time on this host, on other GPUs: clocks of its CPUs are theirs too."""
    gpu_host: GpuHost | None = None
    """The GPUs, what joins them, and what they sit in; None: it ran on the CPU."""

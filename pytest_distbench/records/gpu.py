"""GPUs as the driver describes them, all that a run was given, and how they fared while ranks ran on them."""

from __future__ import annotations

from pytest_distbench.records.record import Record


class Gpu(Record, frozen=True, kw_only=True):
    """One CUDA device: a GPU, or a MIG slice of one. What the driver does not tell is None or empty."""

    name: str
    """Of the product; a slice's has its profile: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``."""
    uuid: str
    index: int = 0
    """As nvidia-smi counts; of a slice that of its GPU."""
    pci: str = ""
    """Address on the bus: ``00000000:17:00.0``."""
    slice_of: str = ""
    """Of a MIG slice: the UUID of its GPU."""
    memory_bytes: int | None = None
    capability: str = ""
    """Compute capability: ``9.0``."""
    pcie: str = ""
    """The fastest link to the host that card and slot allow, generation and lanes: ``5x16``."""
    nvlinks: int = 0
    """Its NVLinks that are up."""
    nvlink_bytes_per_s: float | None = None
    """What one of them carries in each direction, by the data sheet."""
    ecc: bool | None = None
    persistence: bool | None = None
    """Whether the driver keeps it initialised while nobody uses it."""
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None

    @property
    def label(self) -> str:
        """As people point to it: ``GPU 3``."""
        return f"GPU {self.index}" if not self.slice_of else f"the MIG slice {self.uuid[:12]} of GPU {self.index}"

    @property
    def is_capped(self) -> bool:
        """Whether somebody has set its power limit below the default."""
        limit, default = self.power_limit_w, self.default_power_limit_w
        return limit is not None and default is not None and limit < default - 1


class GpuHost(Record, frozen=True, kw_only=True):
    """The GPUs of a run and what they sit in."""

    driver: str
    """Version of the driver."""
    cuda: str
    """Newest CUDA that this driver runs: ``12.8``."""
    cpu: str
    """Product name of the host's CPU."""
    gpus: list[Gpu]
    """Visible to the run, in the order of the ranks."""
    links: list[list[str]] = []
    """The matrix between them: ``nvlink4x18``, ``pcie5x16-p2p NODE``; empty on the diagonal, and for a single one."""
    unreadable: list[str] = []
    """Of this machine's other GPUs: which the driver would not describe, and why."""


class GpuWitness(Record, frozen=True, kw_only=True):
    """One GPU during one launch, as the driver saw it. What it does not tell is None."""

    label: str
    """``GPU 3``."""
    uuid: str
    looks: int
    """How often it was looked at while it worked; a share below is of these."""
    sm_mhz: float | None = None
    """Median, while it worked."""
    memory_mhz: float | None = None
    """Median, while it worked."""
    temperature_c: float | None = None
    """The highest."""
    power_w: float | None = None
    """Median, while it worked."""
    utilisation: float | None = None
    """Median, while it worked: share of the time in which a kernel ran, 0 to 1."""
    course: list[tuple[float, float]] = []
    """Seconds since the first look -> the same share, at each look behind it."""
    held: dict[str, float] = {}
    """What held its clocks down -> share of the time, 0 to 1."""
    power_limit_w: float | None = None
    sm_limit_mhz: float | None = None
    """The clock it is set to; None: it is not set, or the driver does not tell."""
    others: list[str] = []
    """Processes of others that computed on it, or may have: ``python (pid 4711)``."""
    by_mps: bool = False
    """Kernels came through the server of MPS, which may be that of others too."""
    host_cpu: str = ""
    """Product name of the CPU beside it, which is no part of the hardware class."""


class GpuNorm(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The same of all GPUs and launches of a case, to compare later ones with. Of several GPUs the slowest counts."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_limit_w: float | None = None
    sm_limit_mhz: float | None = None
    held: dict[str, float] = {}
    """What held the clocks down -> share of the time, of the median launch; what was below a hundredth is left out."""
    by_mps: bool = False
    """Kernels came through the server of MPS, in any launch."""
    host_cpu: str = ""

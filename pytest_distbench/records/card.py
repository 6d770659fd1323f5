"""How GPUs fared while ranks ran on them: witnesses that stand beside a clock, and are never judged themselves."""

from __future__ import annotations

from pytest_distbench.records.record import Record


class CardWitness(Record, frozen=True, kw_only=True):
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
    held: dict[str, float] = {}
    """What held its clocks down -> share of the time, 0 to 1."""
    power_limit_w: float | None = None
    sm_limit_mhz: float | None = None
    """The clock it is set to; None: it is not set, or the driver does not tell."""
    others: list[str] = []
    """Processes of others that computed on it, or may have: ``python (pid 4711)``."""
    link_errors: dict[str, int] = {}
    """Errors of its NVLinks meanwhile, by kind: ``CRC``, ``replay``, ``recovery``, ``ECC``."""
    xids: list[int] = []
    """Numbers of the driver's error reports about it meanwhile."""


class CardNorm(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The same of all GPUs and launches of a case, to compare later ones with. Of several GPUs the slowest counts."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_limit_w: float | None = None
    sm_limit_mhz: float | None = None
    held: dict[str, float] = {}
    """What held the clocks down -> share of the time, of the median launch; what was below a hundredth is left out."""

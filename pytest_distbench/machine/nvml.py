"""The NVIDIA driver's answers, through NVML: what one device cannot or may not say does not silence the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pytest_distbench.errors import DistbenchError

_WHY_NO_DRIVER = {
    "LIB_RM_VERSION_MISMATCH": "the NVIDIA driver and its library have different versions, as after an update: "
    "reboot, or load the new kernel modules; in a container, start it anew",
    "DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded: see dmesg, or run: sudo modprobe nvidia",
    "LIBRARY_NOT_FOUND": "there is no NVIDIA driver (libnvidia-ml.so.1 is not found); a container needs "
    "docker run --gpus all",
    "NO_PERMISSION": "this user may not talk to the NVIDIA driver: look at the rights of /dev/nvidiactl",
}
_WHY_NO_GPU = {
    "NO_PERMISSION": "this process may not use it (a container or a job scheduler has given it to others)",
    "GPU_IS_LOST": "lost: it has fallen off the bus; dmesg has its Xid, and it needs a reset or a reboot",
    "NOT_FOUND": "the driver knows it no more; dmesg has its Xid, and it needs a reset or a reboot",
    "RESET_REQUIRED": "it needs a reset: nvidia-smi --gpu-reset",
    "IN_USE": "it is in use, or in an exclusive mode",
}


class DriverError(DistbenchError):
    """The NVIDIA driver cannot be asked; the message says why, and what to do.

    Attributes:
        is_absent: there is none, as on a machine without such GPUs; else there is one, in trouble.
    """

    def __init__(self, message: str, *, is_absent: bool) -> None:
        super().__init__(message)
        self.is_absent = is_absent


class Driver:
    """The driver while it is connected."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer of ``nvmlDevice<name>``; None where device, driver or binding have none, or may not give it."""
        try:
            return self.demand(name, *arguments)
        except (self.binding.NVMLError, AttributeError):
            return None

    def demand(self, name: str, *arguments: Any) -> Any:
        """The answer of ``nvmlDevice<name>``."""
        return getattr(self.binding, f"nvmlDevice{name}")(*arguments)

    def explain(self, error: Exception) -> str:
        """Why a device gives no answer."""
        return _words(self.binding, error, _WHY_NO_GPU)

    @property
    def version(self) -> str:
        """Of the driver; empty where it does not tell."""
        try:
            return str(self.binding.nvmlSystemGetDriverVersion())
        except self.binding.NVMLError:
            return ""

    @property
    def newest_cuda(self) -> str:
        """The newest CUDA that it runs: ``12.8``; empty where it does not tell."""
        try:
            number = int(self.binding.nvmlSystemGetCudaDriverVersion())
        except self.binding.NVMLError:
            return ""
        return f"{number // 1000}.{number % 1000 // 10}"


@contextlib.contextmanager
def connect() -> Iterator[Driver]:
    """The driver, for as long as it is needed. Loads no torch and makes no CUDA context."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_absent = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        raise DriverError(_words(pynvml, error, _WHY_NO_DRIVER), is_absent=is_absent) from None
    try:
        yield Driver(pynvml)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _words(binding: Any, error: Exception, table: dict[str, str]) -> str:
    value = getattr(error, "value", None)
    for name, words in table.items():
        if value == getattr(binding, f"NVML_ERROR_{name}"):
            return words
    return f"NVML says: {error}"

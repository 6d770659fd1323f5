"""What the driver answers, and what is made of it where it does not."""

from __future__ import annotations

import pytest
from support.nvml import HOSTS, Host, made_up

from pytest_distbench.machine.nvml import DriverError, connect


@pytest.mark.parametrize(
    ("trouble", "next_step"),
    [
        ("LIB_RM_VERSION_MISMATCH", "reboot"),
        ("LIBRARY_NOT_FOUND", "docker run --gpus all"),
        ("DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("NO_PERMISSION", "/dev/nvidiactl"),
        ("UNKNOWN", "NVML says: Unknown Error"),
    ],
)
def test_a_driver_that_cannot_be_asked_says_what_to_do(trouble: str, next_step: str) -> None:
    with made_up(Host(trouble=trouble)), pytest.raises(DriverError, match=next_step), connect():
        pass


def test_what_a_device_does_not_support_is_no_answer() -> None:
    with made_up(HOSTS["GB10"]), connect() as driver:
        handle = driver.demand("GetHandleByIndex", 0)

        assert driver.ask("GetName", handle) == "NVIDIA GB10"
        assert driver.ask("GetMemoryInfo", handle) is None
        assert driver.ask("GetWhatNoBindingHas", handle) is None


def test_versions() -> None:
    with made_up(Host(driver="580.1", cuda=13000)), connect() as driver:
        assert (driver.version, driver.newest_cuda) == ("580.1", "13.0")

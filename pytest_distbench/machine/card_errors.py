"""What goes wrong on one GPU, as its driver counts and reports it: errors of its NVLinks, and Xids."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from pytest_distbench.machine.nvml import Driver

_COUNTERS = {
    "CRC_FLIT_ERROR_COUNT_TOTAL": "CRC",
    "CRC_DATA_ERROR_COUNT_TOTAL": "CRC",
    "REPLAY_ERROR_COUNT_TOTAL": "replay",
    "RECOVERY_ERROR_COUNT_TOTAL": "recovery",
    "ECC_DATA_ERROR_COUNT_TOTAL": "ECC",
}
"""NVML's counters of errors over all NVLinks, without ``NVML_FI_DEV_NVLINK_`` -> the kind they are told as."""
_MOST_EVENTS = 100


class CardErrors:
    """The errors of one GPU since :meth:`begin`. What driver, GPU or slice do not tell is none."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self._driver = driver
        self._handle = handle
        self._before: dict[str, int] = {}
        self._events: Any = None
        nvml = driver.binding
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            events = nvml.nvmlEventSetCreate()
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                nvml.nvmlEventSetFree(events)
            else:
                self._events = events

    def begin(self) -> None:
        """What has been until now is not of interest."""
        self.xids()
        self._before = self._count()

    def link_errors(self) -> dict[str, int]:
        """By how much the counters of the NVLinks have risen, by kind; without those that have not."""
        risen: Counter[str] = Counter()
        for name, count in self._count().items():
            risen[_COUNTERS[name]] += max(0, count - self._before.get(name, count))
        return {kind: rise for kind, rise in risen.items() if rise}

    def xids(self) -> list[int]:
        """The Xids since the last call, each once."""
        found: dict[int, None] = {}
        if self._events is not None:
            nvml = self._driver.binding
            with contextlib.suppress(nvml.NVMLError):  # the last one: a time-out, as no more have come
                for _ in range(_MOST_EVENTS):
                    found[int(nvml.nvmlEventSetWait_v2(self._events, 0).eventData)] = None
        return list(found)

    def close(self) -> None:
        """Let go of the events."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(self._driver.binding.NVMLError):
                self._driver.binding.nvmlEventSetFree(events)

    def _count(self) -> dict[str, int]:
        nvml = self._driver.binding
        fields = {getattr(nvml, f"NVML_FI_DEV_NVLINK_{name}", None): name for name in _COUNTERS}
        fields.pop(None, None)  # of an older binding
        told = self._driver.ask("GetFieldValues", self._handle, list(fields)) or ()
        return {fields[one.fieldId]: int(one.value.ullVal) for one in told if one.nvmlReturn == nvml.NVML_SUCCESS}

"""The file ``distbench calibrate --json`` writes."""

from __future__ import annotations

from pytest_distbench.records.calibration import Calibration
from pytest_distbench.store.files import FileKind

SCHEMA = 1
"""Version of the file format. 1: first."""

CALIBRATIONS = FileKind(
    name="calibration",
    record=Calibration,
    schema=SCHEMA,
    max_bytes=64 * 2**20,
    next_step="Write one with distbench calibrate --json FILE",
    where="Give --json a writable place",
)

"""A launch's record without the secrets that its ranks were given in their environment and have printed."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.machine.secrets import mask_values
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.rank import RankFate
from pytest_distbench.records.record import replace


def mask_record(record: LaunchRecord, values: Sequence[str]) -> LaunchRecord:
    """The record as it may be shown and stored. What ranks printed stays in their logs as it was."""
    if not values:
        return record
    return replace(
        record,
        command=mask_values(record.command, values),
        reason=mask_values(record.reason, values),
        remarks=[mask_values(remark, values) for remark in record.remarks],
        fates=[_mask_fate(fate, values) for fate in record.fates],
    )


def _mask_fate(fate: RankFate, values: Sequence[str]) -> RankFate:
    error = fate.error
    if error is not None:
        error = replace(
            error,
            message=mask_values(error.message, values),
            traceback=mask_values(error.traceback, values),
            torch_errors=[mask_values(text, values) for text in error.torch_errors],
        )
    return replace(
        fate,
        how=mask_values(fate.how, values),
        error=error,
        log_tail=mask_values(fate.log_tail, values),
        stacks=mask_values(fate.stacks, values),
    )

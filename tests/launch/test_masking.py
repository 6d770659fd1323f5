"""What may be shown and stored of a launch whose ranks know secrets."""

from __future__ import annotations

import msgspec

from pytest_distbench.launch.masking import mask_record
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.rank import ErrorReport, RankFate

SECRET = "s3cr3tValue"
TOLD = f"found {SECRET}, twice {SECRET}"

RECORD = LaunchRecord(
    index=0,
    command=TOLD,
    outcome="failed",
    wall_s=1.0,
    reason=TOLD,
    remarks=[TOLD],
    fates=[
        RankFate(
            rank=0,
            outcome="failed",
            phase="body",
            how=TOLD,
            error=ErrorReport(kind="E", message=TOLD, traceback=TOLD, raised_at=1.0, torch_errors=[TOLD]),
            log_tail=TOLD,
            stacks=TOLD,
        ),
        RankFate(rank=1, outcome="failed", phase="body", how="waited"),
    ],
    logs="/folder",
)


def test_secrets_are_masked_in_all_that_ranks_and_their_logs_say() -> None:
    masked = mask_record(RECORD, [SECRET])

    assert msgspec.to_builtins(masked) == msgspec.json.decode(
        msgspec.json.encode(RECORD).replace(SECRET.encode(), b"***")
    )


def test_without_secrets_a_record_is_as_it_was() -> None:
    assert mask_record(RECORD, []) is RECORD

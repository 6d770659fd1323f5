"""The one line that says why a launch failed, and what it makes of the texts of torch, gloo, NCCL and CUDA."""

from __future__ import annotations

import pytest
from support.nccl_texts import TEXTS

from pytest_distbench.launch.evidence import SIGNS, last_error, read_sign
from pytest_distbench.launch.fates import merge_outcomes
from pytest_distbench.records.launch import HUNG, ErrorReport, RankFate


def fate(rank: int, how: str = "passed", **fields: object) -> RankFate:
    outcome = how if how in ("passed", "skipped") else "failed"
    return RankFate(rank=rank, outcome=outcome, how=how, **{"phase": "body", **fields})  # type: ignore[arg-type]


def error(message: str, *, torch: bool = False) -> ErrorReport:
    return ErrorReport(
        kind="E", message=message, traceback=message, raised_at=1.0, torch_errors=["DistStoreError: x"] if torch else []
    )


def skipped(rank: int) -> RankFate:
    return fate(rank, "skipped", error=error("not today"))


def waits(rank: int, name: str = "all_reduce", number: int = 2) -> RankFate:
    of = {"collective": name, "collective_number": number}
    return fate(rank, "raised E", error=error("x", torch=True), is_victim=True, **of)


def hang_in(*names: str) -> list[RankFate]:
    return [
        fate(rank, HUNG, collective=name, collective_number=2, waits_at=f"a.py:{rank} in f, in {name}")
        for rank, name in enumerate(names)
    ]


BESIDES_FAILED = {"": "passed", "not today": "skipped"}


@pytest.mark.parametrize(
    ("fates", "reason"),
    [
        ([fate(0), fate(1)], ""),
        ([skipped(0), skipped(1)], "not today"),
        ([skipped(1), fate(0)], "ranks disagree: rank 1 skipped, the others did not"),
        ([fate(1, "raised E", error=error("first\nsecond")), fate(0)], "rank 1 raised E: first"),
        ([fate(1, "exit code 3"), fate(0)], "rank 1 exit code 3"),
        (
            [fate(1, HUNG, waits_at="a.py:7 in f"), waits(0)],
            "hung in body, ended after 4.0 s: rank 1 at a.py:7 in f; rank 0 waits in all_reduce, number 2",
        ),
        (
            [fate(1, HUNG, phase="import"), fate(0, HUNG, phase="rendezvous")],
            "hung in import, ended after 4.0 s: rank 1 in phase import; rank 0 waits in rendezvous",
        ),
        (
            [fate(rank, HUNG, waits_at=str(rank)) for rank in range(6)],
            "hung in body, ended after 4.0 s: rank 0 at 0; rank 1 at 1; rank 2 at 2; rank 3 at 3 and 2 more",
        ),
        (
            [waits(0), waits(1, "send", 1)],
            "deadlock: rank 0 waited in all_reduce, number 2; rank 1 waited in send, number 1",
        ),
        (
            hang_in("all_reduce", "broadcast"),
            "deadlock: rank 0 waits in all_reduce, number 2; rank 1 waits in broadcast, number 2; ended after 4.0 s",
        ),
        (
            [
                fate(rank, HUNG, collective=name, collective_number=2, collective_is_over=is_over, waits_at=str(rank))
                for rank, (name, is_over) in enumerate([("all_reduce", False), ("broadcast", True)])
            ],
            "hung in body, ended after 4.0 s: rank 0 at 0; rank 1 at 1",
        ),
        (
            [waits(0), fate(1)],
            "rank 1 ended without the collective that others waited for: rank 0 waited in all_reduce, number 2",
        ),
        ([fate(0), waits(1), fate(2)], "rank 1 alone waited in all_reduce, number 2: ranks 0, 2 ended without it"),
        (
            hang_in("gather", "gather", "send"),
            "deadlock: rank 2 alone waits in send, number 2; ranks 0, 1 wait in gather, number 2; ended after 4.0 s",
        ),
    ],
)
def test_the_line_names_the_rank_and_the_place(fates: list[RankFate], reason: str) -> None:
    assert merge_outcomes(fates, after_s=4.0) == (BESIDES_FAILED.get(reason, "failed"), reason)


def test_a_script_that_starts_its_processes_itself_gets_the_next_step() -> None:
    hung = [fate(rank, HUNG, waits_at="train.py:7 in <module>, in spawn") for rank in range(2)]
    outcome, reason = merge_outcomes(hung, after_s=4.0)

    assert outcome == "failed"
    assert "next: torch.multiprocessing.spawn starts its own processes" in reason
    assert "as a command: [sys.executable, 'train.py']" in reason


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_read_for_what_it_is(name: str) -> None:
    text, kind, meaning = TEXTS[name]
    sign = read_sign(text)

    assert sign is not None
    assert (sign.kind, sign.meaning) == (kind, meaning)


def test_every_cause_has_a_next_step() -> None:
    assert [sign.text for sign in SIGNS if sign.kind == "cause" and not (sign.meaning and sign.advice)] == []


@pytest.mark.parametrize(
    "text", ["ValueError: bad number 42", "RuntimeError: size mismatch", "OSError: [Errno 28] No space left on device"]
)
def test_what_is_not_known_is_no_sign(text: str) -> None:
    assert read_sign(text) is None


def test_nccls_latest_warning_stands_behind_torchs_words() -> None:
    assert last_error(TEXTS["full shared memory"][0]).startswith("Error while creating shared memory segment /dev/shm/")
    assert last_error("NCCL error: internal error") == ""

"""What became of each rank of a launch, the root cause first, who is to blame, and the line that says so."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.nccl_texts import LATE, TEXTS, watchdog_log
from support.plans import make_plan

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.controlled import check_command
from pytest_distbench.launch.evidence import SIGNS, last_error, read_sign
from pytest_distbench.launch.fates import Ending, determine_fates, find_missing, is_deadlock, is_hang, merge_outcomes
from pytest_distbench.launch.site import Clocks, Exit, Heard
from pytest_distbench.records.launch import HUNG, ErrorReport, Phase, RankFate, RankReport
from pytest_distbench.records.plan import Command, LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import RankWord, rank_event

WAITED = ErrorReport(
    kind="DistStoreError", message="x", traceback="x", raised_at=1.0, torch_errors=["DistStoreError: x"]
)


def hung(rank: int, **fields: object) -> RankFate:
    return RankFate(rank=rank, outcome="failed", how=HUNG, **{"phase": "body", **fields})  # type: ignore[arg-type]


def gave_up(rank: int) -> RankFate:
    return RankFate(rank=rank, outcome="failed", phase="body", how="raised", is_victim=True, error=WAITED)


PASSED = RankFate(rank=9, outcome="passed", phase="body", how="passed")


BOTH = {"0": [0, 1]}
ALL = {"0": [0, 1, 2]}
TWO_GROUPS = {**ALL, "1": [0, 1, 2]}
MISSING: dict[str, tuple[list[RankFate], list[int]]] = {
    "an earlier phase": ([hung(0), hung(1, phase="rendezvous")], [1]),
    "behind in a group": ([hung(0, entered={"0": 2}, groups=BOTH), hung(1, entered={"0": 1}, groups=BOTH)], [1]),
    "not come to a group": ([hung(0, entered={"0": 1}, groups=BOTH), hung(1, groups=BOTH)], [1]),
    "not of that group": ([hung(0, entered={"0": 2}, groups={"0": [0, 2]}), hung(1)], []),
    "in code of its own": ([hung(0), hung(1, is_elsewhere=True)], [1]),
    "all of them are nobody": ([hung(0, is_elsewhere=True), hung(1, is_elsewhere=True)], []),
    "before the body own code says nothing": (
        [hung(0, phase="rendezvous"), hung(1, phase="rendezvous", is_elsewhere=True)],
        [],
    ),
    "behind the host but not the GPU": (
        [
            hung(0, entered={"0": 50}, unfinished={"0": 30}, groups=ALL),
            hung(1, entered={"0": 30}, unfinished={"0": 30}, groups=ALL),
            hung(2, entered={"0": 29}, groups=ALL),
        ],
        [2],
    ),
    "of two that are behind, one waits for the other": (
        [
            hung(0, entered={"0": 7, "1": 5}, unfinished={"1": 5}, groups=TWO_GROUPS),
            hung(1, entered={"0": 8, "1": 4}, unfinished={"0": 8}, groups=TWO_GROUPS),
            hung(2, entered={"0": 7, "1": 4}, groups=TWO_GROUPS),
        ],
        [2],
    ),
    "nobody hangs": ([], []),
}


@pytest.mark.parametrize(("fates", "missing"), MISSING.values(), ids=MISSING)
def test_the_missing_ranks_are_those_behind_the_others(fates: list[RankFate], missing: list[int]) -> None:
    assert [f.rank for f in find_missing(fates)] == missing


@pytest.mark.parametrize(
    ("fates", "deadlock", "hang"),
    [
        ([gave_up(0), gave_up(1)], True, True),
        ([gave_up(0), PASSED], True, True),
        ([hung(0), PASSED], False, True),
        ([PASSED], False, False),
        ([gave_up(0), RankFate(rank=1, outcome="failed", phase="body", how="exit code 3")], False, False),
    ],
)
def test_a_deadlock_has_nobody_to_blame(fates: list[RankFate], *, deadlock: bool, hang: bool) -> None:
    assert (is_deadlock(fates), is_hang(fates)) == (deadlock, hang)


COMMAND = Command(words=["true"])


def test_a_command_has_a_remark_on_how_many_of_its_processes_met(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, world_size=4, work=COMMAND)
    with pytest.raises(RecordingError, match="no process of the command joined"):
        check_command(plan, gave_numbers=False)
    assert check_command(replace(plan, work=replace(COMMAND, makes_group=False)), gave_numbers=False) == []

    for size in (0, 2):
        (tmp_path / f"joined{size}").touch()

    assert check_command(plan, gave_numbers=True) == ["the largest process group had 2 of 4 ranks"]
    assert check_command(make_plan(tmp_path, world_size=1, work=COMMAND), gave_numbers=False) == []


GONE = "DistBackendError: Connection closed by peer"
FATES_WAITED = "DistStoreError: wait timeout after 1 s"


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return make_plan(tmp_path)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def say(heard: Heard, rank: int, kind: RankWord, text: str = "") -> None:
    heard.take([rank_event(kind, rank, 0.0, text)])


def hear(heard: Heard, events: str) -> None:
    """Ranks that come to their bodies, and whose connections end one after the other."""
    for at, (what, rank) in enumerate(event.split("-") for event in events.split()):
        if what == "body":
            say(heard, int(rank), "phase", "body")
        else:
            heard.close(int(rank), 60.0 + at)


def ended(codes: dict[int, int] | None = None, *, by_us: set[int] = frozenset(), **rest: object) -> Ending:  # type: ignore[assignment]
    exit_ = Exit(codes=codes or {}, **{name: rest.pop(name) for name in ("stuck", "oom_kills", "died") if name in rest})  # type: ignore[arg-type]
    return Ending(exit=exit_, ended_by_us=frozenset(by_us), **{"timed_out": False, **rest})  # type: ignore[arg-type]


def passed(rank: int) -> RankReport:
    return RankReport(rank=rank, outcome="passed", phase="body", phases={})


def failed(rank: int, kind: str, text: str, *, at: float = 1.0, phase: Phase = "body", **more: Any) -> RankReport:
    error = ErrorReport(kind=kind, message=text, traceback=text, raised_at=at, **more)
    return RankReport(rank=rank, outcome="failed", phase=phase, phases={}, error=error)


def raised(rank: int, *, at: float = 1.0, torch: str = "", phase: Phase = "body") -> RankReport:
    text = torch.partition(": ")[2] or "x"
    made = failed(rank, "RuntimeError", text, at=at, phase=phase, torch_errors=[torch] if torch else [])
    return replace(made, error=replace(made.error, traceback="RuntimeError: x", began_in_torch=bool(torch)))


def reports(*given: RankReport) -> dict[int, RankReport]:
    return {report.rank: report for report in given}


TWO_HOSTS = Clocks(hosts={0: "a", 1: "b"}, errors_s={"a": 0.0005, "b": 0.0002})


def test_ranks_of_two_hosts_are_ordered_as_far_as_their_clocks_can(plan: LaunchPlan, heard: Heard) -> None:
    fates = determine_fates(plan, reports(raised(0, at=1.0006), raised(1, at=1.0)), heard, ended(clocks=TWO_HOSTS))

    assert [f.rank for f in fates] == [0, 1]
    assert merge_outcomes(fates, after_s=1.0)[1].splitlines() == [
        "rank 0 raised RuntimeError: x",
        "rank 1 failed within 700 us of it: the clocks of their hosts do not show who was first",
    ]

    fates = determine_fates(plan, reports(raised(0, at=1.001), raised(1, at=1.0)), heard, ended(clocks=TWO_HOSTS))

    assert [(f.rank, f.error_s) for f in fates] == [(1, 0.0), (0, 0.0)]
    assert merge_outcomes(fates, after_s=1.0)[1] == "rank 1 raised RuntimeError: x"


def test_the_same_words_in_a_users_exception_make_no_victim(plan: LaunchPlan, heard: Heard) -> None:
    report = failed(0, "ValueError", GONE)

    assert not determine_fates(plan, reports(report, passed(1)), heard, ended())[0].is_victim


@pytest.mark.parametrize(
    ("said", "is_closed", "ending", "how"),
    [
        ("", False, ended({1: 3}), "exit code 3"),
        ("", False, ended({1: -signal.SIGSEGV}), "killed by SIGSEGV"),
        (
            "",
            False,
            ended({1: -signal.SIGKILL}, oom_kills={1: 2}),
            "killed by SIGKILL, out of memory (the kernel's oom_kill count rose by 2)",
        ),
        ("", True, ended(), "ended without a report"),
        ("", False, ended(), "never started"),
        ("cannot write its report: disk full", False, ended(by_us={1}), "failed: cannot write its report: disk full"),
        (
            "",
            False,
            ended(by_us={1}, left=frozenset({1})),
            "closed its connection to pytest and went on; did it become another program?",
        ),
        ("", True, ended(stuck={1: "rank 1 (pid 7) is still there"}), "ended, but is still in the kernel"),
    ],
)
def test_a_rank_without_a_report_ended_as_others_saw_it(
    plan: LaunchPlan, heard: Heard, said: str, is_closed: bool, ending: Ending, how: str
) -> None:
    if said:
        say(heard, 1, "failed", said)
    if is_closed:
        heard.close(1, 1.0)
    fates = determine_fates(plan, reports(passed(0)), heard, ending)

    assert (fates[0].rank, fates[0].how, fates[0].is_victim) == (1, how, False)


def test_a_silent_rank_hung_at_the_time_out_and_its_stacks_are_shown(plan: LaunchPlan, heard: Heard) -> None:
    say(heard, 1, "phase", "body")
    plan.files.stacks(1).write_text('Current thread 0x1 (most recent call first):\n  File "/me/a.py", line 7 in f\n')
    fate = determine_fates(plan, reports(passed(0)), heard, ended(by_us={1}, timed_out=True))[0]

    assert (fate.is_hung, fate.is_victim, fate.phase) == (True, False, "body")
    assert (fate.waits_at, fate.is_elsewhere) == ("a.py:7 in f", True)


@pytest.mark.parametrize(
    ("events", "told", "ending", "fates"),
    [
        ("", [raised(0, at=2.0), raised(1, at=1.0)], ended(), "1 raised RuntimeError; 0 raised RuntimeError"),
        ("end-1", [raised(0, torch=GONE)], ended({1: -9}), "1 killed by SIGKILL; victim 0 raised RuntimeError"),
        ("", [raised(0, torch=FATES_WAITED)], ended(by_us={0, 1}), f"1 {HUNG}; victim 0 raised RuntimeError"),
        ("body-1", [raised(0)], ended(by_us={1}), "0 raised RuntimeError; victim 1 was waiting"),
        ("", [], ended(died=True), "victim 0 ended with the launcher; victim 1 ended with the launcher"),
        # The agent sends SIGTERM only after another rank has died: one came from elsewhere
        ("end-1 end-0", [], ended({0: -15, 1: -15}), "1 killed by SIGTERM; victim 0 was starting"),
    ],
)
def test_who_is_to_blame_comes_first_and_those_who_suffered_from_it_are_victims(
    plan: LaunchPlan, heard: Heard, events: str, told: list[RankReport], ending: Ending, fates: str
) -> None:
    hear(heard, events)
    found = determine_fates(plan, reports(*told), heard, ending)

    assert "; ".join(f"{'victim ' * fate.is_victim}{fate.rank} {fate.how}" for fate in found) == fates


def test_a_log_that_ends_with_the_traceback_shows_it_once(plan: LaunchPlan, heard: Heard) -> None:
    plan.files.log(0).write_text("before\nRuntimeError: x\n")

    assert determine_fates(plan, reports(raised(0), passed(1)), heard, ended())[0].log_tail == "before"


IN_OWN_CODE = (
    'Current thread 0x1 (most recent call first):\n  File "/me/a.py", line 7 in body\n'
    '  File "/x/pytest_distbench/worker/main.py", line 1 in _measure\n'
    '  File "/x/pytest_distbench/worker/main.py", line 2 in run_rank\n'
)


def reason(plan: LaunchPlan, told: dict[int, RankReport], heard: Heard, ending: Ending) -> str:
    fates = determine_fates(plan, told, heard, ending)
    return f"rank {fates[0].rank} first; {merge_outcomes(fates, after_s=70)[1]}"


@pytest.mark.parametrize(
    "ending",
    [ended({0: -signal.SIGABRT, 1: -signal.SIGTERM}), ended({0: -signal.SIGABRT}, by_us={1})],
    ids=["ended by the elastic agent", "ended by us"],
)
def test_who_did_not_come_is_to_blame_when_nccls_watchdog_ends_the_rank_that_waited(
    plan: LaunchPlan, heard: Heard, ending: Ending
) -> None:
    for rank in (0, 1):
        say(heard, rank, "phase", "body")
    heard.close(0, 60.0)
    heard.close(1, 61.0)
    plan.files.log(0).write_text(watchdog_log(LATE))
    plan.files.stacks(1).write_text(IN_OWN_CODE)
    fates = determine_fates(plan, {}, heard, ending)

    assert [(f.rank, f.is_hung, f.is_victim) for f in fates] == [(1, True, False), (0, False, True)]
    found = merge_outcomes(fates, after_s=70)[1]
    assert found == "hung in body, ended after 70.0 s: rank 1 at a.py:7 in body; rank 0 waits in all_reduce, number 7"
    assert is_hang(fates)


def test_a_rank_that_waited_as_long_is_not_missing_although_it_was_ended_first(plan: LaunchPlan, heard: Heard) -> None:
    plan = replace(plan, world_size=3)
    plan.files.log(0).write_text(watchdog_log(LATE))
    plan.files.log(2).write_text(watchdog_log(LATE).partition("Exception")[0])  # its abort was a second away
    codes = {0: -signal.SIGABRT, 1: -signal.SIGTERM, 2: -signal.SIGTERM}
    fates = determine_fates(plan, {}, heard, ended(codes))

    assert [(f.rank, f.is_hung, f.is_victim) for f in fates] == [(1, True, False), (0, False, True), (2, False, True)]


PEER_GONE = TEXTS["a peer that is gone"][0]
BROADCAST_LATE = watchdog_log(LATE).replace("ALLREDUCE", "BROADCAST")
DAMAGED = "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("events", "logs", "codes", "said"),
    [
        ("", {0: watchdog_log(LATE)}, {0: -6, 1: -11, 2: -15}, "rank 1 first; rank 1 killed by SIGSEGV"),
        (
            "end-0 end-1 body-0 body-1",
            {0: watchdog_log(LATE), 1: BROADCAST_LATE},
            {0: -6, 1: -15},
            "rank 0 first; deadlock: rank 0 waited in all_reduce, number 7; rank 1 waited in broadcast, number 7",
        ),
        (
            "end-0 end-1",
            {0: watchdog_log(PEER_GONE), 1: watchdog_log(DAMAGED)},
            {0: -6, 1: -6},
            f"rank 1 first; rank 1 killed by SIGABRT: the GPU's memory is damaged: {DAMAGED}\nnext: sudo dmesg...",
        ),
        # The other was ended by the elastic agent for its sake: nobody sent that SIGTERM from outside
        (
            "end-0 end-1",
            {0: watchdog_log(PEER_GONE.removeprefix("DistBackendError: "))},
            {0: -6, 1: -15},
            "rank 0 first; rank 0 killed by SIGABRT: NCCL error in: ...",
        ),
    ],
    ids=["one died of its own", "both waited in vain", "an error of the GPU", "a peer gone and nobody else to blame"],
)
def test_what_the_watchdog_says_shows_who_is_to_blame(
    plan: LaunchPlan, heard: Heard, events: str, logs: dict[int, str], codes: dict[int, int], said: str
) -> None:
    hear(heard, events)
    for rank, text in logs.items():
        plan.files.log(rank).write_text(text)
    found = reason(replace(plan, world_size=len(codes)), {}, heard, ended(codes))

    assert found == said or (said.endswith("...") and found.startswith(said[:-3]))


def test_an_abort_of_the_bodys_own_is_none_of_the_watchdogs(plan: LaunchPlan, heard: Heard) -> None:
    plan.files.log(1).write_text("free(): invalid pointer\n")

    assert reason(plan, reports(passed(0)), heard, ended({1: -6})) == "rank 1 first; rank 1 killed by SIGABRT"


@pytest.mark.parametrize("name", [name for name, (_, kind, _) in TEXTS.items() if kind == "cause"])
def test_a_real_error_of_nccl_or_cuda_is_the_cause_and_a_peers_lost_connection_follows_from_it(
    plan: LaunchPlan, heard: Heard, name: str
) -> None:
    text, _, meaning = TEXTS[name]
    told = reason(plan, reports(raised(1, at=2.0, torch=text), passed(0)), heard, ended())

    assert told.startswith(f"rank 1 first; rank 1 raised RuntimeError: {meaning}: ")
    assert "\nnext: " in told

    lost = raised(0, at=1.0, torch=TEXTS["a peer that is gone"][0])
    fates = determine_fates(plan, reports(lost, raised(1, at=2.0, torch=text)), heard, ended())
    assert [(f.rank, f.is_victim) for f in fates] == [(1, False), (0, True)]


def test_an_error_that_a_clean_up_met_later_does_not_make_a_victim(plan: LaunchPlan, heard: Heard) -> None:
    """The innermost is torch's own: memory ran out, and then the collective in the ``finally`` was aborted."""
    errors = [TEXTS["an abort"][0], TEXTS["out of memory in torch"][0]]
    told = reports(failed(1, "DistBackendError", "x", torch_errors=errors, began_in_torch=True), passed(0))

    assert not determine_fates(plan, told, heard, ended())[0].is_victim
    assert ": the GPU's memory is full: CUDA out of memory. Tried" in reason(plan, told, heard, ended())


def nccl(number: int, **changes: object) -> dict[str, object]:
    return {
        "record_id": number,
        "time_created_ns": number,
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": number,
        "process_group": ["0", "default_pg"],
        **changes,
    }


def test_a_hang_under_nccl_names_the_rank_that_is_missing(plan: LaunchPlan, heard: Heard) -> None:
    """Both are at a line of their own: rank 0's is ``loss.item()``, which waits for rank 1."""
    plan = replace(plan, device="cuda")
    done = nccl(1, state="completed")
    for rank, entries in ((0, [done, nccl(2, state="started"), nccl(3)]), (1, [done])):
        say(heard, rank, "phase", "body")
        plan.files.stacks(rank).write_text(IN_OWN_CODE)
        plan.files.groups(rank).write_text('{"0": [0, 1]}')
        plan.files.flight(rank).write_bytes(msgspec.json.encode({"": {"entries": []}, "nccl": {"entries": entries}}))

    assert reason(plan, {}, heard, ended(by_us={0, 1}, timed_out=True)) == (
        "rank 1 first; hung in body, ended after 70.0 s: rank 1 at a.py:7 in body; rank 0 waits in all_reduce, number 2"
    )


@pytest.mark.parametrize(("state", "elsewhere"), [("completed", True), ("started", False), ("no recorder", False)])
def test_on_a_gpu_a_rank_is_in_code_of_its_own_if_its_recorder_has_nothing_unfinished(
    plan: LaunchPlan, heard: Heard, state: str, *, elsewhere: bool
) -> None:
    plan = replace(plan, device="cuda")
    plan.files.stacks(1).write_text(IN_OWN_CODE)
    if state != "no recorder":
        plan.files.flight(1).write_bytes(msgspec.json.encode({"nccl": {"entries": [nccl(1, state=state)]}}))
    fate = determine_fates(plan, reports(passed(0)), heard, ended(by_us={1}, timed_out=True))[0]

    assert fate.is_elsewhere == elsewhere


DUMP = """Fatal Python error: {error}

Thread 0x00007f8b15ffb6c0 (most recent call first):
  File "/opt/pytest_distbench/worker/line.py", line 136 in _die_with_pytest
  File "/usr/lib/python3.11/threading.py", line 982 in run

{thread} 0x00007f8c392d6b80 (most recent call first):
  File "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 3252 in {called}
  File "/usr/lib/python3/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line {line} in exchange
  File "/opt/pytest_distbench/worker/script.py", line 46 in run_script
  File "/opt/pytest_distbench/worker/main.py", line 176 in _measure
  File "/opt/pytest_distbench/worker/main.py", line 84 in run_rank
  File "/usr/lib/python3.11/multiprocessing/forkserver.py", line 274 in main
  File "<string>", line 1 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def died_of(what: str, *, called: str = "all_reduce", line: int = 7, kind: str = "gloo::EnforceNotMet") -> str:
    dump = DUMP.format(error="Aborted", thread="Thread", called=called, line=line)
    return f"step 1\nterminate called after throwing an instance of '{kind}'\n  what():  {what}\n{dump}"


SIZES = (
    "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. {} vs "
    "{}. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
)


@pytest.mark.parametrize(
    ("sizes", "called", "text"),
    [
        ((32, 16), "all_reduce", "rank 1 got 32 B for 16 B in all_reduce at train.py:7 in exchange"),
        ((80, 8), "broadcast", "rank 1 got 80 B for 8 B in broadcast at train.py:7 in exchange"),
        ((10, 8), "all_gather", "rank 1 got 10 B for 8 B in all_gather at train.py:7 in exchange"),
    ],
)
def test_mismatched_collectives_are_reported_with_that_of_each_rank(
    plan: LaunchPlan, heard: Heard, sizes: tuple[int, int], called: str, text: str
) -> None:
    plan.files.log(1).write_text(died_of(SIZES.format(*sizes), called=called))
    trace = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in feed\n    dist.reduce(x, 0)\n'
        '  File "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", line 9, in reduce\n'
        "RuntimeError: Connection closed by peer\n"
    )
    survivor = raised(0, torch=GONE)
    assert survivor.error is not None
    survivor = replace(survivor, error=replace(survivor.error, traceback=trace))

    assert reason(plan, reports(survivor), heard, ended({1: -signal.SIGABRT})).startswith(
        f"rank 1 first; collectives do not match: {text}; rank 0 was in reduce at train.py:3 in feed\nnext: "
    )


@pytest.mark.parametrize(
    ("kind", "what", "text"),
    [
        ("std::bad_alloc", "std::bad_alloc", "std::bad_alloc"),
        ("std::out_of_range", "map::at", "std::out_of_range: map::at"),
        (
            "c10::Error",
            "Expected 3 planes\nException raised from f at a.cpp:1 (most recent call first):\nframe #0: g() + 0x5",
            "c10::Error: Expected 3 planes",
        ),
    ],
)
def test_an_exception_of_c_that_nobody_caught_is_the_reason_and_the_users_frames_its_place(
    plan: LaunchPlan, heard: Heard, kind: str, what: str, text: str
) -> None:
    plan.files.log(1).write_text(died_of(what, kind=kind))
    [fate, _] = determine_fates(plan, reports(passed(0)), heard, ended({1: -signal.SIGABRT}))

    assert merge_outcomes([fate], after_s=1.0)[1] == f"rank 1 killed by SIGABRT: {text}"
    assert fate.waits_at == "train.py:7 in exchange, in all_reduce"
    assert "forkserver" not in f"{fate.log_tail}{fate.error}"
    assert fate.log_tail.startswith("step 1\n")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGABRT])
def test_who_died_of_a_signal_shows_the_users_frames_and_no_others(
    plan: LaunchPlan, heard: Heard, number: signal.Signals
) -> None:
    dump = DUMP.format(error="Died", thread="Current thread", called="scatter", line=12)
    plan.files.log(1).write_text(f"step 1\nstep 2\n{dump}")
    [fate, _] = determine_fates(plan, reports(passed(0)), heard, ended({1: -number}))

    assert (fate.how, fate.waits_at) == (f"killed by {number.name}", "train.py:12 in exchange, in scatter")
    assert fate.log_tail == "step 1\nstep 2"
    assert [line.split('"')[1] for line in fate.stacks.splitlines() if "File" in line][-1] == "/home/me/train.py"


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


MORE = "\nnext: --distbench-timeout, or fewer steps"
LOCKED = (
    "outside of any collective, for the end of the file /x/lock\n"
    "next: remove it if nothing builds an extension of torch now: a build that is killed leaves its lock behind"
)
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
            [fate(rank, HUNG, waits_at="f", went_on=5400 + rank) for rank in range(2)],
            f"ended after 4.0 s, its limit: its ranks went on, with 5401 collectives so far: rank 0 at f{MORE}",
        ),
        (
            [fate(0, HUNG, waits_at="a.py:7 in f"), fate(1, HUNG, waits_at="a.py:9 in f", went_on=5400)],
            "hung in body, ended after 4.0 s: rank 0 at a.py:7 in f; rank 1 at a.py:9 in f",
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
            [fate(rank, HUNG, waits_at=str(rank), awaits_file="/x/lock") for rank in range(2)],
            f"hung in body, ended after 4.0 s: rank 0 at 0; rank 1 at 1; all ranks wait {LOCKED}",
        ),
        (
            [fate(0, HUNG, waits_at="0"), fate(1, HUNG, waits_at="1", awaits_file="/x/lock")],
            f"hung in body, ended after 4.0 s: rank 0 at 0; rank 1 at 1; rank 1 waits {LOCKED}",
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

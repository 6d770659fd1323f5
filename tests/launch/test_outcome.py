"""A launch's record, from all that is known after its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import documents
from support.fingerprints import BARRIER
from support.plans import make_plan

from pytest_distbench.launch import reduce
from pytest_distbench.launch.fates import Ending, make_record, mask_record
from pytest_distbench.launch.reduce import join, read_reports, reduce_host, report_host
from pytest_distbench.launch.site import Exit, Heard
from pytest_distbench.read import stdout
from pytest_distbench.records.iteration import Breakdown, Fingerprint
from pytest_distbench.records.launch import ErrorReport, HostReport, LaunchRecord, RankFate, RankReport
from pytest_distbench.records.metric import WALL_TIME, Observation
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks
from pytest_distbench.records.record import replace


def observation(name: str, *values: float, **place: Any) -> Observation:
    return Observation(name=name, unit="s", better="info", reduce="max", values=list(values), is_series=True, **place)


def phase(*path: str, values: list[float], **place: Any) -> Observation:
    return observation("phase/step/" + "/".join(path), *values, loop="step", path=list(path), **place)


def report(rank: int, *observations: Observation) -> RankReport:
    return RankReport(rank=rank, outcome="passed", phase="body", phases={}, observations=list(observations))


def breakdowns(reports: Sequence[RankReport], *, is_one_host: bool = True) -> dict[str, Breakdown]:
    """Breakdowns of all ranks: on one host, which has one clock, or each on its own host."""
    hosts = [reports] if is_one_host else [[report] for report in reports]
    return reduce.breakdowns(join([on_host(there, is_one_host=is_one_host) for there in hosts]))


def part_of(reports: Sequence[RankReport], *, is_one_host: bool = True) -> Breakdown:
    """The one part of their loop."""
    [part] = breakdowns(reports, is_one_host=is_one_host)["step"].parts
    return part


def on_host(reports: Sequence[RankReport], *, is_one_host: bool = False) -> HostReport:
    return reduce_host({report.rank: report for report in reports}, lived_here=len(reports), are_all=is_one_host)


def test_each_number_is_a_mean_over_iterations_by_rank() -> None:
    """Maxima over ranks, and lower quantiles of iterations, from which a launch's value is made, do not add up."""
    reports = [
        report(1, observation("step", 3.0, 5.0), phase("forward", values=[1.0, 3.0], host_s=[0.5, 0.5])),
        report(0, observation("step", 3.0, 5.0), phase("forward", values=[2.0, 1.0], host_s=[0.25, 0.25])),
    ]
    forward = Breakdown(path=["forward"], times_s=[1.5, 2.0], hosts_s=[0.25, 0.5])
    found = breakdowns(reports)

    assert found == {"step": Breakdown(times_s=[4.0, 4.0], parts=[forward])}
    assert found["step"].unaccounted_s == [2.5, 2.0]


@pytest.mark.parametrize(
    ("of_ranks", "is_one_host", "waits_s", "late_s"),
    [
        (
            [([4.0, 0.5], [10.0, 20.0]), ([1.0, 1.0], [13.0, 21.0]), ([2.0, 1.0], [12.0, 20.5])],
            True,
            [(3.0 + 0.5) / 2, 0.0, (1.0 + 0.5) / 2],
            [0.0, (3.0 + 1.0) / 2, (2.0 + 0.5) / 2],
        ),
        ([([4.0, 1.0], [10.0, 20.0]), ([1.0, 0.0], [13.0, 0.0])], True, [1.5, 0.0], [0.0, 1.5]),
        ([([4.0, 4.0], [10.0, 20.0])], True, [], []),
        ([([4.0, 4.0], [10.0, 20.0]), ([1.0, 1.0], [13.0, 23.0])], False, [], []),
    ],
    ids=["the last to come", "one that does not enter", "one alone", "incomparable times"],
)
def test_waits_for_the_last_rank_are_computed_on_one_host(
    of_ranks: list[tuple[list[float], list[float]]], is_one_host: bool, waits_s: list[float], late_s: list[float]
) -> None:
    entered = [phase("communication", values=seconds, began_at=began_at) for seconds, began_at in of_ranks]
    reports = [report(rank, observation("step", 9.0, 9.0), one) for rank, one in enumerate(entered)]
    part = part_of(reports, is_one_host=is_one_host)

    assert (part.waits_s, part.late_s) == (waits_s, late_s)


def test_a_phase_that_some_do_not_enter_takes_them_no_time_and_a_loop_of_some_is_left_out() -> None:
    """One rank saves a checkpoint, for example, and the others do not."""
    saves = report(0, observation("step", 3.0), phase("save", values=[2.0]))
    evaluates = report(0, observation("step", 3.0), phase("evaluation", values=[2.0], is_apart=True))

    assert part_of([saves, report(1, observation("step", 3.0))]).times_s == [2.0, 0.0]
    assert breakdowns([saves, report(1)]) == {}
    assert part_of([evaluates]).is_apart


def test_a_part_of_a_script_has_all_the_times_that_it_was_entered_at_any_point() -> None:
    small, large = (
        observation("phase/reduce", *v, loop=WALL_TIME, path=["reduce"], at={"size": v[0]}) for v in ((1, 2), (3, 4))
    )
    found = breakdowns([report(0, small, large, observation(WALL_TIME, 12.0))], is_one_host=True)

    assert found == {WALL_TIME: Breakdown(times_s=[12.0], parts=[Breakdown(path=["reduce"], times_s=[10.0])])}


def test_ranks_of_several_hosts_are_listed_in_their_order() -> None:
    """The second host enters no phase of the loop, and a third one has a phase of its own."""

    def steps(rank: int, *phases: Observation) -> RankReport:
        return report(rank, observation("step", 10.0 + rank), *phases)

    hosts = [
        on_host([steps(0, phase("save", values=[2.0], host_s=[1.0])), steps(3)]),
        on_host([steps(1)]),
        on_host([steps(2, phase("load", values=[4.0], is_apart=True))]),
    ]

    assert reduce.breakdowns(join(hosts))["step"] == Breakdown(
        times_s=[10.0, 11.0, 12.0, 13.0],
        parts=[
            Breakdown(path=["save"], times_s=[2.0, 0.0, 0.0, 0.0], hosts_s=[1.0, 0.0, 0.0, 0.0]),
            Breakdown(path=["load"], times_s=[0.0, 0.0, 4.0, 0.0], is_apart=True),
        ],
    )
    assert reduce.breakdowns(join([*hosts, on_host([report(4)])])) == {}


REPORT = RankReport(rank=0, outcome="passed", phase="body", phases={"begin": 1.0})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def test_a_report_is_read_and_a_missing_cut_or_misplaced_one_left_out(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    whole = msgspec.json.encode(REPORT)
    plan.files.report(0).write_bytes(whole)
    assert read_reports(plan) == {0: REPORT}

    for length in range(len(whole)):
        plan.files.report(0).write_bytes(whole[:length])
        assert read_reports(plan) == {}

    plan.files.report(1).write_bytes(whole)
    assert read_reports(plan) == {}


@given(st.one_of(st.binary(max_size=200), documents.map(msgspec.json.encode)))
def test_a_damaged_report_is_none(folder: Path, data: bytes) -> None:
    plan = make_plan(folder)
    plan.files.report(0).write_bytes(data)

    assert read_reports(plan) == {}


def observed(rank: int, **ended: object) -> RankReport:
    step = Observation(name="step", unit="s", better="lower", reduce="max", values=[1.0 + rank], is_series=True)
    mine = Fingerprint(collectives={str(rank): [BARRIER]})
    entered = {"step": [9.0, 9.5 + rank]}
    own = replace(
        REPORT, rank=rank, observations=[step], fingerprints={"step": mine}, entered=entered, gpu=f"GPU-{rank}"
    )
    return replace(own, **ended)


def left(plan: LaunchPlan, *reports: RankReport) -> LaunchPlan:
    for each in reports:
        plan.files.report(each.rank).write_bytes(msgspec.json.encode(each))
    return replace(plan, world_size=4)


def test_the_report_of_a_host_has_what_its_ranks_recorded_once(tmp_path: Path) -> None:
    found = report_host(left(make_plan(tmp_path), observed(2), observed(3)), [2, 3])
    told = [(end.rank, end.gpu, end.observations, end.fingerprints) for end in found.ranks]

    assert told == [(2, "GPU-2", [], {}), (3, "GPU-3", [], {})]
    assert [([*part.of_ranks], part.values, part.slowest) for part in found.observations] == [([2, 3], [4.0], [3])]
    assert found.fingerprints == {"step": Fingerprint(collectives={"2-3": [BARRIER]})}
    assert found.entered["step"][1] == {2: (0, 0.0), 3: (1, 1.0)}


@pytest.mark.parametrize(
    "others", [pytest.param([], id="left no report"), pytest.param([observed(1, outcome="failed")], id="failed")]
)
def test_where_a_rank_of_the_host_did_not_pass_each_says_how_it_ended_alone(
    others: list[RankReport], tmp_path: Path
) -> None:
    found = report_host(left(make_plan(tmp_path), observed(0), *others), [0, 1])

    assert [end.outcome for end in found.ranks] == ["passed", *(other.outcome for other in others)]
    assert found == HostReport(ranks=found.ranks)


SCRIPT = Ranks(body=BodyReference(file="train.py"))


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return make_plan(tmp_path, work=SCRIPT)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def record(plan: LaunchPlan, heard: Heard, *group_sizes: int, remarks: tuple[str, ...] = ()) -> LaunchRecord:
    reports = [
        RankReport(rank=rank, outcome="passed", phase="body", phases={"begin": 1.0, "end": 2.0}, group_size=size)
        for rank, size in enumerate(group_sizes)
    ]
    hosts = [HostReport(ranks=reports)]
    ending = Ending(exit=Exit(codes={0: 0, 1: 0}), timed_out=False, ended_by_us=frozenset())
    return make_record(plan, hosts, heard, ending, remarks=remarks)


def test_ranks_that_did_not_meet_fail_if_a_group_was_expected(plan: LaunchPlan, heard: Heard) -> None:
    plan.files.log(0).write_text("Unable to locate 2 gpus. Exiting\n")
    found = record(plan, heard, 0, 1)

    assert found.outcome == "failed"
    assert found.reason.startswith("no rank joined a process group of 2")
    assert found.reason.endswith("the output of rank 0 ends with:\nUnable to locate 2 gpus. Exiting")

    assert record(plan, heard, 2, 2).outcome == "passed"

    meant = replace(plan, work=replace(SCRIPT, body=replace(SCRIPT.body, makes_group=False)))

    assert record(meant, heard, 0, 0).outcome == "passed"

    assert record(replace(plan, world_size=1), heard, 0).outcome == "passed"

    four = record(replace(plan, world_size=4), heard, 2, 2, 2, 2)

    assert four.outcome == "passed"
    assert four.remarks == ["the largest process group had 2 of 4 ranks"]

    assert record(plan, heard, 2, 2, remarks=("left x", "")).remarks == ["left x"]


def test_a_number_that_is_not_there_fails_the_launch(plan: LaunchPlan, heard: Heard) -> None:
    found = record(replace(plan, read={"loss": stdout("loss (.*)")}), heard, 2, 2)

    assert found.outcome == "failed"
    assert found.reason == "the pattern 'loss (.*)' matches nothing in the output of rank 0, which is empty"
    assert found.measurements == []


def test_a_rank_that_did_not_go_is_said_whatever_the_outcome(plan: LaunchPlan, heard: Heard) -> None:
    text = "rank 1 (pid 7) is still there 25 s after it was killed"
    ending = Ending(exit=Exit(codes={0: 3}, stuck={1: text}), timed_out=False, ended_by_us=frozenset())
    failed = make_record(plan, [], heard, ending)

    assert failed.reason.splitlines() == ["rank 0 exit code 3", text]


SECRET = "s3cr3tValue"
TEXT = f"found {SECRET}, twice {SECRET}"

RECORD = LaunchRecord(
    index=0,
    command=TEXT,
    outcome="failed",
    wall_s=1.0,
    reason=TEXT,
    remarks=[TEXT],
    fates=[
        RankFate(
            rank=0,
            outcome="failed",
            phase="body",
            how=TEXT,
            error=ErrorReport(kind="E", message=TEXT, traceback=TEXT, raised_at=1.0, torch_errors=[TEXT]),
            log_tail=TEXT,
            stacks=TEXT,
        ),
        RankFate(rank=1, outcome="failed", phase="body", how="waited"),
    ],
    logs="/folder",
)


def test_secrets_are_masked_in_all_that_ranks_and_their_logs_say() -> None:
    masked = mask_record(RECORD, [SECRET])
    found = msgspec.to_builtins(masked)

    assert found == msgspec.json.decode(msgspec.json.encode(RECORD).replace(SECRET.encode(), b"***"))

    assert mask_record(RECORD, []) is RECORD

"""What may explain a regression, as lines."""

from __future__ import annotations

import fnmatch

import pytest
from support.cases import ON_TWO

from pytest_distbench.judging.remarks import CAUSES, find_causes
from pytest_distbench.records.case import Case
from pytest_distbench.records.environment import Environment, GpuReport
from pytest_distbench.records.iteration import TRAINING_STEP, Course, Fingerprint
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.records.reasons import REMARKS
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding, OtherSideRecord
from pytest_distbench.report import verdicts

EQUAL = [0.0, 0.0]
SLOWER = Finding(metric="m", code="beyond-threshold", unit="s", better="lower", current=0.03, baseline=0.02)


def case(*verdicts: Finding, launches: list[LaunchRecord], **reference: object) -> CaseResult:
    of, known = (
        Case(test="t", id="ws2", conditions=ON_TWO, device="cpu"),
        replace(OtherSideRecord(kind="stored"), **reference),
    )
    where = Environment(platform="p", device="d", cores=2, software={})
    found = {"launches": launches, "verdicts": list(verdicts), "reference": known}
    return CaseResult(nodeid="t", case=of, environment=where, **found)


def slower(*, cpu_s: float = 0.02, late: list[float] = EQUAL, **changes: object) -> CaseResult:
    """A step of 20 ms that takes 30 ms now, on 2 ranks that computed 20 ms in all."""
    verdict = replace(SLOWER, companions={"cpu_s": (0.02, cpu_s)}, **changes)
    return case(verdict, launches=[LaunchRecord(index=0, outcome="passed", wall_s=1.0, late_s={"m": late})])


def cause_lines(result: CaseResult) -> list[str]:
    return verdicts.cause_lines(replace(result, causes=find_causes(result)))


def causes_with(result: CaseResult, words: str) -> list[str]:
    return [line for line in cause_lines(result) if words in line]


COMPUTING, LATE = "CPU time of all ranks", "late to the collectives"
RANK_1 = "rank 1 comes 10 ms late to the collectives of m; the other ranks wait for it"

WAITING = "the added time is waiting, not computing (sleep, I/O, locks, a late rank)"
FOR_A_CPU = "; it may wait for a CPU, as other processes used them"


@pytest.mark.parametrize(
    ("cpu_s", "others", "words"),
    [
        (0.04, {}, "20 ms -> 40 ms (+100.0 %): the added time is computing"),
        (0.03, {}, "20 ms -> 30 ms (+50.0 %): the added time is partly computing, partly waiting"),
        (0.021, {}, f"20 ms -> 21 ms (+5.0 %): {WAITING}"),
        (0.021, {"foreign_cores": 1.2}, f"{WAITING}{FOR_A_CPU}"),
        (0.0222, {"foreign_cores": 1.2, "crowding": 1.5}, f"{WAITING}{FOR_A_CPU}"),
        (0.0258, {"foreign_cores": 1.2, "crowding": 1.5}, f"partly computing, partly waiting{FOR_A_CPU}"),
        (0.0265, {"foreign_cores": 0.1, "crowding": 1.5}, f"partly computing, partly waiting{FOR_A_CPU}"),
        (0.03, {"foreign_cores": 0.1, "crowding": 1.5}, "computing, on CPUs that other processes used too"),
        (0.04, {"foreign_cores": 1.2, "crowding": 1.5}, "the added time is computing"),
        (0.021, {"foreign_cores": 0.1, "crowding": 1.05}, WAITING),
    ],
)
def test_cpu_time_distinguishes_computing_from_waiting_on_a_busy_host_too(
    cpu_s: float, others: dict[str, float], words: str
) -> None:
    made = slower(cpu_s=cpu_s)
    line, end = cause_lines(replace(made, launches=[replace(launch, **others) for launch in made.launches]))

    assert line.startswith("CPU time of all ranks per iteration of m: 20 ms -> ")
    assert line.endswith(words)
    assert end == ""


def test_computing_and_waiting_are_not_told_apart_where_nothing_shows_it() -> None:
    [line] = causes_with(slower(cpu_s=0.04, metric="wall_time"), COMPUTING)
    assert line.startswith("CPU time of all ranks in wall_time: ")

    assert causes_with(on_gpu(host_s=(0.01, 0.01), lead_s=(0.0, 0.0)), COMPUTING) == []
    assert causes_with(on_gpu(), COMPUTING) == []

    assert causes_with(slower(cpu_s=0.04, unit="samples/s", better="higher", current=0.01), COMPUTING) == []


def test_cpu_time_that_has_doubled_is_no_waiting_alone_however_long_ranks_waited() -> None:
    [line] = causes_with(slower(cpu_s=0.045, current=0.5), COMPUTING)

    assert line.endswith("20 ms -> 45 ms (+125.0 %): the added time is partly computing, partly waiting")


def on_gpu(**companions: tuple[float, float]) -> CaseResult:
    """A step that takes 30 ms in place of 20 on each of 2 GPUs, whose hosts spin for all of it."""
    made = slower()
    verdicts = [replace(v, companions={"cpu_s": (0.04, 0.06), **companions}) for v in made.verdicts]
    return replace(made, case=replace(made.case, device="cuda"), verdicts=verdicts)


@pytest.mark.parametrize(
    ("companions", "added_by"),
    [
        ({"host_s": (0.01, 0.012), "lead_s": (0.02, 0.04)}, "the added time is the device's"),
        ({"host_s": (0.04, 0.06), "lead_s": (0.001, 0.02)}, "the added time is the host's: it enqueues more slowly*"),
        ({"host_s": (0.04, 0.06), "lead_s": (0.04, 0.06)}, "the host waits for the device, or the device for *"),
        ({"host_s": (0.04, 0.052), "lead_s": (0.001, 0.0)}, "the host waits for the device, or the device for *"),
        ({"host_s": (0.04, 0.06), "exposed": (0.0, 0.6)}, "the added time is the device's"),
        ({"host_s": (0.04, 0.06), "exposed": (0.0, 2.0)}, "the added time is the host's: it enqueues more slowly*"),
    ],
)
def test_the_hosts_share_shows_whether_gpu_or_host_added_time(
    companions: dict[str, tuple[float, float]], added_by: str
) -> None:
    line, spins, _ = cause_lines(on_gpu(**companions))

    assert fnmatch.fnmatchcase(line, f"host time of all ranks per iteration of m: * ms -> * ms (*): {added_by}")
    assert spins == "  CPU time does not show it: a host spins while it waits for an event of the device"


def test_a_late_rank_is_named_with_its_host_where_it_is_late_in_every_launch() -> None:
    assert causes_with(slower(late=[0.0001, 0.01]), LATE) == [RANK_1]

    made = slower(late=[0.0001, 0.01])
    beyond = [replace(v, code="bound", baseline=None) for v in made.verdicts]
    assert causes_with(replace(made, verdicts=beyond), LATE) == [RANK_1]

    result = slower(late=[0.0001, 0.01])
    launch = replace(result.launches[0], hosts=["a", "b"])
    assert causes_with(replace(result, launches=[launch]), LATE)[0].startswith("rank 1 (b) comes 10 ms late ")

    result = slower(late=[0.0001, 0.01])
    other = replace(result.launches[0], late_s={"m": [0.01, 0.0001]})
    assert causes_with(replace(result, launches=[*result.launches, other]), LATE) == []

    assert causes_with(slower(late=[0.001, 0.0]), LATE) == []


@pytest.mark.parametrize(
    ("metric", "late_s", "is_named"),
    [("iter_time", 0.01, True), ("iter_time", 0.001, False), ("wall_time", 0.001, True), ("wall_time", 0.0001, False)],
)
def test_a_late_rank_is_compared_with_a_training_step_of_a_script(metric: str, late_s: float, is_named: bool) -> None:
    """They are a tenth each of the script's whole time."""
    result, prints = slower(metric=metric), Fingerprint(course={"all": Course(steps=10)})
    launch = replace(result.launches[0], late_s={TRAINING_STEP: [0.0, late_s]}, fingerprints={TRAINING_STEP: prints})

    lines = causes_with(replace(result, launches=[launch]), LATE)
    assert bool(lines) is is_named
    assert all("rank 1 comes" in line and "late to the collectives of a training step" in line for line in lines)


@pytest.mark.parametrize(("share", "is_named"), [(0.95, True), (0.85, False)])
def test_the_rank_that_is_the_slowest_in_most_iterations_is_named(share: float, *, is_named: bool) -> None:
    summary = Spread(
        n=9, minimum=1, p25=1, median=1, p95=1, p99=1, mean=1, stdev=0, slowest_rank=1, slowest_share=share
    )
    measurement = Sample(name="m", unit="s", better="lower", value=0.03, spread=summary)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[measurement])

    named = ["rank 1 was the slowest in over 90 % of the iterations", ""]
    assert cause_lines(case(SLOWER, launches=[launch])) == named * is_named
    other = replace(launch, measurements=[replace(measurement, spread=replace(summary, slowest_share=0.5))])
    assert cause_lines(case(SLOWER, launches=[launch, other])) == []


def test_phases_that_take_longer_are_named_by_what_they_add() -> None:
    seconds = {"load": 1.2, "step": 3.0, "save": 1.05}
    phases = [Sample(name=f"phase/{name}", unit="s", better="info", value=value) for name, value in seconds.items()]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=phases)
    result = case(SLOWER, launches=[launch], phases={"load": 1.0, "step": 1.0, "save": 1.0, "gone": 1.0})

    assert cause_lines(result) == ["phase step: 1 s -> 3 s (+200.0 %)", "phase load: 1 s -> 1.2 s (+20.0 %)", ""]
    assert cause_lines(replace(result, verdicts=[replace(SLOWER, code="within-threshold")])) == []


def test_a_changed_fingerprint_is_a_cause_with_its_first_differences() -> None:
    changed = Finding(metric="fingerprint", code="communication", unit="", better="exact", differences=["a", "b"])
    much = replace(changed, differences=list("abcdefghij"))

    assert cause_lines(case(changed, launches=[])) == ["Communication per step changed:", "  a", "  b", ""]
    assert cause_lines(case(changed, SLOWER, launches=[]))[0] == "likely cause: communication per step changed"
    assert cause_lines(case(much, launches=[]))[-3:] == ["  h", "  and 2 more", ""]


def on(case: Case, gpus: int) -> Case:
    return replace(case, device="cuda", conditions=replace(ON_TWO, world_size=gpus))


def on_gpus(result: CaseResult, **variables: str) -> CaseResult:
    """The same, on several GPUs."""
    return replace(result, case=on(result.case, 4), environment=replace(result.environment, variables=variables))


def test_gpu_frequencies_are_reported_with_a_regression_even_if_unchanged() -> None:
    then = GpuReport(sm_mhz=1980.0, memory_mhz=2619.0)
    card = GpuReport(label="GPU 0", uuid="GPU-0", looks=3, sm_mhz=1980.0, memory_mhz=2619.0)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, gpu_reports=[card])
    known = case(SLOWER, launches=[launch], gpu_norm=then)

    clocks = "SM 1980 MHz -> 1980 MHz (+0.0 %), memory 2619 MHz -> 2619 MHz (+0.0 %)"
    assert causes_with(known, "clocks") == [f"median clocks of the slowest GPU: {clocks}"]
    assert causes_with(case(SLOWER, launches=[launch]), "clocks") == []
    assert causes_with(slower(), "clocks") == []


@pytest.mark.parametrize(("then", "now", "is_reported"), [("A", "B", True), ("A", "A", False), ("", "B", False)])
def test_another_cpu_model_next_to_the_gpus_is_reported(then: str, now: str, *, is_reported: bool) -> None:
    card = GpuReport(label="GPU 0", uuid="GPU-0", looks=3, sm_mhz=1500.0, host_cpu=now)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, gpu_reports=[card])
    result = case(SLOWER, launches=[launch], gpu_norm=GpuReport(sm_mhz=2000.0, host_cpu=then))

    assert causes_with(result, "clocks") == ["median clocks of the slowest GPU: SM 2000 MHz -> 1500 MHz (-25.0 %)"]
    assert causes_with(result, "CPU of") == ["  CPU of the host: B; at the baseline: A"] * is_reported


@pytest.mark.parametrize(("code", "is_advised"), [("losses", True), ("numerics", True), ("equal", False)])
def test_a_diverging_curve_on_several_gpus_advises_a_fixed_algorithm(code: str, *, is_advised: bool) -> None:
    curve = replace(SLOWER, metric="loss_curve", better="curve", code=code, unit="")
    diverged = case(curve, launches=[LaunchRecord(index=0, outcome="passed", wall_s=1.0)])

    assert len(causes_with(on_gpus(diverged), "NCCL_ALGO")) == 2 * is_advised
    assert causes_with(on_gpus(diverged, NCCL_ALGO="Ring"), "NCCL_ALGO") == []
    assert causes_with(diverged, "NCCL_ALGO") == []
    of_two = on_gpus(diverged)
    assert causes_with(replace(of_two, case=on(of_two.case, 2)), "NCCL_ALGO") == []
    paired = replace(of_two, reference=replace(of_two.reference, kind="paired"))
    assert causes_with(paired, "NCCL_ALGO") == []


def test_a_new_cause_is_a_row_and_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMARKS, "full-moon", REMARKS["late-rank"])
    monkeypatch.setitem(
        CAUSES, "moon", lambda made: [Finding(code="full-moon", reason=f"full moon over {made.nodeid}")]
    )

    assert cause_lines(slower(cpu_s=0.04))[1:] == ["full moon over t", ""]

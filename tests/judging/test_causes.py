"""What may explain a regression, found as records."""

from __future__ import annotations

from typing import Literal

import pytest
from support.cases import ON_TWO

from pytest_distbench.judging.causes import (
    Cause,
    Clocks,
    CostlierSizes,
    CpuTime,
    FreeAlgorithm,
    HostTime,
    LateRank,
    LongerPhase,
    OtherFingerprint,
    SlowestRank,
    SlowLinks,
    find_causes,
    which,
)
from pytest_distbench.judging.links import Link, Slow
from pytest_distbench.records.bound import Bound
from pytest_distbench.records.case import Case
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.fingerprint import TRAINING_STEP, Course, Fingerprint
from pytest_distbench.records.gpu import GpuNorm, GpuWitness
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, Summary, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, ReferenceRecord
from pytest_distbench.records.verdict import Verdict

EQUAL = [0.0, 0.0]
SLOWER = Verdict(metric="m", kind="regressed", unit="s", better="lower", current=0.03, baseline=0.02, ratio=1.5)


def case(*verdicts: Verdict, launches: list[LaunchRecord], **reference: object) -> CaseResult:
    return CaseResult(
        nodeid="t",
        case=Case(test="t", id="ws2", conditions=ON_TWO, device="cpu"),
        environment=Environment(platform="p", device="d", cores=2, software={}),
        launches=launches,
        verdicts=list(verdicts),
        reference=replace(ReferenceRecord(kind="stored"), **reference),
    )


def slower(*, cpu_s: float = 0.02, late: list[float] = EQUAL, **changes: object) -> CaseResult:
    """A step of 20 ms that takes 30 ms now, on 2 ranks that computed 20 ms in all."""
    verdict = replace(SLOWER, companions={"cpu_s": (0.02, cpu_s)}, **changes)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, late_s={"m": late})
    return case(verdict, launches=[launch])


def found(result: CaseResult, kind: type[Cause]) -> list[Cause]:
    return [cause for cause in find_causes(result) if isinstance(cause, kind)]


@pytest.mark.parametrize(("cpu_s", "spent"), [(0.04, "computing"), (0.03, "both"), (0.021, "waiting")])
def test_cpu_time_tells_computing_from_waiting(cpu_s: float, spent: str) -> None:
    assert find_causes(slower(cpu_s=cpu_s)) == [CpuTime(metric="m", then_s=0.02, now_s=cpu_s, spent=spent)]


@pytest.mark.parametrize(
    ("cpu_s", "others", "spent", "may_lack_cpus"),
    [
        (0.021, {"foreign_cores": 1.2}, "waiting", True),
        (0.0222, {"foreign_cores": 1.2, "crowding": 1.5}, "waiting", True),
        (0.03, {"foreign_cores": 0.1, "crowding": 1.5}, "both", True),
        (0.04, {"foreign_cores": 1.2, "crowding": 1.5}, "computing", False),
        (0.021, {"foreign_cores": 0.1, "crowding": 1.05}, "waiting", False),
    ],
)
def test_beside_others_that_compute_ranks_may_have_waited_for_a_cpu(
    cpu_s: float, others: dict[str, float], spent: Literal["computing", "waiting", "both"], *, may_lack_cpus: bool
) -> None:
    made = slower(cpu_s=cpu_s)
    made = replace(made, launches=[replace(launch, **others) for launch in made.launches])

    assert find_causes(made) == [
        CpuTime(metric="m", then_s=0.02, now_s=cpu_s, spent=spent, may_lack_cpus=may_lack_cpus)
    ]


def on_gpu(**companions: tuple[float, float]) -> CaseResult:
    """A step that takes 30 ms in place of 20 on each of 2 GPUs, whose hosts spin for all of it."""
    made = slower()
    verdicts = [replace(v, companions={"cpu_s": (0.04, 0.06), **companions}) for v in made.verdicts]
    return replace(made, case=replace(made.case, device="cuda"), verdicts=verdicts)


@pytest.mark.parametrize(
    ("companions", "added_by"),
    [
        ({"host_s": (0.01, 0.012), "lead_s": (0.02, 0.04)}, "device"),
        ({"host_s": (0.04, 0.06), "lead_s": (0.001, 0.0)}, "host"),
        ({"host_s": (0.04, 0.06), "lead_s": (0.04, 0.06)}, "both"),
        ({"host_s": (0.04, 0.052), "lead_s": (0.001, 0.0)}, "both"),
        ({"host_s": (0.04, 0.06), "exposed": (0.0, 0.1)}, "device"),
        ({"host_s": (0.04, 0.06), "exposed": (0.0, 2.0)}, "host"),
    ],
)
def test_on_a_gpu_the_hosts_share_tells_who_added_the_time(
    companions: dict[str, tuple[float, float]], added_by: str
) -> None:
    result = on_gpu(**companions)

    assert [c.added_by for c in find_causes(result) if isinstance(c, HostTime)] == [added_by]


def test_on_a_gpu_cpu_time_is_no_evidence_of_computing() -> None:
    assert found(on_gpu(host_s=(0.01, 0.01), lead_s=(0.0, 0.0)), CpuTime) == []
    assert found(on_gpu(), CpuTime) == []


@pytest.mark.parametrize("current", [0.02, 0.0199, 0.01, 0.0201])
def test_medians_that_do_not_show_the_slowdown_do_not_tell_what_it_was_spent_on(current: float) -> None:
    """The fast side of the launches is judged: it may be slower where the medians are equal, or faster."""
    assert found(slower(cpu_s=0.04, current=current), CpuTime) == []


def test_a_throughput_has_no_added_time() -> None:
    assert found(slower(cpu_s=0.04, unit="samples/s", better="higher", ratio=0.5), CpuTime) == []


def test_a_late_rank_is_found_beside_a_regression() -> None:
    _, *causes = find_causes(slower(late=[0.0001, 0.01]))

    assert causes == [LateRank(rank=1, metric="m", late_s=0.01)]


SCRIPT_STEP = Fingerprint(course={"all": Course(steps=10)})


@pytest.mark.parametrize(
    ("metric", "late_s", "is_told"),
    [("iter_time", 0.01, True), ("iter_time", 0.001, False), ("wall_time", 0.001, True), ("wall_time", 0.0001, False)],
)
def test_the_steps_of_a_script_are_those_of_its_clocks(metric: str, late_s: float, is_told: bool) -> None:
    """Of its whole time they are a tenth each."""
    result = slower(metric=metric)
    launch = replace(
        result.launches[0], late_s={TRAINING_STEP: [0.0, late_s]}, fingerprints={TRAINING_STEP: SCRIPT_STEP}
    )

    assert [cause.rank for cause in find_causes(replace(result, launches=[launch])) if isinstance(cause, LateRank)] == (
        [1] if is_told else []
    )


def test_a_rank_that_is_late_in_one_launch_of_two_is_not_accused() -> None:
    result = slower(late=[0.0001, 0.01])
    other = replace(result.launches[0], late_s={"m": [0.01, 0.0001]})

    assert found(replace(result, launches=[*result.launches, other]), LateRank) == []


def test_ranks_that_come_together_are_no_cause() -> None:
    assert [type(cause) for cause in find_causes(slower(late=[0.001, 0.0]))] == [CpuTime]


@pytest.mark.parametrize(("share", "named"), [(0.95, [SlowestRank(rank=1)]), (0.85, [])])
def test_the_rank_whose_clock_is_the_slowest_is_named(share: float, named: list[Cause]) -> None:
    summary = Summary(
        n=9, minimum=1, p25=1, median=1, p95=1, p99=1, mean=1, stdev=0, slowest_rank=1, slowest_share=share
    )
    measurement = Measurement(name="m", unit="s", better="lower", value=0.03, summary=summary)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[measurement])

    assert find_causes(case(SLOWER, launches=[launch])) == named


def test_phases_that_take_longer_are_named_by_what_they_add() -> None:
    seconds = {"load": 1.2, "step": 3.0, "save": 1.05}
    phases = [
        Measurement(name=f"phase/{name}", unit="s", better="info", value=value) for name, value in seconds.items()
    ]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=phases)
    result = case(SLOWER, launches=[launch], phases={"load": 1.0, "step": 1.0, "save": 1.0, "gone": 1.0})

    assert find_causes(result) == [
        LongerPhase(name="step", then_s=1.0, now_s=3.0),
        LongerPhase(name="load", then_s=1.0, now_s=1.2),
    ]
    assert find_causes(replace(result, verdicts=[replace(SLOWER, kind="unchanged")])) == []


def test_of_a_sweep_it_is_said_whether_a_call_or_a_byte_costs_more() -> None:
    def point(size: int) -> Verdict:
        then = 1e-5 + size * 1e-9
        at = {"message_bytes": size}
        return replace(
            SLOWER, metric=metric_key("latency", at), at=at, baseline=then, current=then + 2e-5, ratio=2e-5 / then + 1
        )

    (cause,) = find_causes(case(*map(point, (8, 64, 512, 1024, 4096, 16384)), launches=[]))

    assert isinstance(cause, CostlierSizes)
    assert (cause.name, cause.sizes) == ("latency", "at all 6 sizes")
    assert cause.then.latency_s == pytest.approx(1e-5)
    assert cause.now.latency_s == pytest.approx(3e-5)
    assert cause.now.s_per_byte == pytest.approx(1e-9)


def test_a_changed_fingerprint_is_told_with_or_without_a_slowdown() -> None:
    changed = Verdict(metric="fingerprint", kind="changed", unit="", better="exact", differences=["a", "b"])

    assert find_causes(case(changed, launches=[])) == [OtherFingerprint(differences=("a", "b"), is_slower=False)]
    assert find_causes(case(changed, SLOWER, launches=[])) == [OtherFingerprint(differences=("a", "b"), is_slower=True)]


def test_a_late_rank_is_found_beside_a_bound_too() -> None:
    made = slower(late=[0.0001, 0.01])
    beyond = [replace(v, kind="beyond", baseline=None, ratio=None) for v in made.verdicts]

    assert found(replace(made, verdicts=beyond), LateRank) == [LateRank(rank=1, metric="m", late_s=0.01)]


def on(case: Case, gpus: int) -> Case:
    return replace(case, device="cuda", conditions=replace(ON_TWO, world_size=gpus))


def on_gpus(result: CaseResult, **variables: str) -> CaseResult:
    """The same, on several GPUs."""
    environment = replace(result.environment, variables=variables)
    return replace(result, case=on(result.case, 4), environment=environment)


def test_the_clocks_of_the_gpus_stand_beside_a_regression_whether_they_moved_or_not() -> None:
    then = GpuNorm(sm_mhz=1980.0, memory_mhz=2619.0)
    card = GpuWitness(label="GPU 0", uuid="GPU-0", looks=3, sm_mhz=1980.0, memory_mhz=2619.0)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, gpu_witnesses=[card])
    known = case(SLOWER, launches=[launch], gpu_norm=then)

    assert found(known, Clocks) == [Clocks(then=then, now=then)]
    assert found(case(SLOWER, launches=[launch]), Clocks) == []
    assert found(slower(), Clocks) == []


@pytest.mark.parametrize(("kind", "is_advised"), [("regressed", True), ("drifted", True), ("unchanged", False)])
def test_a_curve_that_departs_on_several_gpus_asks_for_a_fixed_algorithm(kind: str, *, is_advised: bool) -> None:
    curve = replace(SLOWER, metric="loss_curve", better="curve", kind=kind, unit="")
    departed = case(curve, launches=[LaunchRecord(index=0, outcome="passed", wall_s=1.0)])

    assert bool(found(on_gpus(departed), FreeAlgorithm)) is is_advised
    assert found(on_gpus(departed, NCCL_ALGO="Ring"), FreeAlgorithm) == []
    assert found(departed, FreeAlgorithm) == []
    of_two = on_gpus(departed)
    assert found(replace(of_two, case=on(of_two.case, 2)), FreeAlgorithm) == []
    paired = replace(of_two, reference=replace(of_two.reference, kind="paired"))
    assert found(paired, FreeAlgorithm) == []


def link(source: int, target: int, kind: str = "unchanged", **changes: object) -> Verdict:
    at = Link(source, target).at
    return replace(SLOWER, metric=metric_key("latency", at), at=at, kind=kind, **changes)


def test_the_rank_is_named_whose_links_have_all_become_slow() -> None:
    matrix = [link(0, 1), link(0, 2, "regressed"), link(1, 2, "regressed")]

    assert found(case(*matrix, launches=[]), SlowLinks) == [
        SlowLinks(slow=Slow((2,), ()), metrics=("latency",), measured=3)
    ]


def test_an_imbalance_beyond_its_bound_names_the_link_without_a_baseline() -> None:
    """Two links that are a little slower than the third do not hide the one that is beyond."""
    matrix = [link(0, 1, "missing", current=1.0), link(0, 2, "missing", current=1.4)]
    matrix.append(link(1, 2, "missing", current=9.0))
    beyond = Verdict(
        metric="imbalance[of=latency]", at={"of": "latency"}, kind="beyond", unit="", better="info", current=9.0,
        bounds=[Bound(side="most", value=3.0, where="here")],
    )  # fmt: skip

    assert found(case(*matrix, launches=[]), SlowLinks) == []
    assert found(case(*matrix, beyond, launches=[]), SlowLinks) == [
        SlowLinks(slow=Slow((), (Link(1, 2),)), metrics=("latency",), measured=3)
    ]


@pytest.mark.parametrize(
    ("hit", "words"),
    [
        ([4, 8, 16, 32], "at all 4 sizes"),
        ([16, 32], "from 16 B up"),
        ([4, 8], "up to 8 B"),
        ([8, 16], "from 8 B to 16 B"),
        ([8], "at 8 B only"),
        ([4, 16], "at 2 of 4 sizes, first at 4 B"),
    ],
)
def test_sizes_in_words(hit: list[int], words: str) -> None:
    assert which(hit, [4, 8, 16, 32]) == words

"""The fixture ``scaling``: what it launches, judges and refuses. Ranks are made up but for the last test's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.launching import RunInside
from support.projects import Project, run

from pytest_distbench import testing
from pytest_distbench.plugin.scaling import sizes_up_to
from pytest_distbench.records.plan import LaunchPlan

TEST = """
    def body(rank):
        pass

    def test_net(scaling):
        scaling(body, {call})
"""
WEAK = "mode='weak', params={'batch': 8}"
SPREAD = (1.0, 1.005, 0.995, 1.01, 0.99)


class Rates:
    """Samples per second of made-up ranks, by their number and whether they communicate."""

    def __init__(self) -> None:
        self.by_run: dict[tuple[int, str], float] = {
            (1, "off"): 100, (1, "on"): 98, (2, "on"): 150, (2, "off"): 190, (4, "on"): 140, (4, "off"): 360,
        }  # fmt: skip
        self.sent_bytes = 400
        self.launched: list[tuple[int, str, Mapping[str, Any]]] = []

    def describe(self, plan: LaunchPlan) -> Mapping[str, Any]:
        params = plan.work.params
        of = plan.world_size, params["communication"]
        self.launched.append((*of, params))
        rate = self.by_run[of]
        sent = {"sent_bytes!exact": self.sent_bytes if params["communication"] == "on" else 0}
        return {"samples_per_second!higher": [rate * part for part in SPREAD], **sent}


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rates]:
    made = Rates()
    monkeypatch.setattr(testing, "_description", made.describe)
    return made


def record(project: pytest.Pytester, *arguments: str) -> tuple[pytest.RunResult, dict[str, dict[str, Any]]]:
    """The cases of a run by their names."""
    result = run(project, "--distbench-json=run.json", *arguments)
    results = json.loads((project.path / "run.json").read_text())["results"]
    return result, {f"{r['case']['run']}@{r['case']['conditions']['world_size']}": r for r in results}


def current(case: dict[str, Any]) -> float:
    [verdict] = case["verdicts"]
    return float(verdict["current"])


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_sizes_double_and_the_largest_is_one_of_them(most: int, sizes: list[int]) -> None:
    assert sizes_up_to(most) == sizes


def test_every_size_is_measured_with_and_without_communication_and_judged_beside_the_local_one(
    project: Project, rates: Rates
) -> None:
    result, cases = record(project(TEST.format(call=WEAK)), "--world-size=4")

    assert result.ret == 0
    measured = dict.fromkeys((size, communication) for size, communication, _ in rates.launched)
    assert list(measured) == [(1, "off"), (1, "on"), (2, "on"), (4, "on"), (2, "off"), (4, "off")]
    assert current(cases["scaling_efficiency[workers=2]@4"]) == pytest.approx(150 / 200)
    assert current(cases["scaling_efficiency[workers=4]@4"]) == pytest.approx(140 / 400)
    assert current(cases["computation_share[workers=2]@4"]) == pytest.approx(150 / 190)
    assert current(cases["sent_bytes[workers=4]@4"]) == 400


@pytest.mark.parametrize(("mode", "batches"), [("weak", {1: 8, 2: 8, 4: 8}), ("strong", {1: 8, 2: 4, 4: 2})])
def test_the_batch_of_a_worker_stays_or_that_of_all_is_split(
    project: Project, rates: Rates, mode: str, batches: dict[int, int]
) -> None:
    run(project(TEST.format(call=f"mode={mode!r}, params={{'batch': 8, 'net': 'vgg'}}")), "--world-size=4")

    assert {size: params["batch"] for size, _, params in rates.launched} == batches
    assert {params["net"] for _, _, params in rates.launched} == {"vgg"}
    assert {params["scaling"] for _, _, params in rates.launched} == {mode}


def test_a_loss_of_efficiency_is_a_regression(project: Project, rates: Rates) -> None:
    made = project(TEST.format(call=WEAK))
    assert run(made, "--distbench-update").ret == 0
    assert run(made).ret == 0
    rates.by_run[2, "on"] = 120
    result = run(made)

    result.stdout.fnmatch_lines(["computation_share[[]workers=2] -20.0 % (limit -9%)"])
    assert result.ret == 1


def test_a_local_rate_that_rises_alone_is_told_as_lost_efficiency(project: Project, rates: Rates) -> None:
    made = project(TEST.format(call=WEAK))
    run(made, "--distbench-update")
    rates.by_run[1, "off"] = 140
    result = run(made)

    result.stdout.fnmatch_lines(["scaling_efficiency[[]workers=2] -28.6 % (limit -9%)"])


def test_gradients_that_are_no_longer_compressed_are_found_at_once(project: Project, rates: Rates) -> None:
    made = project(TEST.format(call=WEAK))
    run(made, "--distbench-update")
    rates.sent_bytes *= 2
    result = run(made)

    result.stdout.fnmatch_lines(["sent_bytes[[]workers=2]: 800 B, baseline 400 B (exact)"])


def test_against_another_revision_both_sides_are_derived(project: Project, rates: Rates) -> None:
    made = project(TEST.format(call=WEAK))
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        assert made.run("git", *command).ret == 0
    result, cases = record(made, "--distbench-against=HEAD")

    assert result.ret == 0
    derived = cases["scaling_efficiency[workers=2]@2"]
    assert derived["reference"]["kind"] == "paired"
    assert len(derived["launches"]) == len(derived["reference"]["launches"]) == 5


def test_one_worker_is_measured_and_it_is_said_that_nothing_was_judged(project: Project, rates: Rates) -> None:
    result, cases = record(project(TEST.format(call=WEAK)), "--world-size=1", "-Wdefault")

    assert list(cases) == ["local@1", "together@1"]
    result.stdout.fnmatch_lines(
        ["*scaling: nothing was judged: one worker is compared with nobody. Next: --world-size 2*"]
    )
    assert result.ret == 0


def test_beyond_the_ranks_at_hand_rows_are_labelled_and_their_clocks_are_not_judged(
    project: Project, rates: Rates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_distbench.machine.hardware.cores", lambda: 2)
    made = project(TEST.format(call=f"{WEAK}, up_to=4, oversubscribed=True"))
    _, cases = record(made, "--distbench-update")
    beyond = cases["scaling_efficiency[workers=4]@2"]

    assert beyond["case"]["conditions"]["around"] == {"oversubscribed": "2-cores"}
    assert (beyond["verdicts"], beyond["update"]) == ([], "")
    assert cases["scaling_efficiency[workers=2]@2"]["update"] == "new"
    assert cases["sent_bytes[workers=4]@2"]["update"] == "new"


def test_beyond_the_ranks_at_hand_nothing_is_run_unless_the_test_says_so(project: Project, rates: Rates) -> None:
    result = run(project(TEST.format(call=f"{WEAK}, up_to=4")), "-rs")

    result.stdout.fnmatch_lines(["*not run: needs 4 ranks, 2 given*"])
    assert rates.launched == []


def test_ranks_with_other_threads_are_compared_with_nobody(
    project: Project, rates: Rates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a body gives the one rank all cores."""
    report = testing._report

    def with_threads(plan: LaunchPlan, rank: int) -> Any:
        monkeypatch.setenv("DISTBENCH_STAND_IN_SOFTWARE", "threads=2" if plan.world_size == 1 else "threads=1")
        return report(plan, rank)

    monkeypatch.setattr(testing, "_report", with_threads)
    result = run(project(TEST.format(call=WEAK)))

    result.stdout.fnmatch_lines(
        ["*different numbers of threads*: 2 in local, together@ws1; 1 in together@ws2, alone@ws2*"]
    )
    assert result.ret == 1


def test_two_calls_of_one_test_are_told_apart_by_their_names(project: Project, rates: Rates) -> None:
    made = project(
        """
        def body(rank):
            pass

        def test_net(scaling):
            for mode in ("weak", "strong"):
                scaling(body, mode=mode, params={"batch": 8}, name=mode)
        """
    )
    result, cases = record(made)

    assert result.ret == 0
    assert {"weak-local@1", "strong-local@1", "scaling_efficiency[of=weak,workers=2]@2"} <= cases.keys()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("mode='super', params={'batch': 8}", "*scaling: mode='super'; wanted one of weak, strong*"),
        ("mode='weak', params={}", "*params={} has no 'batch'; wanted the samples of each worker in a step*"),
        ("mode='strong', params={}", "*wanted the samples of all workers together in a step*"),
        (
            "mode='strong', params={'batch': 3}",
            "*'batch'[]]=3 are the samples of all*cannot be split over 2; wanted*1, 2*",
        ),
        ("mode='weak', params={'batch': 0}", "*'batch'[]]=0; wanted a whole number of at least 1*"),
        ("mode='weak', params={'batch': 8, 'communication': 'off'}", "*'communication', which the fixture itself*"),
        ("mode='weak', params=8", "*params=8; wanted a*"),
        (f"{WEAK}, up_to=0", "*whole number of at least 1*"),
        (f"{WEAK}, world_size=2", "*unknown keyword world_size; known are body, mode, params, up_to*"),
    ],
)
def test_what_cannot_be_scaled_is_explained(project: Project, rates: Rates, call: str, message: str) -> None:
    result = run(project(TEST.format(call=call)))

    result.stdout.fnmatch_lines([message.replace(";", "?")])
    assert result.ret == 1
    assert rates.launched == []


def test_a_body_that_records_no_rate_is_told_so(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN", '{"step": 0.02}')
    result = run(project(TEST.format(call=WEAK)))

    result.stdout.fnmatch_lines(["*'samples_per_second' was not measured; there are step*"])


SPAWNED = """
    import time
    import torch
    from pytest_distbench.workloads.scaling import batch_of, has_communication, parallel, record_rate

    def train(rank, wait):
        model = parallel(rank, torch.nn.Linear(16, 16))
        inputs = torch.ones(batch_of(rank), 16)
        for _ in rank.timed("step", warmup=3, iterations=5):
            model(inputs).sum().backward()
            time.sleep(0.02 + wait * (has_communication(rank) and rank.world_size > 1))
        record_rate(rank, samples=batch_of(rank) * rank.world_size)

    def test_net(scaling):
        found = scaling(train, mode="weak", params={"batch": 4, "wait": WAIT})
        [two] = found.efficiency.values()
        [computation] = found.computation.values()
        assert set(found.together) == {1, 2} and set(found.alone) == {2}
        print("measured", two.verdicts["scaling_efficiency[workers=2]"].current,
              computation.verdicts["computation_share[workers=2]"].current)
"""


@pytest.mark.spawn
def test_what_is_waited_for_beside_communication_lowers_efficiency_and_the_share_of_computation(
    project: Project, pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    """A step sleeps 20 ms, and planted 60 ms more where it communicates: what a machine adds is far less than that."""
    import textwrap

    found = []
    for wait in ("0", "0.06"):
        pytester.makepyfile(test_net=textwrap.dedent(SPAWNED.replace("WAIT", wait)))
        result = run_inside("--world-size=2", "-s", "-p", "no:cacheprovider")
        assert result.ret == 0
        [line] = [line for line in result.outlines if "measured " in line]
        found.append([float(number) for number in line.partition("measured ")[2].split()])
    (efficiency, computation), (slow_efficiency, slow_computation) = found

    assert slow_efficiency < 0.35 < efficiency
    assert slow_computation < 0.35 < computation

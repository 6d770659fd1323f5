"""The fixture ``scaling``: what it runs, in which order, and what it makes of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import fixtures
from support.fixtures import made_up_distbench
from support.launching import RunInside
from support.projects import Project, run

from pytest_distbench import testing
from pytest_distbench.errors import DistbenchWarning
from pytest_distbench.plugin import carry
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Misuse
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import CaseResult
from pytest_distbench.workloads.scaling import Scaling

COMMUNICATION_S = 0.25


class Timed(fixtures.SimulatedRuns):
    """A step takes 10 ms a sample, and communication of more than one worker a quarter of a second."""

    order: list[tuple[int, str]] = []
    threads: Mapping[int, int] = {}
    sends: Sequence[str] = ["on"]
    samples: Mapping[int, int] = {}
    """Samples of a worker, if they are not the batch."""

    def add(self, *, only: object = ()) -> None:
        params: Any = self.request.work.params  # type: ignore[union-attr]
        self.order.append((self.request.world_size, params["communication"]))
        waits = self.request.world_size > 1 and params["communication"] == "on"
        step = Sample(name="step", unit="s", better="lower", value=0.01 * params["batch"] + waits * COMMUNICATION_S)
        samples = self.samples.get(self.request.world_size, params["batch"]) * self.request.world_size
        told = Sample(name="samples_per_step", unit="", better="exact", value=samples)
        software = {"threads": str(self.threads.get(self.request.world_size, 1))}
        sent = [Collective("all_reduce", "float32", 4, "default", 1)] if params["communication"] in self.sends else []
        of = {"index": len(self), "outcome": "passed", "wall_s": 1.0, "software": software}
        fingerprints = {"step": Fingerprint(collectives={"all": sent})}
        self.launches.append(LaunchRecord(**of, measurements=[step, told], fingerprints=fingerprints))


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Distbench, list[CaseResult]]:
    monkeypatch.setattr(fixtures, "SimulatedRuns", Timed)
    monkeypatch.setattr(Timed, "order", [])
    found: list[CaseResult] = []
    distbench = made_up_distbench(Path(__file__), tmp_path)
    monkeypatch.setattr(carry, "keep_case", lambda item, case: found.append(case))
    monkeypatch.setattr(distbench, "world_size", 4)
    return distbench, found


def body(rank: Any) -> None:
    """Runs nowhere."""


def values(found: list[CaseResult]) -> dict[str, float | None]:
    return {v.metric: v.current for result in found for v in result.verdicts if "workers" in v.at}


Made = tuple[Distbench, list[CaseResult]]


def test_every_size_alternates_with_one_worker_and_with_no_communication(simulated: Made) -> None:
    distbench, found = simulated
    runs = Scaling(distbench)(body, params={"batch": 50}, launches=2)

    sizes = [(1, "off"), (1, "on"), (2, "on"), (4, "on"), (2, "off"), (4, "off")]
    assert Timed.order == [*sizes, *sizes]
    assert [run.result.case.world_size for run in runs] == [1, 2, 4]
    assert [r.case.label for r in found[:6]] == [
        "local@ws1", "workers@ws1", "workers@ws2", "workers@ws4", "apart@ws2", "apart@ws4",
    ]  # fmt: skip


def test_one_worker_has_nothing_to_be_compared_with(simulated: Made) -> None:
    distbench, found = simulated
    with pytest.warns(DistbenchWarning, match=r"no efficiency was judged: it needs two.*Next: --world-size 2 or more"):
        [run] = Scaling(distbench)(body, params={"batch": 1}, world_size=1)

    assert (run.result.case.label, values(found)) == ("workers@ws1", {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both", "params": {"batch": 1}}, "mode='both'; wanted one of weak, strong"),
        ({}, "params has no 'batch': the samples of a step, of a worker"),
        ({"params": {}}, r"params has no 'batch': .*Next: give params={\"batch\": 64}"),
        ({"params": {"batch": 0}}, r"params\['batch'\]=0; wanted a whole number of at least 1"),
        ({"params": 3}, "params=3"),
        ({"params": {"batch": 1, "communication": "on"}}, "params contains 'communication', which scaling sets itself"),
        ({"mode": "strong", "params": {"batch": 6}}, "=6 cannot be shared evenly by 4 workers; give a multiple of 4"),
        ({"params": {"batch": 1}, "of": 3}, "of=3"),
        ({"params": {"batch": 1}, "sizes": [1, 2]}, "sizes"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_what_was_wanted(
    simulated: Made, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        Scaling(simulated[0])(body, **options)
    assert Timed.order == []


@pytest.mark.parametrize(
    ("given", "efficiency", "share"),
    [({"step": 0.4, "scaling_efficiency": 0.2}, 0.2, None), (0.3, 0.3, 0.3), (None, None, None)],
)
def test_a_tolerance_is_of_what_it_names_or_of_all(
    simulated: Made, monkeypatch: pytest.MonkeyPatch, given: Any, efficiency: float | None, share: float | None
) -> None:
    distbench, _ = simulated
    taken: dict[str, object] = {}
    monkeypatch.setattr(distbench, "judge", lambda name, *_, tolerance, **__: taken.update({name: tolerance}))
    Scaling(distbench)(body, params={"batch": 50}, world_size=2, tolerance=given)

    assert taken == {"scaling_efficiency": efficiency, "computing_share": share}


def test_beyond_the_cores_of_this_host_sizes_are_labelled_and_their_clocks_are_not_judged(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales_well = {"step": [0.02, 0.0201, 0.0199, 0.0202, 0.0198]}  # made-up ranks have no fingerprint
    monkeypatch.setattr(testing, "_description", lambda plan: scales_well)
    monkeypatch.setattr("pytest_distbench.machine.hardware.cores", lambda: 2)
    made = project(
        """
        def body(rank):
            pass

        def test_net(scaling):
            scaling(body, params={"batch": 8}, world_size=4, oversubscribed=True)
        """
    )
    result = run(made, "--distbench-update", "--distbench-json=run.json")
    results = json.loads((made.path / "run.json").read_text())["results"]
    labels = {(r["case"]["run"], r["case"]["conditions"]["world_size"]): r for r in results}
    two, four = labels["scaling_efficiency[workers=2]", 2], labels["scaling_efficiency[workers=4]", 2]

    assert result.ret == 0
    assert (two["update"], [v["kind"] for v in two["verdicts"]]) == ("new", ["new"])
    assert (four["update"], four["verdicts"]) == ("", [])
    assert four["case"]["conditions"]["around"] == {"oversubscribed": "2-cores"}
    assert labels["workers", 4]["update"] != "new"
    assert run(made).ret == 0


SPAWNED = """
    import time
    import torch
    from pytest_distbench.workloads.gradients import parallel
    from pytest_distbench.workloads.rates import record_rate

    def train(rank):
        model = parallel(rank, torch.nn.Linear(16, 16))
        inputs = torch.ones(rank.params["batch"], 16)
        for _ in rank.timed("step", warmup=3, iterations=5):
            model(inputs).sum().backward()
            communicates = rank.params["communication"] == "on" and rank.world_size > 1
            time.sleep(0.02 + rank.params["wait_s"] * communicates)
        record_rate(rank, samples=rank.params["batch"])

    def test_net(scaling):
        scaling(train, params={"batch": 4, "wait_s": WAIT})
"""


def derived(pytester: pytest.Pytester, run_inside: RunInside, wait_s: str) -> dict[str, float]:
    pytester.makepyfile(test_net=textwrap.dedent(SPAWNED.replace("WAIT", wait_s)))
    assert run_inside("--world-size=2", "--distbench-json=run.json").ret == 0
    results = json.loads((pytester.path / "run.json").read_text())["results"]
    return {v["metric"]: v["current"] for result in results for v in result["verdicts"] if v["at"]}


@pytest.mark.spawn
def test_what_is_waited_for_in_communication_lowers_efficiency_and_the_share_of_computing(
    pytester: pytest.Pytester, run_inside: RunInside
) -> None:
    """A step sleeps 20 ms, and 180 ms more where it communicates: a tenth is left. The machine adds far less."""
    quiet, slow = (derived(pytester, run_inside, wait_s) for wait_s in ("0", "0.18"))

    assert quiet.keys() == slow.keys() == {"scaling_efficiency[workers=2]", "computing_share[workers=2]"}
    assert all(slow[metric] < 0.3 < quiet[metric] for metric in quiet)


NO_TOLERANCE = (
    r"tolerance\['scaling_eficiency'\]: nothing of that name has one; wanted one of computing_share, "
    "scaling_efficiency, step"
)
OTHER_SAMPLES = (
    r"do not follow params\['batch'\]: a sample of it is 1 in local@ws1, workers@ws1; 2 in workers@ws2, apart@ws2; "
    r"4 in workers@ws4, apart@ws4\. Next: take the batch of a worker from rank.params"
)


@pytest.mark.parametrize(
    ("traits", "options", "message"),
    [
        # As where a body makes its DDP itself: the one worker would wait for its own gradients
        (
            {"sends": ["on", "off"]},
            {"params": {"batch": 50}},
            "local@ws1 must be without communication, and its step calls all_reduce. Next:",
        ),
        # As where a body takes a batch of its own: under strong scaling each worker does the work of all
        ({"samples": {2: 100, 4: 100}}, {"mode": "strong", "params": {"batch": 100}}, OTHER_SAMPLES),
        # As where a body gives the one rank all cores
        (
            {"threads": {1: 2}},
            {"params": {"batch": 50}},
            "different numbers of threads.*: 2 in local@ws1, workers@ws1; 1 in workers@ws2, workers@ws4, apart@ws2",
        ),
        ({}, {"params": {"batch": 50}, "tolerance": {"scaling_eficiency": 0.1}}, NO_TOLERANCE),
        ({}, {"params": {"batch": 50}, "of": "train"}, "of='train': local@ws1 timed no such loop; wanted one of step"),
    ],
    ids=["communicates", "other samples", "other threads", "a tolerance of nothing", "a loop that was not timed"],
)
def test_a_training_whose_scaling_cannot_be_judged_is_refused(
    simulated: Made, monkeypatch: pytest.MonkeyPatch, traits: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    for name, value in traits.items():
        monkeypatch.setattr(Timed, name, value)
    with pytest.raises(Misuse, match=message):
        Scaling(simulated[0])(body, **options)
    assert values(simulated[1]) == {}
    assert "of" not in options or Timed.order == [(1, "off")], "no launch was made for nothing"


@pytest.mark.parametrize(
    ("options", "prefix", "found"),
    [
        ({"params": {"batch": 50}}, "", {2: (0.5 / 0.75, 0.5 / 0.75), 4: (0.5 / 0.75, 0.5 / 0.75)}),
        (
            {"mode": "strong", "params": {"batch": 100}, "name": "shared"},
            "shared ",
            {2: (1.0 / (2 * 0.75), 0.5 / 0.75), 4: (1.0 / (4 * 0.5), 0.25 / 0.5)},
        ),
    ],
    ids=["weak", "strong"],
)
def test_a_worker_has_as_many_samples_however_many_there_are_or_its_share_of_them(
    simulated: Made, options: dict[str, Any], prefix: str, found: dict[int, tuple[float, float]]
) -> None:
    Scaling(simulated[0])(body, **options)
    efficiency, computing = (
        {f"{prefix}{name}[workers={n}]": both[i] for n, both in found.items()}
        for i, name in enumerate(("scaling_efficiency", "computing_share"))
    )

    assert values(simulated[1]) == pytest.approx(efficiency | computing)


def test_a_size_that_is_no_power_of_two_is_the_last(simulated: Made) -> None:
    distbench, _ = simulated
    runs = Scaling(distbench)(body, params={"batch": 3}, world_size=3)

    assert [run.result.case.world_size for run in runs] == [1, 2, 3]


def test_beyond_the_ranks_at_hand_nothing_is_launched_unless_the_test_says_so(simulated: Made) -> None:
    with pytest.raises(pytest.skip.Exception, match="not run: needs 8 ranks, 4 given"):
        Scaling(simulated[0])(body, params={"batch": 8}, world_size=8)
    assert Timed.order == []

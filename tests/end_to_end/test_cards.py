"""Was it the code or the card? Whole runs on simulated GPUs with simulated ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from support.nvml import HOSTS, Host, Nvml, State, h100s, simulated
from support.projects import TEST, Project, run, stored

from pytest_distbench import testing
from pytest_distbench.machine.hardware import cpu_name
from pytest_distbench.records.record import replace as replace_in

COOL = State(sm_mhz=1980)
HOT = State(sm_mhz=1410, held=("HwThermalSlowdown",))
SHARED = State(processes={1: 0.5})
"""State of a GPU that the first process of the host uses too, which is not below pytest."""

Fare = Callable[..., None]


def host(state: State, **changes: object) -> Host:
    return Host(cards=[replace(card, states={0.0: state}, **changes) for card in h100s(2)])


@pytest.fixture
def fare() -> Iterator[Fare]:
    with ExitStack() as stack:
        nvml: Nvml = stack.enter_context(simulated(host(COOL)))

        def set_state(state: State, **changes: object) -> None:
            nvml.host = host(state, **changes)

        yield set_state


@pytest.fixture
def recorded(project: Project, fare: Fare) -> pytest.Pytester:
    made = project(TEST)
    assert run(made, "--gpu", "--distbench-platform=h100", "--distbench-update").ret == 0
    return made


def slower(made: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *options: str) -> pytest.RunResult:
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    return run(made, "--gpu", "--distbench-platform=h100", "--distbench-json=run.json", *options)


def test_a_baseline_keeps_how_its_gpus_fared(recorded: pytest.Pytester) -> None:
    [path] = stored(recorded)

    assert json.loads(path.read_text())["entry"]["cards"] == {
        "host_cpu": cpu_name(),
        "memory_mhz": 2619.0,
        "power_limit_w": 700.0,
        "sm_mhz": 1980.0,
    }


def test_a_slowdown_on_the_same_cards_is_reported_with_their_frequencies(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = slower(recorded, monkeypatch)

    assert result.ret == 1
    result.stdout.fnmatch_lines(["median clocks of the slowest GPU: SM 1980 MHz -> 1980 MHz (+0.0 %), memory *"])


@pytest.mark.parametrize(
    ("state", "changes", "reason"),
    [
        (
            HOT,
            {},
            "slower, but GPU 0 was slowed down by temperature for * of the time: 1410 MHz; at the baseline 1980*",
        ),
        (COOL, {"power_limit_w": 500.0}, "slower, but the power limit is 500 W; at the baseline it was 700 W"),
        (COOL, {"set_mhz": 1200}, "slower, but the SM clock is set to 1200 MHz; at the baseline it was free"),
        (SHARED, {}, "slower, but GPU 0 was shared with *pid 1*"),
    ],
)
def test_a_slowdown_on_a_card_that_was_held_back_is_inconclusive_and_says_why(
    recorded: pytest.Pytester,
    fare: Fare,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    changes: dict[str, object],
    reason: str,
) -> None:
    fare(state, **changes)
    result = slower(recorded, monkeypatch)
    strict = slower(recorded, monkeypatch, "--distbench-strict")
    [case] = json.loads((recorded.path / "run.json").read_text())["results"]
    [verdict] = [v for v in case["verdicts"] if v["metric"] == "step"]

    assert (result.ret, strict.ret) == (0, 1)
    assert verdict["kind"] == "inconclusive"
    strict.stdout.fnmatch_lines([f"*{reason}*"])


def test_the_record_has_the_gpus_of_each_launch_and_the_machine_they_are_in(recorded: pytest.Pytester) -> None:
    run(recorded, "--gpu", "--distbench-json=run.json")
    [case] = json.loads((recorded.path / "run.json").read_text())["results"]
    machine = case["environment"]["gpu_host"]

    assert [card["label"] for card in case["launches"][0]["cards"]] == ["GPU 0", "GPU 1"]
    assert case["environment"]["software"]["driver"] == machine["driver"] == "570.124.06"
    assert machine["links"] == [["", "nvlink4x18"], ["nvlink4x18", ""]]
    assert case["environment"]["platform"] == "nvidia-h100-80gb-hbm3-nvlink4x18"
    assert case["environment"]["variables"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("driver and library differ", [], "*--gpu: no GPU: the NVIDIA driver and its library have different versions*"),
        (
            "8xH100, four forbidden",
            ["--world-size=5"],
            "*needs 5 GPUs*4 visible of 4*GPU 0, 1, 2, 3: this process*",
        ),
        ("8xH100 in MIG", ["--world-size=8"], "*needs 8 GPUs*1 visible of 8*where MIG is on CUDA shows*one slice*"),
        (
            "H100 in MIG without slices",
            [],
            "*--gpu: no GPU: 0 visible of 1*MIG is on and it has no slice: *-mig 0*",
        ),
    ],
)
def test_too_few_gpus_is_an_error_that_says_why(project: Project, name: str, options: list[str], text: str) -> None:
    with simulated(HOSTS[name]):
        run(project(TEST), "--gpu", *options).stderr.fnmatch_lines([text])


def test_the_header_names_what_is_lost(project: Project) -> None:
    with simulated(HOSTS["8xH100, one lost"]):
        result = run(project(TEST), "--gpu", "-v")

    result.stdout.fnmatch_lines(["distbench *: world size 7, nccl, *, 7 GPUs*", "distbench: not used: GPU 5: lost*"])


def test_a_rank_that_computed_on_another_gpu_is_a_warning(
    project: Project, fare: Fare, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = testing._report
    monkeypatch.setattr(testing, "_report", lambda plan, rank: replace_in(report(plan, rank), gpu=f"000{1 - rank}aaaa"))
    result = run(project(TEST), "--gpu")

    result.stdout.fnmatch_lines(["*rank 0 computed on the GPU 0001aaaa, and GPU-0000aaaa is leased and named*"])


def test_a_run_on_the_cpu_has_nothing_of_it(project: Project) -> None:
    made = project(TEST)
    run(made, "--distbench-update", "--distbench-json=run.json")
    [case] = json.loads((made.path / "run.json").read_text())["results"]
    [path] = stored(made)

    assert case["environment"]["gpu_host"] is None
    assert case["launches"][0]["cards"] == []
    assert "cards" not in json.loads(path.read_text())["entry"]

"""What the doctor makes of GPUs, by made-up drivers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.nvml import HOSTS, Card, Host, State, made_up

from pytest_distbench.commands.doctor import gpus
from pytest_distbench.commands.doctor.finding import Finding

H100 = "NVIDIA H100 80GB HBM3"


def done(stdout: str = "", stderr: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, stdout=stdout, stderr=stderr)


def examine(
    host: Host, variables: Mapping[str, str] | None = None, *, says: subprocess.CompletedProcess[str] | None = None
) -> list[Finding]:
    with made_up(host):
        return list(gpus.gpus(variables or {}, use=lambda given: says or done(json.dumps(["12.8", [H100]]))))


def about(findings: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def test_a_gpu_with_other_processes_and_held_clocks() -> None:
    hot = State(temperature_c=88, held=("HwThermalSlowdown",), processes={4711: 0.5})
    card = Card(name=H100, uuid="GPU-1", bus=1, states={0.0: hot}, persistence=False, power_limit_w=500.0)
    found = about(examine(Host(cards=[card])), "GPU 0")

    assert [f.level for f in found] == ["ok", "warn", "warn", "note", "note"]
    assert found[0].found == f"{H100}, 1 GiB of 79.65 GiB in use, 88 C"
    assert "pid 4711" in found[1].found
    assert "temperature" in found[2].found
    assert "power limit 500 W, by default 700 W" in found[3].found


@pytest.mark.parametrize(
    ("host", "level", "text"),
    [
        ("no driver", "note", "none: there is no NVIDIA driver"),
        ("driver and library differ", "warn", "none: the NVIDIA driver and its library have different versions"),
        ("8xH100, four forbidden", "warn", "GPU 0, 1, 2, 3: this process may not use it"),
        ("8xH100, one lost", "warn", "GPU 5: lost"),
    ],
)
def test_what_does_not_answer_is_said_with_its_reason(host: str, level: str, text: str) -> None:
    [finding] = about(examine(HOSTS[host]), "GPU")

    assert finding.level == level
    assert finding.found.startswith(text)


def test_the_others_are_examined_all_the_same() -> None:
    found = examine(HOSTS["8xH100, one lost"])

    assert {f.subject for f in found if f.subject.startswith("GPU ")} == {f"GPU {i}" for i in (0, 1, 2, 3, 4, 6, 7)}
    assert about(found, "links")[0].found == "between GPUs: nvlink4x18"
    assert about(found, "hardware class")[0].found == "nvidia-h100-80gb-hbm3-nvlink4x18"


def test_memory_that_is_not_told_is_left_out() -> None:
    [first, *_] = about(examine(HOSTS["GB10"]), "GPU 0")

    assert first.found == "NVIDIA GB10, 30 C"


def test_what_is_visible_is_named() -> None:
    chosen = examine(HOSTS["8xH100"], {"CUDA_VISIBLE_DEVICES": "2"})
    none = examine(HOSTS["8xH100"], {"CUDA_VISIBLE_DEVICES": "0,0"})
    cut = examine(HOSTS["H100 in MIG"])

    assert about(chosen, "visible GPUs")[0].found == "GPU 2, CUDA_VISIBLE_DEVICES: '2'"
    assert about(none, "visible GPUs")[0].found.endswith("0 is named twice, and then there is none")
    assert about(none, "visible GPUs")[1].found == "none of 8, CUDA_VISIBLE_DEVICES is '0,0'"
    assert about(cut, "visible GPUs")[0].found == "the MIG slice MIG-0a of GPU 0, CUDA_VISIBLE_DEVICES: not set"


@pytest.mark.parametrize(
    ("says", "level", "text"),
    [
        (done(json.dumps(["12.8", [H100]])), "ok", "12.8 computes on 1 GPU"),
        (done(json.dumps([None, []])), "fail", "this torch is built without it"),
        (done(json.dumps(["12.8", []])), "warn", "torch computes on no GPU; the driver shows"),
        (
            done(stderr="x\nRuntimeError: CUDA error: no kernel image is available", code=1),
            "fail",
            "does not work: RuntimeError: CUDA error",
        ),
        (done(code=-6), "fail", "does not work: exit code -6"),
    ],
)
def test_whether_cuda_works(says: subprocess.CompletedProcess[str], level: str, text: str) -> None:
    host = Host(cards=[replace(HOSTS["H200"].cards[0], name=H100)])
    [finding] = about(examine(host, says=says), "CUDA")

    assert finding.level == level
    assert text in finding.found


def test_a_device_that_never_answers() -> None:
    def hang(variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("python", 120)

    with made_up(HOSTS["H200"]):
        [finding] = about(list(gpus.gpus({}, use=hang)), "CUDA")

    assert (finding.level, finding.found) == ("fail", "no answer within 120 s")


def test_torch_is_asked_with_the_variables_of_ranks() -> None:
    asked: list[Mapping[str, str]] = []
    with made_up(HOSTS["H100 in MIG"]):
        list(gpus.gpus({"HOME": "/"}, use=lambda given: asked.append(given) or done(json.dumps(["12.8", []]))))

    assert asked == [{"HOME": "/", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "MIG-0a"}]


def test_this_torch_answers_in_a_process_of_its_own() -> None:
    version, names = json.loads(gpus.use_every_device({"CUDA_VISIBLE_DEVICES": ""}).stdout)

    assert version is None or isinstance(version, str)
    assert names == []

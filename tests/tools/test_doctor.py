"""``distbench doctor``: is this machine fit to measure? Each check says what it found, and what to do about it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.nvml import HOSTS, Card, Host, State, mi300xs, simulated
from support.stores import KEY, TEST, entry

from pytest_distbench.commands import NegativeError
from pytest_distbench.commands.cli import main
from pytest_distbench.machine import hardware
from pytest_distbench.records.run import Finding
from pytest_distbench.releases import NEWEST_TORCH, OLDEST_TORCH, TESTED, text
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.tools import doctor
from pytest_distbench.tools.doctor import Level, found, release, report


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        (["warn", "warn"], "2 warnings: usable, but expect noisy timings"),
        (["fail"], "1 failed, so tests cannot run here yet; 0 warnings"),
        (["fail", "warn"], "1 failed, so tests cannot run here yet; 1 warning"),
    ],
)
def test_warnings_are_counted(levels: list[Level], text: str) -> None:
    lines = []
    with pytest.raises(NegativeError) if "fail" in levels else contextlib.nullcontext():
        for line in report(found(level, "x", "y") for level in levels):
            lines.append(line)

    assert lines[-1].startswith(text)


H100 = "NVIDIA H100 80GB HBM3"


def done(stdout: str = "", stderr: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, stdout=stdout, stderr=stderr)


def examine(
    host: Host, variables: Mapping[str, str] | None = None, *, says: subprocess.CompletedProcess[str] | None = None
) -> list[Finding]:
    with simulated(host):
        return list(doctor.gpus(variables or {}, use=lambda given: says or done(json.dumps(["12.8", [H100]]))))


def about(findings: list[Finding], subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.case == subject]


def test_a_gpu_with_other_processes_and_throttling_is_reported() -> None:
    hot = State(temperature_c=88, held=("HwThermalSlowdown",), processes={4711: 0.5})
    card = Card(name=H100, uuid="GPU-1", bus=1, states={0.0: hot}, persistence=False, power_limit_w=500.0)
    found = about(examine(Host(cards=[card])), "GPU 0")

    assert [f.code for f in found] == ["ok", "warn", "warn", "note", "note"]
    assert found[0].reason == f"{H100}, 1 GiB of 79.65 GiB in use, 88 C"
    assert "pid 4711" in found[1].reason
    assert "temperature" in found[2].reason
    assert "power limit 500 W, by default 700 W" in found[3].reason


def test_a_gpu_of_amd_is_examined_as_others_are_and_nobody_is_sent_to_nvidia() -> None:
    hot = State(held=("HwThermalSlowdown",), processes={4711: 0.5})
    card = replace(mi300xs(1)[0], states={0.0: hot}, power_limit_w=500.0)
    names = done(json.dumps(["7.0.51831", ["AMD Instinct MI300X"]]))
    findings = examine(Host(cards=[card], driver="6.12.12", maker="AMD"), says=names)

    assert [f.code for f in about(findings, "GPU 0")] == ["ok", "warn", "warn", "note"]
    assert about(findings, "AMD driver")[0].reason == "6.12.12"
    assert about(findings, "platform")[0].reason == "amd-instinct-mi300x-500w"
    assert about(findings, "CUDA")[0].reason == "7.0.51831 computes on 1 GPU"
    assert "sudo amd-smi set --power-cap" in about(findings, "GPU 0")[3].differences[0]
    assert not [f for f in findings if "nvidia" in str(f).lower()]


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

    assert finding.code == level
    assert finding.reason.startswith(text)


def test_the_others_are_examined_all_the_same() -> None:
    found = examine(HOSTS["8xH100, one lost"])

    assert {f.case for f in found if f.case.startswith("GPU ")} == {f"GPU {i}" for i in (0, 1, 2, 3, 4, 6, 7)}
    assert about(found, "links")[0].reason == "between GPUs: nvlink4x18"
    assert about(found, "platform")[0].reason == "nvidia-h100-80gb-hbm3-nvlink4x18"


def test_what_is_visible_is_named() -> None:
    chosen = examine(HOSTS["8xH100"], {"CUDA_VISIBLE_DEVICES": "2"})
    none = examine(HOSTS["8xH100"], {"CUDA_VISIBLE_DEVICES": "0,0"})
    cut = examine(HOSTS["H100 in MIG"])

    assert about(chosen, "visible GPUs")[0].reason == "GPU 2, CUDA_VISIBLE_DEVICES is '2'"
    assert about(none, "visible GPUs")[0].reason.endswith("0 is named twice, and then there is none")
    assert about(none, "visible GPUs")[1].reason == "none of 8, CUDA_VISIBLE_DEVICES is '0,0'"
    assert about(cut, "visible GPUs")[0].reason == "the MIG slice MIG-0a of GPU 0, CUDA_VISIBLE_DEVICES is not set"


NO_KERNEL = done(stderr="x\nRuntimeError: CUDA error: no kernel image is available", code=1)


@pytest.mark.parametrize(
    ("says", "level", "text"),
    [
        (done(json.dumps(["12.8", [H100]])), "ok", "12.8 computes on 1 GPU"),
        (done(json.dumps([None, []])), "fail", "this torch is built without CUDA"),
        (done(json.dumps(["12.8", []])), "warn", "torch computes on no GPU; the driver shows"),
        (NO_KERNEL, "fail", "does not work: RuntimeError: CUDA error"),
        (done(code=-6), "fail", "does not work: exit code -6"),
    ],
)
def test_whether_cuda_works(says: subprocess.CompletedProcess[str], level: str, text: str) -> None:
    host = Host(cards=[replace(HOSTS["H200"].cards[0], name=H100)])
    [finding] = about(examine(host, says=says), "CUDA")

    assert finding.code == level
    assert text in finding.reason


def test_a_device_that_never_answers() -> None:
    def hang(variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("python", 120)

    with simulated(HOSTS["H200"]):
        [finding] = about(list(doctor.gpus({}, use=hang)), "CUDA")

    assert (finding.code, finding.reason) == ("fail", "no answer within 120 s")


def test_torch_is_asked_with_the_variables_of_ranks() -> None:
    asked: list[Mapping[str, str]] = []
    with simulated(HOSTS["H100 in MIG"]):
        list(doctor.gpus({"HOME": "/"}, use=lambda given: asked.append(given) or done(json.dumps(["12.8", []]))))

    assert asked == [{"HOME": "/", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "MIG-0a"}]


def test_this_torch_answers_in_a_process_of_its_own() -> None:
    version, names = json.loads(doctor.use_every_device({"CUDA_VISIBLE_DEVICES": ""}).stdout)

    assert version is None or isinstance(version, str)
    assert names == []


def only(findings: Iterator[Finding]) -> Finding:
    (found,) = findings
    return found


@pytest.mark.parametrize(
    ("files", "level", "text"),
    [
        ({"cpu.max": "50000 100000"}, "warn", "0.5 CPUs of"),
        ({"cpu.max": "max 100000"}, "ok", "none"),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "warn", "0.5 CPUs of"),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "ok", "none"),
        ({"cpu.max": "nonsense"}, "ok", "none"),
        ({}, "ok", "none"),
    ],
)
def test_the_quota_of_the_container(tmp_path: Path, files: dict[str, str], level: str, text: str) -> None:
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    found = only(doctor.container_limits(tmp_path))

    assert found.code == level
    assert text in found.reason


def test_a_quiet_machine_is_well_and_others_are_named() -> None:
    assert only(doctor.other_work([(0.05, "sshd", 7)])).code == "ok"

    busy = only(doctor.other_work([(1.5, "train.py", 42), (0.1, "sshd", 7)]))
    assert busy.code == "warn"
    assert "1.60 of" in busy.reason
    assert "train.py (pid 42) 1.50" in busy.reason

    lines = list(report(iter([found("ok", "clock", "tsc"), found("warn", "memory", "little", "buy more")])))
    assert lines[0].split() == ["ok", "clock", "tsc"]
    assert lines[2].strip() == "-> buy more"
    assert lines[-1].startswith("1 warning: ")


@pytest.mark.parametrize(
    ("free_mib", "gpus", "level"),
    [
        (64, 0, "warn"),
        (65, 0, "ok"),
        (64, 1, "warn"),
        (200, 8, "warn"),
        (320, 8, "warn"),
        (321, 8, "ok"),
        (200, 4, "ok"),
    ],
)
def test_shared_memory_has_to_do_for_nccl_on_each_gpu(
    monkeypatch: pytest.MonkeyPatch, free_mib: int, gpus: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free_mib * 2**20))
    found = only(doctor.shared_memory(Path("/dev/shm"), gpus=gpus))

    assert found.code == level
    assert ("emptyDir" in str(found.differences)) == (level == "warn")


@pytest.mark.parametrize(
    ("torch", "python", "level", "found", "advice"),
    [
        (f"{text(NEWEST_TORCH)}.1+cu130", TESTED[NEWEST_TORCH][0], "ok", "is tested with Python", ""),
        (f"{text(NEWEST_TORCH)}.0", "3.99.1", "note", "not 3.99", ""),
        ("9.0.0", "3.13.0", "note", f"the nearest is {text(NEWEST_TORCH)}, with", "versions.py"),
        ("1.13.1", "3.11.7", "fail", "torch 1.13.1; ranks need", f"pip install 'torch>={text(OLDEST_TORCH)}'"),
    ],
)
def test_a_release_of_torch_is_tested_or_reported_with_the_nearest(
    torch: str, python: str, level: str, found: str, advice: str
) -> None:
    first, *_ = release(torch, f"{python}.1")

    assert first.code == level
    assert found in first.reason
    assert advice in str(first.differences)


def test_features_that_a_release_lacks_are_reported() -> None:
    _, *lacks = release(f"{text(OLDEST_TORCH)}.0", TESTED[OLDEST_TORCH][0])

    assert [(lack.code, lack.reason.partition("lacks")[0]) for lack in lacks] == [("note", "no distbench_numa_binding")]


@pytest.mark.spawn
def test_this_machine_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    output = capsys.readouterr().out

    for subject in ("processor", "other processes", "open files", "loopback", "versions", "torch", "leftovers"):
        assert f" {subject} " in output
    assert code == 0


def test_a_machine_that_cannot_run_tests_is_exit_code_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = found("fail", "loopback", "down\x1b[2J", "ip link set lo up")
    monkeypatch.setattr(doctor, "examine", lambda **_: iter([finding]))

    assert main(["doctor"]) == 1
    assert "down\\x1b[2J" in capsys.readouterr().out


def test_the_baselines_of_this_machine_say_how_small_a_slowdown_they_detect(tmp_path: Path) -> None:
    store = Baselines(tmp_path, hardware.cpu_class())
    assert not list(doctor.baselines(tmp_path, {}))

    store.write(TEST, KEY, entry(1.0, 1.0, 1.0, tolerance=0.3))
    [steady] = doctor.baselines(tmp_path, {})
    assert (steady.code, steady.differences) == ("ok", [])
    text = f"{TEST}[{KEY}] step: noise 0 %: this baseline alone detects slowdowns above 30 %, with A/B about 30 %"
    assert steady.reason.endswith(text)

    path = store.write(TEST, "ws4.gloo.warm", entry(1.0, 2.0, 0.5))
    [noisy] = doctor.baselines(tmp_path, {})
    assert (noisy.code, "(median of 2 cases)" in noisy.reason, bool(noisy.differences)) == ("note", True, True)

    path.write_text("{")
    [unreadable] = doctor.baselines(tmp_path, {})
    assert (unreadable.code, str(path) in unreadable.reason) == ("warn", True)


def test_memory_that_is_not_reported_is_left_out() -> None:
    [first, *_] = about(examine(HOSTS["GB10"]), "GPU 0")

    assert first.reason == "NVIDIA GB10, 30 C"


def test_without_shared_memory_there_is_advice(tmp_path: Path) -> None:
    assert only(doctor.shared_memory(tmp_path / "none", gpus=0)).code == "warn"

"""What machine this is, where it is reached, and which Pythons it has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.machine import hardware
from pytest_distbench.machine.gpus import slug
from pytest_distbench.machine.hardware import find_interpreter, host_name, mask_addresses
from pytest_distbench.machine.secrets import MASK

VERSION_4 = [
    "{}",
    "IP: {}",
    "{}:29500",
    "http://{}/logs",
    "tcp://{}:1234,x",
    "nodes {}, {} and {}.",
    "({})",
    "NCCL_COMM_ID={}",
]
VERSION_6 = ["fe80::1", "2001:db8::8a2e:370:7334", "2001:db8:0:0:0:0:0:1", "::ffff:10.0.0.1"]


@pytest.mark.parametrize(
    ("text", "address"),
    [*((text, "10.1.22.133") for text in VERSION_4), *(("at {}, [{}]:80 and {}.", address) for address in VERSION_6)],
)
def test_an_address_is_masked_and_the_rest_stays(text: str, address: str) -> None:
    assert mask_addresses(text.replace("{}", address)) == text.replace("{}", MASK)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:29500",
        "0.0.0.0",
        "::1",
        "tests/test_a.py::test_b",
        "test_a.py::bad::add",
        "12:34:56",
        "2026-01-02T03:04:05+00:00",
        "version 9.1.0.70",
        "cuDNN 9.1.0.70",
        "nccl==2.27.3.1",
        "torch 2.13.0.1",
        "local@ws1 and workers@ws2: slower",
        "1.2.3.4.5",
        "v1.2.3.4",
        "300.1.2.3",
        "hf://org/name@main",
        "https://cloud.example.org/console",
        "lr=0.1, 0.01, 0.001",
    ],
)
def test_what_only_looks_like_an_address_and_what_means_the_same_everywhere_stays(text: str) -> None:
    assert mask_addresses(text) == text


def test_this_machines_name_is_the_kernels_and_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_name() == os.uname().nodename

    monkeypatch.setattr(hardware, "host_name", lambda: "node7")
    assert mask_addresses("node7, node7.cluster.local:80; node70, a-node7") == f"{MASK}, {MASK}:80; node70, a-node7"
    assert mask_addresses("ssh ada@login.example.org:x") == f"ssh ada@{MASK}:x"

    assert mask_addresses("alice@host7:/data, root@gpu-12:~/x") == f"alice@{MASK}:/data, root@{MASK}:~/x"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("hello", "does not answer as a Python 3 does: hello"),
        ('[[3, 12, 1], {"torch": "2.4.1", "numpy": "2", "msgspec": "1", "psutil": "7"}, []]', "2.4.1; ranks need 2"),
        ('[[3, 9, 1], {"torch": "2.9"}, []]', "Python 3.9.1; ranks need 3.11 or later"),
        (
            '[[3, 12, 1], {"torch": "2.9", "numpy": "2"}, []]',
            "it lacks msgspec, psutil; .*-m pip install msgspec psutil",
        ),
    ],
)
def test_a_python_that_cannot_run_ranks_is_refused(tmp_path: Path, answer: str, said: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho '{answer}'\n")
    fake.chmod(0o755)

    with pytest.raises(ConfigurationError, match=said):
        find_interpreter("python", tmp_path)


def test_the_platform_of_a_cpu_has_its_cores_and_no_frequency() -> None:
    assert hardware.cpu_class() == f"cpu-{slug(hardware.cpu_name())}-{hardware.cores()}c"
    assert slug("AMD EPYC f25m1") == "amd-epyc-f25m1"

    assert "@" not in hardware.cpu_name()
    assert "GHz" not in hardware.cpu_name()

    assert "torch" in str(find_interpreter(sys.executable, Path()))


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b"])
def test_a_platform_name_is_one_folder(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a usable name"):
        hardware.check_platform_name(name)


def test_only_allowed_variables_are_recorded_and_no_secret() -> None:
    recorded = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDNN_LOGLEVEL_DBG": "0",
        "NCCL_DEBUG": "INFO",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": "1",
    }
    secret = {
        "TORCH_AUTH_TOKEN": "s3cret",
        "CUDA_HOME": "/usr/local/cuda",
        "NCCL_MYPASSFILE": "s3cret",
        "NCCL_PWD": "s3cret",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "HOME": "/home/me",
    }
    addresses = {"GLOO_PROXY": "http://user:hunter2@host/", "NCCL_COMM_ID": "10.1.2.3:29500"}
    masked = {"GLOO_PROXY": "http://host/", "NCCL_COMM_ID": "***:29500"}

    assert hardware.variables_to_record(recorded | secret | addresses) == recorded | masked


def test_the_system_has_its_os_its_firmware_and_its_machine(tmp_path: Path) -> None:
    dmi = tmp_path / "sys" / "class" / "dmi" / "id"
    dmi.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text('ID=ubuntu\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\nVERSION_ID="24.04"\n')
    vendors = {"bios_vendor": "Amazon EC2\n", "sys_vendor": "Amazon EC2\n"}
    others = {"bios_version": "1.0\n", "product_serial": "ec2-1\n", "product_name": "p3.16xlarge\n"}
    for name, text in (vendors | others).items():
        (dmi / name).write_text(text)
    found = hardware.system(tmp_path)

    assert found.pop("kernel").startswith("Linux ")
    assert found == {"OS": "Ubuntu 24.04.1 LTS", "firmware": "Amazon EC2 1.0", "machine": "Amazon EC2 p3.16xlarge"}


@pytest.mark.parametrize(
    ("meminfo", "allowed", "memory"),
    [
        ("MemTotal:       16384000 kB\nMemFree:  1 kB\n", "", "15.62 GiB"),
        ("MemTotal:       16384000 kB\n", "max\n", "15.62 GiB"),
        ("MemTotal:       16384000 kB\n", "2147483648\n", "2 GiB"),
        ("MemTotal:       1024 kB\n", "2147483648\n", "1 MiB"),
        ("", "4294967296\n", "4 GiB"),
        ("nonsense", "", None),
    ],
)
def test_memory_is_the_hosts_or_what_the_control_group_allows(
    tmp_path: Path, meminfo: str, allowed: str, memory: str | None
) -> None:
    for name, text in {"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": allowed}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)

    assert hardware.system(tmp_path).get("memory") == memory


def test_a_system_without_files_has_its_kernel_alone(tmp_path: Path) -> None:
    assert list(hardware.system(tmp_path)) == ["kernel"]

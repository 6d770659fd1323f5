"""Addresses and host names leave a text, and what looks like one stays."""

from __future__ import annotations

import os

import pytest

from pytest_distbench.machine import addresses
from pytest_distbench.machine.addresses import host_name, mask_addresses
from pytest_distbench.machine.secrets import MASK


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "IP: {}",
        "{}:29500",
        "http://{}/logs",
        "tcp://{}:1234,x",
        "nodes {}, {} and {}.",
        "({})",
        "NCCL_COMM_ID={}",
    ],
)
def test_an_address_of_version_4_is_masked_and_the_rest_stays(text: str) -> None:
    assert mask_addresses(text.replace("{}", "10.1.22.133")) == text.replace("{}", MASK)


@pytest.mark.parametrize("address", ["fe80::1", "2001:db8::8a2e:370:7334", "2001:db8:0:0:0:0:0:1", "::ffff:10.0.0.1"])
def test_so_is_one_of_version_6(address: str) -> None:
    assert mask_addresses(f"at {address}, [{address}]:80 and {address}.") == f"at {MASK}, [{MASK}]:80 and {MASK}."


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
        "local@ws1 beside workers@ws2: slower",
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


def test_this_machines_name_is_masked_and_so_is_the_host_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "host_name", lambda: "node7")

    assert mask_addresses("node7, node7.cluster.local:80; node70, a-node7") == f"{MASK}, {MASK}:80; node70, a-node7"
    assert mask_addresses("ssh ada@login.example.org:x") == f"ssh ada@{MASK}:x"


def test_the_name_of_this_machine_is_the_kernels() -> None:
    assert host_name() == os.uname().nodename


def test_a_host_behind_a_user_is_masked_where_a_path_follows_it() -> None:
    assert mask_addresses("alice@host7:/data, root@gpu-12:~/x") == f"alice@{MASK}:/data, root@{MASK}:~/x"

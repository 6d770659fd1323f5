"""Which devices are visible: as torch reads the variable, and as NVIDIA's guide says of MIG."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.nvml import HOSTS, made_up

from pytest_distbench.machine.gpus import read_gpus

WHOLE = [
    name for name, host in HOSTS.items() if host.cards and all(not c.trouble and c.mig is None for c in host.cards)
]
"""Hosts of which torch can tell what is visible: all their GPUs answer, and none is cut."""
SETTINGS = [
    None, "", "0", "1", "0,1", "1,0", "7,2", "0,0", "0,1,0", "0,7,1", "8", "-1", "0,-1,1", " 1 , 0 ", "+1", "1gpu2,0",
    "GPU-0001", "GPU-0001,GPU-0000", "GPU-0001,GPU-0001", "GPU-0001,GPU-0001aaaa", "GPU-000", "GPU-0000, GPU-0001",
    "GPU-0000,1", "0,GPU-0001", "GPU-3090b,GPU-3090a", "GPU-", "NoDevFiles", ",0", "0,", "0,,1",
]  # fmt: skip


def uuids_by_torch(monkeypatch: pytest.MonkeyPatch, host: str, setting: str | None) -> list[str]:
    """What torch makes of the variable, on a machine whose GPUs it counts by the bus."""
    uuids = [card.uuid for card in sorted(HOSTS[host].cards, key=lambda card: card.bus)]
    if setting is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: uuids)
    chosen = torch.cuda._parse_visible_devices()
    if chosen and isinstance(chosen[0], str):
        chosen = torch.cuda._transform_uuid_to_ordinals(chosen, uuids)
    return [uuids[i] for i in chosen[: torch.cuda._device_count_nvml()]]


def visible(host: str, variables: Mapping[str, str]) -> list[str]:
    with made_up(HOSTS[host]):
        return [gpu.uuid for gpu in read_gpus(variables).visible]


def variables(setting: str | None) -> dict[str, str]:
    return {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}


@pytest.mark.parametrize("host", WHOLE)
def test_the_variable_is_read_as_torch_reads_it(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    for setting in SETTINGS:
        assert visible(host, variables(setting)) == uuids_by_torch(monkeypatch, host, setting), setting


@pytest.mark.parametrize(
    ("host", "setting", "uuids"),
    [
        ("H100 in MIG", None, ["MIG-0a"]),
        ("H100 in MIG", "0", ["MIG-0a"]),
        ("H100 in MIG", "1", []),
        ("H100 in MIG", "MIG-0b", ["MIG-0b"]),
        ("H100 in MIG", "MIG-0b,MIG-0a", ["MIG-0b"]),
        ("H100 in MIG", "MIG-0", []),
        ("H100 in MIG", "MIG-9", []),
        ("H100 in MIG", "MIG-GPU-0000aaaa/8/0", ["MIG-0b"]),
        ("H100 in MIG", "MIG-GPU-0000aaaa/1/0", []),
        ("H100 in MIG", "GPU-0000", ["MIG-0a"]),
        ("8xH100 in MIG", None, ["MIG-0a"]),
        ("8xH100 in MIG", "3", ["MIG-3a"]),
        ("8xH100 in MIG", "0,1,2,3", ["MIG-0a"]),
        ("H100 beside one in MIG", None, ["MIG-0a"]),
        ("H100 beside one in MIG", "0", ["GPU-0000aaaa"]),
        ("H100 beside one in MIG", "0,1", ["MIG-0a"]),
        ("H100 in MIG without slices", None, []),
        ("8xH100, four forbidden", None, ["GPU-0004aaaa", "GPU-0005aaaa", "GPU-0006aaaa", "GPU-0007aaaa"]),
        ("8xH100, four forbidden", "0,1", ["GPU-0004aaaa", "GPU-0005aaaa"]),
        ("8xH100, four forbidden", "4", []),
        ("8xH100, four forbidden", "GPU-0001", []),
        ("8xH100, one lost", "GPU-0006", ["GPU-0006aaaa"]),
        ("8xH100, one mute", "0,1", ["GPU-0000aaaa", "GPU-0001aaaa"]),
    ],
)
def test_numbers_count_what_the_process_may_use_and_with_mig_cuda_shows_one_slice(
    host: str, setting: str | None, uuids: list[str]
) -> None:
    assert visible(host, variables(setting)) == uuids


def test_gpus_are_in_the_order_of_the_bus_unless_the_user_wants_the_fastest_first() -> None:
    mixed, slow, fast = "RTX 3060 and 4090", "GPU-3060", "GPU-4090"

    assert visible(mixed, {}) == [slow, fast]
    assert visible(mixed, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == [fast, slow]
    assert visible(mixed, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"}) == [slow]


@pytest.mark.parametrize(
    ("host", "setting", "why"),
    [
        ("8xH100", "0,0", "0 is named twice"),
        ("8xH100", "99", "there is no GPU 99 of 8 that count from 0"),
        ("8xH100", "0,99,1", "there is no GPU 99 of 8 that count from 0; the list ends there"),
        ("8xH100", "all", "'all' is no number of a GPU"),
        ("8xH100", "", "it is empty, which hides all"),
        ("8xH100", "GPU-000", "8 devices have a UUID that begins with GPU-000"),
        ("8xH100", "GPU-0001,GPU-9", "no device has the UUID GPU-9"),
        ("8xH100", "GPU-0001,GPU-0001aaaa", "GPU-0001aaaa names one twice"),
        ("8xH100", "GPU-0001,1", "'1' is no UUID such as the first"),
        ("H100 in MIG", "MIG-9", "no device has the UUID MIG-9"),
        ("H100 in MIG", "MIG-0", "2 devices have a UUID that begins with MIG-0"),
        ("H100 in MIG", "MIG-0b,MIG-0a", "of several MIG slices the first alone counts"),
        ("H100 in MIG without slices", None, "GPU 0: MIG is on and it has no slice"),
        ("H100 in MIG", None, ""),
        ("8xH100", None, ""),
        ("8xH100", "1,0", ""),
        ("8xH100", "GPU-0001,GPU-0000", ""),
    ],
)
def test_what_is_not_visible_is_told_with_the_reason(host: str, setting: str | None, why: str) -> None:
    with made_up(HOSTS[host]):
        remarks = read_gpus(variables(setting)).remarks

    assert len(remarks) == bool(why)
    assert why in "".join(remarks)


@given(st.from_regex(r"(GPU-)?[0-9ag,+ -]{0,12}(GPU-000[0-9])?", fullmatch=True))
def test_no_setting_is_read_otherwise(setting: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            expected = uuids_by_torch(monkeypatch, "8xH100", setting)
        except ValueError:  # torch stumbles over a sign alone
            return

    assert visible("8xH100", variables(setting)) == expected

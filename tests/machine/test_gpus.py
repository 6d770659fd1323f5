"""The GPUs that the driver shows, which of them are visible, and what joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.nvml import HOSTS, Card, Host, h100s, simulated

from pytest_distbench.machine.driver import DriverError
from pytest_distbench.machine.gpus import Gpus, connect, kinds, misplaced, peak_bytes_per_s, read_gpus


@pytest.mark.parametrize(
    ("trouble", "next_step"),
    [
        ("LIB_RM_VERSION_MISMATCH", "reboot"),
        ("LIBRARY_NOT_FOUND", "docker run --gpus all"),
        ("DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("NO_PERMISSION", "/dev/nvidiactl"),
        ("UNKNOWN", "NVML says: Unknown Error"),
    ],
)
def test_a_driver_that_cannot_be_asked_says_what_to_do(trouble: str, next_step: str) -> None:
    with simulated(Host(trouble=trouble)), pytest.raises(DriverError, match=next_step), connect():
        pass


def matrix(*cards: Card) -> list[list[str]]:
    with simulated(Host(cards=cards)):
        return [list(row) for row in read_gpus({}).links]


@pytest.mark.parametrize(("version", "generation"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 5)])
def test_an_nvlink_has_its_generation_and_the_number_of_links(version: int, generation: int) -> None:
    found = matrix(*(replace(card, nvlink=version) for card in h100s(2)))

    assert found[0][1] == f"nvlink{generation}x18"


def meshed(count: int, each: int) -> list[Card]:
    """GPUs of NVLink 3 that lead to each other directly, without switches."""
    uuids = [card.uuid for card in h100s(count)]
    return [
        replace(card, nvlink=5, nvlinks=tuple(u for u in uuids if u != card.uuid for _ in range(each)))
        for card in h100s(count)
    ]


@pytest.mark.parametrize(
    ("cards", "ranks", "gb_per_s"),
    [
        (h100s(8), 8, 450.0),
        (h100s(8), 2, 450.0),
        (h100s(8), 1, None),
        ([replace(card, nvlinks=card.nvlinks[:8]) for card in h100s(4)], 3, 200.0),  # as H800: fewer links
        ([replace(card, nvlink=7) for card in h100s(2)], 2, 900.0),
        ([replace(card, nvlink_mbps=26562) for card in h100s(2)], 2, 450.0),  # the wire, of which 25 GB/s are data
        (meshed(4, 4), 4, 300.0),
        (meshed(4, 4), 2, 100.0),  # the links to the others are of no use
        ([replace(card, nvlink_mbps=14062) for card in HOSTS["2xRTX 3090, bridged"].cards], 2, 56.248),
        (HOSTS["2xRTX 3090"].cards, 2, 15.752),
        (HOSTS["4xL40S"].cards, 4, 31.504),
        ([*h100s(2), replace(h100s(3)[2], nvlinks=())], 3, None),  # some by NVLink, some by PCIe
        ([replace(card, nvlink=0) for card in h100s(2)], 2, None),
        ([replace(card, nvlinks=(), lacks=frozenset({"GetMaxPcieLinkGeneration"})) for card in h100s(2)], 2, None),
    ],
)
def test_the_peak_of_the_links_is_what_a_gpu_can_send_to_the_others(
    cards: Sequence[Card], ranks: int, gb_per_s: float | None
) -> None:
    with simulated(Host(cards=cards)):
        found = read_gpus({})
    known = peak_bytes_per_s(found.visible[:ranks], found.links)

    assert known == (None if gb_per_s is None else pytest.approx(gb_per_s * 1e9))


def read(host: str, **variables: str) -> Gpus:
    with simulated(HOSTS[host]):
        return read_gpus(variables)


@pytest.mark.parametrize(
    ("host", "setting", "platform"),
    [
        ("H200", "0", "nvidia-h200"),
        ("8xH100", "0", "nvidia-h100-80gb-hbm3"),
        ("8xH100", "0,1,2,3,4,5,6,7", "nvidia-h100-80gb-hbm3-nvlink4x18"),
        ("8xH100, capped", "0,1", "nvidia-h100-80gb-hbm3-nvlink4x18-500w"),
        ("8xH100, capped", "0", "nvidia-h100-80gb-hbm3-500w"),
        ("H100 in MIG", "0", "nvidia-h100-80gb-hbm3-mig-1g.10gb"),
        ("2xRTX 3090", "0,1", "nvidia-geforce-rtx-3090-pcie4x8"),
        ("2xRTX 3090, bridged", "0,1", "nvidia-geforce-rtx-3090-nvlink3x4"),
        ("4xL40S", "0,1,2", "nvidia-l40s-pcie4x16-p2p"),
        ("RTX 3060 and 4090", "0", "nvidia-geforce-rtx-3060"),
        ("RTX 3060 and 4090", "1", "nvidia-geforce-rtx-4090"),
        ("RTX 3060 and 4090", "1,0", "nvidia-geforce-rtx-4090-and-nvidia-geforce-rtx-3060-pcie4x16"),
        ("GB10", "0", "nvidia-gb10"),
    ],
)
def test_the_platform_names_gpus_links_and_power_limit(host: str, setting: str, platform: str) -> None:
    assert read(host, CUDA_VISIBLE_DEVICES=setting).platform == platform


@pytest.mark.parametrize(
    ("host", "count", "unreadable"),
    [
        ("8xH100, four forbidden", 4, "GPU 0, 1, 2, 3: this process may not use it"),
        ("8xH100, one lost", 7, "GPU 5: lost"),
        ("8xH100, one mute", 7, "GPU 5: lost"),
    ],
)
def test_one_gpu_that_does_not_answer_hides_no_other(host: str, count: int, unreadable: str) -> None:
    found = read(host)

    assert (len(found.visible), found.count, found.failure) == (count, count, "")
    assert [reason[: len(unreadable)] for reason in found.unreadable] == [unreadable]


def test_a_gpu_and_a_mig_slice_are_described() -> None:
    found = read("8xH100", CUDA_VISIBLE_DEVICES="2")
    [gpu] = found.visible
    assert (found.driver, found.cuda) == ("570.124.06", "12.8")
    assert (gpu.index, gpu.pci, gpu.capability, gpu.pcie) == (2, "00000000:12:00.0", "9.0", "5x16")
    assert (gpu.memory_bytes, gpu.ecc, gpu.persistence) == (85520809984, True, True)
    assert (gpu.power_limit_w, gpu.default_power_limit_w) == (700.0, 700.0)

    [piece] = read("H100 in MIG", CUDA_VISIBLE_DEVICES="MIG-0b").visible
    assert (piece.name, piece.uuid) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-0b")
    assert (piece.slice_of, piece.memory_bytes) == ("GPU-0000aaaa", 9984 * 2**20)

    assert misplaced(read("H100 in MIG").visible, ["0000aaaa"]) == ""

    near, far = "pcie4x16-p2p PIX", "pcie4x16-p2p NODE"
    assert read("4xL40S", CUDA_VISIBLE_DEVICES="0,1,2").links == (("", near, far), (near, "", far), (far, far, ""))
    assert read("8xH100", CUDA_VISIBLE_DEVICES="3").links == ()


BY_BUS, FASTEST = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("host", "given", "ranks"),
    [
        ("8xH100", {}, BY_BUS),
        ("8xH100", FASTEST, FASTEST),
        ("RTX 3060 and 4090", {VISIBLE: "1"}, BY_BUS),
        ("RTX 3060 and 4090", {**FASTEST, VISIBLE: "0"}, {**FASTEST, VISIBLE: "GPU-4090"}),
        ("8xH100, four forbidden", {VISIBLE: "1,0"}, {**BY_BUS, VISIBLE: "GPU-0005aaaa,GPU-0004aaaa"}),
        ("8xH100, one lost", {VISIBLE: "GPU-0006"}, BY_BUS),
        ("8xH100 in MIG", {VISIBLE: "3"}, {**BY_BUS, VISIBLE: "MIG-3a"}),
    ],
)
def test_ranks_see_what_is_leased(host: str, given: dict[str, str], ranks: dict[str, str]) -> None:
    assert read(host, **given).variables == ranks


@pytest.mark.parametrize(
    ("used", "rank"),
    [
        (["0000aaaa", "0001aaaa"], None),
        (["GPU-0000AAAA", "GPU-0001aaaa"], None),
        (["", ""], None),
        ([], None),
        (["0001aaaa", "0000aaaa"], 0),
        (["0000aaaa", "0002aaaa"], 1),
    ],
)
def test_a_rank_that_computed_on_another_gpu_is_reported(used: list[str], rank: int | None) -> None:
    remark = misplaced(read("8xH100").visible, used)

    assert (
        remark.startswith(f"rank {rank} computed on the GPU {used[rank]}, and GPU-") if rank is not None else not remark
    )


def test_what_a_device_does_not_support_is_no_answer_and_left_open() -> None:
    with simulated(HOSTS["GB10"]), connect() as driver:
        handle = driver.demand("GetHandleByIndex", 0)

        assert driver.ask("GetName", handle) == "NVIDIA GB10"
        assert driver.ask("GetMemoryInfo", handle) is None
        assert driver.ask("GetWhatNoBindingHas", handle) is None

    [gpu] = read("GB10").visible

    assert (gpu.memory_bytes, gpu.power_limit_w, gpu.ecc) == (None, None, None)


def test_gpus_are_joined_by_the_links_that_lead_from_one_to_the_other() -> None:
    one, two = h100s(2)

    assert matrix(one, replace(two, nvlinks=two.nvlinks[:12]))[0][1] == "nvlink4x12"

    one, two, three = h100s(3)
    joined = [
        replace(one, nvlinks=(two.uuid,) * 4),
        replace(two, nvlinks=(one.uuid,) * 4),
        replace(three, nvlinks=(), pcie=(4, 8)),
    ]
    found = matrix(*joined)

    assert [row[2] for row in found] == ["pcie4x8 NODE", "pcie4x8 NODE", ""]
    assert kinds(found) == ["nvlink4x4", "pcie4x8"]

    silent = frozenset({"GetP2PStatus", "GetTopologyCommonAncestor", "GetMaxPcieLinkGeneration", "GetNvLinkState"})

    assert matrix(*(replace(card, lacks=silent) for card in h100s(2))) == [["", "pcie"], ["pcie", ""]]


@pytest.mark.parametrize(
    ("host", "failure"),
    [
        ("no driver", "there is no NVIDIA driver"),
        ("driver not loaded", "the NVIDIA driver is not loaded"),
        ("driver and library differ", "the NVIDIA driver and its library have different versions"),
    ],
)
def test_a_driver_that_does_not_answer_says_why(host: str, failure: str) -> None:
    found = read(host)

    assert found.failure.startswith(failure)
    assert found.visible == ()


WHOLE = [
    name for name, host in HOSTS.items() if host.cards and all(not c.trouble and c.mig is None for c in host.cards)
]
"""Hosts on which torch can say what is visible: all their GPUs answer, and none is cut."""
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
    with simulated(HOSTS[host]):
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
        ("H100 and one in MIG", None, ["MIG-0a"]),
        ("H100 and one in MIG", "0", ["GPU-0000aaaa"]),
        ("H100 and one in MIG", "0,1", ["MIG-0a"]),
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
def test_a_gpu_that_is_not_visible_is_reported_with_the_reason(host: str, setting: str | None, why: str) -> None:
    with simulated(HOSTS[host]):
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

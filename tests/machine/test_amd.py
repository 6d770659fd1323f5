"""AMD's GPUs, by a simulated amdsmi: the same contract as of NVIDIA's."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.nvml import HOSTS, IDLE, Host, State, mi300xs, simulated

from pytest_distbench import releases
from pytest_distbench.launch.site.local import gpu_memory
from pytest_distbench.machine import gpus
from pytest_distbench.machine.amd import _capability
from pytest_distbench.machine.gpu_watch import GpuWatch, memory_of
from pytest_distbench.machine.gpus import Gpus, misplaced, peak_bytes_per_s, read_gpus

NAMES = [card.uuid for card in mi300xs(8)]


def read(host: str = "8xMI300X", **variables: str) -> Gpus:
    with simulated(HOSTS[host]):
        return read_gpus(variables)


def test_a_card_is_described_and_its_platform_named() -> None:
    found = read()
    first = found.visible[0]

    assert (first.name, first.uuid, first.pci) == ("AMD Instinct MI300X", "GPU-00000000000000a0", "0000:05:00.0")
    assert (first.capability, first.pcie, first.power_limit_w, first.is_capped) == ("9.4", "5x16", 750.0, False)
    assert first.memory_bytes == 196592 * 2**20
    assert (found.maker, found.driver, found.cuda) == ("AMD", "6.12.12", "")
    assert found.platform == "amd-instinct-mi300x-xgmix1"
    assert found.links[0][1] == "xgmix1"
    assert peak_bytes_per_s(found.visible, found.links) == 7 * 64e9
    assert found.variables == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("variables", "numbers", "remark"),
    [
        ({}, range(8), ""),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, [3, 1], ""),
        ({"HIP_VISIBLE_DEVICES": "3,1", "CUDA_VISIBLE_DEVICES": "5"}, [3, 1], ""),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, [6, 4], ""),
        ({"ROCR_VISIBLE_DEVICES": f"{NAMES[7]},{NAMES[2]}"}, [7, 2], ""),
        ({"ROCR_VISIBLE_DEVICES": "4", "HIP_VISIBLE_DEVICES": "1"}, [], "HIP_VISIBLE_DEVICES: there is no GPU 1 of 1"),
        ({"ROCR_VISIBLE_DEVICES": "9"}, [], "ROCR_VISIBLE_DEVICES: there is no GPU 9 of 8"),
    ],
)
def test_rocr_chooses_first_and_hip_among_what_it_leaves(
    variables: dict[str, str], numbers: list[int], remark: str
) -> None:
    found = read(**variables)

    assert [gpu.uuid for gpu in found.visible] == [NAMES[number] for number in numbers]
    assert len(found.remarks) == bool(remark)
    assert remark in "".join(found.remarks)
    told = ", ".join(f"{name} is {value!r}" for name, value in sorted(variables.items(), reverse=True))
    assert found.setting == told or not variables


def test_without_a_variable_all_three_are_named() -> None:
    assert read().setting == "ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES are not set"


def test_a_lost_card_silences_no_other() -> None:
    found = read("8xMI300X, one lost")

    assert len(found.visible) == 7
    assert found.unreadable == ("GPU 5: the driver could not restart it; see dmesg, and reboot",)


def test_an_unknown_error_has_the_words_of_amdsmi() -> None:
    cards = [replace(mi300xs(1)[0], trouble="IO")]
    with simulated(Host(cards=cards, maker="AMD")):
        assert "amdsmi says: Error code: 1 | AMDSMI_STATUS_IO - in words" in read_gpus({}).unreadable[0]


def test_a_driver_that_does_not_answer_is_reported_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody with GPUs of AMD is sent to a driver of NVIDIA."""
    loaded = read("amdgpu not loaded")
    monkeypatch.setattr(gpus, "hip_version", lambda: "6.4")
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    absent = read_gpus({})

    assert not loaded.is_absent
    assert "sudo modprobe amdgpu" in loaded.failure
    assert absent.is_absent
    assert "pip install /opt/rocm/share/amd_smi" in absent.failure
    assert not [text for text in (loaded.failure, absent.failure) if "nvidia" in text.lower()]


def test_frequencies_power_throttling_and_other_processes_are_watched() -> None:
    busy = State(
        sm_mhz=1700, power_w=740.0, held=("SwPowerCap",), used_bytes=5 * 2**30, processes={7: 1.0}, bytes_of={7: 9}
    )
    card = replace(mi300xs(1)[0], states={0.0: IDLE, 1.0: busy})
    with simulated(Host(cards=[card], maker="AMD")) as driver:
        watch = GpuWatch(read_gpus({}).visible, {7: True}.get, lambda pid: "")
        driver.seconds = lambda: 0.5
        with watch.during(1) as seen:
            driver.seconds = lambda: 2.0
        assert watch.memory_in_use(1) == {"GPU 0": 5 * 2**30}
        assert memory_of(7, card.uuid) == 9
        assert gpu_memory([7]) == {7: 9}
        watch.close()

    assert (seen[0].sm_mhz, seen[0].memory_mhz, seen[0].power_w, seen[0].utilisation) == (1700, 2619, 740.0, 1.0)
    assert seen[0].held == {"power cap": 1.0}
    assert [other for other in seen[0].others if "pid 7" in other] == seen[0].others != []
    assert (seen[0].power_limit_w, seen[0].sm_limit_mhz) == (750.0, None)


def test_an_older_amdsmi_without_a_function_says_less() -> None:
    with simulated(HOSTS["8xMI300X"]):
        smi: Any = sys.modules["amdsmi"]
        for name in ("amdsmi_get_gpu_enumeration_info", "amdsmi_get_link_metrics", "amdsmi_get_violation_status"):
            delattr(smi, name)
        found = read_gpus({})

    assert [gpu.uuid for gpu in found.visible] == NAMES  # in the order of the bus
    assert found.platform == "amd-instinct-mi300x-pcie5x16-p2p"


def test_a_rank_on_another_card_is_seen_by_the_uuid_that_torch_spells_in_bytes() -> None:
    """torch takes the 16 letters of HIP's UUID for the bytes of one."""
    first = read().visible[:1]
    spelled = NAMES[0].removeprefix("GPU-").encode().hex()
    uuid = f"{spelled[:8]}-{spelled[8:12]}-{spelled[12:16]}-{spelled[16:20]}-{spelled[20:]}"

    assert misplaced(first, [uuid]) == ""
    assert misplaced(first, [uuid.replace("6130", "6131")]) != ""


@pytest.mark.parametrize(
    ("target", "capability"), [("gfx942", (9, 4)), ("gfx90a", (9, 0)), ("gfx1100", (11, 0)), ("gfx", None)]
)
def test_the_target_is_a_capability_as_torch_has_it(target: str, capability: tuple[int, int] | None) -> None:
    assert _capability(target) == capability


@pytest.mark.parametrize(
    ("line", "version"),
    [("hip: Optional[str] = '7.0.51831'", "7.0.51831"), ("hip: Optional[str] = None", ""), ("", "")],
)
def test_the_build_of_torch_is_read_without_importing_it(
    line: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.8.0+git1234567'\n{line}\n")
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)

    assert releases.hip_version.__wrapped__() == version

"""The state of GPUs while ranks run on them, as reported by a simulated driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest
from support.nvml import HOSTS, IDLE, SWITCH, Card, Host, State, simulated

from pytest_distbench.machine import gpu_watch
from pytest_distbench.machine.gpu_watch import GpuState, GpuWatch, await_memory, memory_of
from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.machine.hardware import cpu_name
from pytest_distbench.records.environment import Gpu, GpuReport

OURS, FOREIGN, UNKNOWN = 100, 200, 300
WHOSE = {OURS: False, FOREIGN: True, UNKNOWN: None}
BUSY = State(processes={OURS: 0.9})
GPU = Gpu(name="NVIDIA H200", uuid="GPU-1")


def watched(
    states: Mapping[float, State],
    moments: tuple[float, ...] = (0, 1, 2, 3),
    names: Mapping[int, str] | None = None,
    **changes: object,
) -> GpuReport:
    """The record of a GPU that was looked at in these moments."""
    card = Card(**{"name": "NVIDIA H200", "uuid": "GPU-1", "bus": 1, "states": states, **changes})  # type: ignore[arg-type]
    with simulated(Host(cards=[card])) as nvml:
        watch = GpuWatch(read_gpus({}).visible, WHOSE.get, lambda pid: (names or {}).get(pid, ""))
        looks: dict[str, list[GpuState]] = {"GPU-1": []}
        for moment in moments:
            nvml.seconds = lambda moment=moment: moment  # type: ignore[misc]
            watch.look(looks)
        watch.close()
    timed = [
        GpuState(**{f: getattr(look, f) for f in GpuState.__slots__} | {"at": moment})
        for look, moment in zip(looks["GPU-1"], moments, strict=True)
    ]
    return gpu_watch.summarise(GPU, timed)


def test_frequencies_and_throttling_are_those_of_a_gpu_at_work() -> None:
    found = watched({0: IDLE, 0.5: State(sm_mhz=1900, power_w=600.0, temperature_c=70), 2.5: IDLE})
    assert (found.sm_mhz, found.memory_mhz, found.power_w, found.utilisation) == (1900, 2619, 600.0, 1.0)
    assert (found.looks, found.temperature_c, found.held) == (2, 70, {})

    held = State(held=("HwThermalSlowdown",))
    assert watched({0: BUSY, 0.25: held, 0.75: BUSY}, (0, 1)).held == {"temperature": 0.5}

    found = watched({0: BUSY}, set_mhz=1200, power_limit_w=500.0)
    assert (found.sm_limit_mhz, found.power_limit_w) == (1200.0, 500.0)
    assert watched({0: BUSY}).sm_limit_mhz is None


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("SwPowerCap", "power cap"),
        ("HwThermalSlowdown", "temperature"),
        ("SwThermalSlowdown", "temperature"),
        ("HwPowerBrakeSlowdown", "power brake"),
    ],
)
def test_a_reason_for_throttling_has_its_share_of_the_looks(reason: str, name: str) -> None:
    held = State(sm_mhz=1200, held=(reason,))

    assert watched({0: BUSY, 1.5: held}, lacks=frozenset({"GetViolationStatus"})).held == {name: 0.667}


def test_other_processes_count_if_they_computed_or_if_that_is_unknown() -> None:
    [other] = watched({0: IDLE, 0.5: State(processes={OURS: 0.9, FOREIGN: 0.1})}).others
    assert str(FOREIGN) in other
    assert watched({0: IDLE, 0.5: State(processes={OURS: 0.9, FOREIGN: 0.0})}).others == []

    states = {0: IDLE, 0.5: State(processes={OURS: 0.9, FOREIGN: 0.0})}
    assert len(watched(states, lacks=frozenset({"GetProcessUtilization"})).others) == 1

    always = State(processes={UNKNOWN: 0.5})
    assert len(watched({0: always}).others) == 1
    assert watched({0: IDLE, 0.5: always, 2.5: IDLE}).others == []
    assert watched({0: IDLE, 0.5: always}).others == []


@pytest.mark.parametrize(
    ("names", "others", "by_mps"),
    [
        ({FOREIGN: "nvidia-cuda-mps-server"}, 0, True),
        ({FOREIGN: "nvidia-cuda-mps"}, 0, True),  # as the kernel cuts it
        ({OURS: "nvidia-cuda-mps-server"}, 0, True),  # of a run that has started MPS itself
        ({FOREIGN: "nvidia-smi"}, 1, False),
        ({FOREIGN: "python"}, 1, False),
        ({FOREIGN: ""}, 1, False),
        ({FOREIGN: "my-nvidia-cuda-mps"}, 1, False),
        ({7: "nvidia-cuda-mps-server", FOREIGN: "python"}, 1, True),  # a client of another's
    ],
)
def test_the_server_of_mps_computes_for_the_ranks(names: dict[int, str], others: int, by_mps: bool) -> None:
    found = watched({0: IDLE, 0.5: State(processes={OURS: 0.9, **dict.fromkeys(names, 0.9)})}, names=names)

    assert (len(found.others), found.by_mps) == (others, by_mps)


@pytest.mark.parametrize(
    ("pid", "uuid", "lacks", "num_bytes"),
    [
        (OURS, "GPU-1", (), 7 * 2**30),
        (FOREIGN, "GPU-1", (), 20 * 2**30),
        (UNKNOWN, "GPU-1", (), None),  # as on a MIG slice, and under Windows
        (4711, "GPU-1", (), None),
        (OURS, "GPU-2", (), None),
        (OURS, "GPU-1", ("GetComputeRunningProcesses",), None),
    ],
)
def test_what_a_process_has_in_use_is_told_apart_from_a_neighbours(
    pid: int, uuid: str, lacks: tuple[str, ...], num_bytes: int | None
) -> None:
    there = State(processes={OURS: 0.9, FOREIGN: 0.9, UNKNOWN: 0.0}, bytes_of={OURS: 7 * 2**30, FOREIGN: 20 * 2**30})
    card = Card(name="NVIDIA H200", uuid="GPU-1", bus=1, states={0.0: there}, lacks=frozenset(lacks))
    with simulated(Host(cards=[card])):
        assert memory_of(pid, uuid) == num_bytes
    with simulated(HOSTS["no driver"]):
        assert memory_of(pid, uuid) is None


def test_a_launch_is_watched_from_a_thread_of_its_own() -> None:
    card = Card(name="NVIDIA H200", uuid="GPU-1", bus=1, nvlinks=(SWITCH,), states={0.0: BUSY})
    with simulated(Host(cards=[card, card.__class__(name="NVIDIA H200", uuid="GPU-2", bus=2)])):
        watch = GpuWatch(read_gpus({}).visible, WHOSE.__getitem__)
        with watch.during(1) as cards:
            assert cards == []
            time.sleep(0.2)
        watch.close()

    assert [(c.uuid, c.host_cpu) for c in cards] == [("GPU-1", cpu_name())]
    assert cards[0].looks >= 2


def test_a_watch_without_a_driver_has_no_reports() -> None:
    with simulated(HOSTS["no driver"]):
        watch = GpuWatch([GPU])
        with watch.during(1) as cards:
            pass
        watch.close()

    assert cards == []


GIB = 2**30


def driver(held_until: Mapping[str, float]) -> tuple[Callable[[], float], Callable[[float], None], Callable[[], dict]]:
    """A clock that only sleep moves, and GPUs that hold 4 GiB more than before until a moment of it."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def read() -> dict[str, int]:
        return {gpu: GIB + 4 * GIB * (now[0] < until) for gpu, until in held_until.items()}

    return lambda: now[0], sleep, read


def test_memory_is_awaited_and_memory_that_stays_in_use_is_reported() -> None:
    clock, sleep, read = driver({"GPU 0": 0.0, "GPU 1": 3.0})
    assert await_memory(read, {"GPU 0": GIB, "GPU 1": GIB}, monotonic=clock, sleep=sleep) == {}
    assert 3.0 <= clock() < 3.5

    clock, sleep, read = driver({"GPU 0": 0.0, "GPU 1": 1000.0})
    assert await_memory(read, {"GPU 0": GIB, "GPU 1": GIB}, monotonic=clock, sleep=sleep) == {"GPU 1": 4 * GIB}
    assert gpu_watch.PATIENCE_S <= clock() < gpu_watch.PATIENCE_S + 1

    assert gpu_watch.held_remark("GPU 1", 4 * GIB, ["python (pid 12)"]).startswith(
        "GPU 1 holds 4 GiB more than before the launch, 20 s after its ranks were ended; on it: python (pid 12)."
    )
    assert "; no process is on it." in gpu_watch.held_remark("GPU 1", 4 * GIB, [])


def test_values_that_the_driver_does_not_report_are_none() -> None:
    assert watched({0: IDLE}).sm_mhz is None

    [card] = HOSTS["GB10"].cards
    found = watched({0: BUSY}, lacks=card.lacks | {"GetClock", "GetPowerUsage"}, power_limit_w=None)

    assert (found.utilisation, found.power_w, found.power_limit_w, found.sm_limit_mhz) == (None, None, None, None)
    assert found.sm_mhz == 1980


def test_little_memory_is_not_awaited_nor_a_gpu_that_no_longer_reports() -> None:
    at_once: dict[str, Callable] = {"monotonic": lambda: 0.0, "sleep": lambda seconds: pytest.fail("it waits")}
    for used in (0, GIB, GIB + gpu_watch.SLACK_BYTES):
        assert await_memory(lambda used=used: {"GPU 0": used}, {"GPU 0": GIB}, **at_once) == {}  # type: ignore[misc]
    assert await_memory(dict, {"GPU 0": GIB}, **at_once) == {}

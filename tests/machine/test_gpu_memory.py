"""Memory that ended ranks held is awaited, and named where it does not come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from pytest_distbench.machine.gpu_memory import PATIENCE_S, SLACK_BYTES, await_memory, held_remark

GIB = 2**30


def driver(held_until: Mapping[str, float]) -> tuple[Callable[[], float], Callable[[float], None], Callable[[], dict]]:
    """A clock that only sleep moves, and GPUs that hold 4 GiB more than before until a moment of it."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def read() -> dict[str, int]:
        return {gpu: GIB + 4 * GIB * (now[0] < until) for gpu, until in held_until.items()}

    return lambda: now[0], sleep, read


def test_it_is_waited_for() -> None:
    clock, sleep, read = driver({"GPU 0": 0.0, "GPU 1": 3.0})

    assert await_memory(read, {"GPU 0": GIB, "GPU 1": GIB}, clock=clock, sleep=sleep) == {}
    assert 3.0 <= clock() < 3.5


def test_what_does_not_come_back_is_told_after_so_long() -> None:
    clock, sleep, read = driver({"GPU 0": 0.0, "GPU 1": 1000.0})

    assert await_memory(read, {"GPU 0": GIB, "GPU 1": GIB}, clock=clock, sleep=sleep) == {"GPU 1": 4 * GIB}
    assert PATIENCE_S <= clock() < PATIENCE_S + 1


@pytest.fixture
def at_once() -> Mapping[str, object]:
    return {"clock": lambda: 0.0, "sleep": lambda seconds: pytest.fail("it waits")}


@pytest.mark.parametrize("used", [0, GIB, GIB + SLACK_BYTES], ids=["less", "as much", "a little more"])
def test_little_is_not_waited_for(at_once: Mapping[str, Callable], used: int) -> None:
    assert await_memory(lambda: {"GPU 0": used}, {"GPU 0": GIB}, **at_once) == {}


def test_a_gpu_that_no_longer_tells_is_not_waited_for(at_once: Mapping[str, Callable]) -> None:
    assert await_memory(dict, {"GPU 0": GIB}, **at_once) == {}


def test_the_remark_names_gpu_memory_and_processes() -> None:
    assert held_remark("GPU 1", 4 * GIB, ["python (pid 12)"]).startswith(
        "GPU 1 holds 4 GiB more than before the launch, 20 s after its ranks were ended; on it: python (pid 12)."
    )
    assert "; no process is on it." in held_remark("GPU 1", 4 * GIB, [])

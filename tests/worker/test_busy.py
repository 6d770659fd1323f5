"""How long the stream is kept busy: as long as the host needs, and no longer than helps."""

from __future__ import annotations

import pytest

from pytest_distbench.worker.busy import LONGEST_S, SHORTEST_S, BusyStream


class Loop:
    """Iterations that need so long to be enqueued; ``waits``: each waits for the device itself."""

    def __init__(self, host_s: float, *, waits: bool = False) -> None:
        self.held: list[float] = []
        self.busy = BusyStream(self.held.append)
        self.host_s = host_s
        self.waits = waits

    def run(self, iterations: int) -> list[bool]:
        """Whether it was enough, of each."""
        enough = []
        for _ in range(iterations):
            before = len(self.held)
            self.busy.hold()
            hold_s = self.held[-1] if len(self.held) > before else 0.0
            host_s = self.host_s + hold_s * self.waits
            enough.append(not self.waits and host_s < hold_s)
            self.busy.learn(host_s, was_enough=enough[-1])
        return enough


@pytest.mark.parametrize("host_s", [1e-6, 4e-5, 8e-5, 1e-3, 6e-3])
def test_one_iteration_teaches_how_long_it_takes(host_s: float) -> None:
    loop = Loop(host_s)

    assert all(loop.run(20)[1:])
    assert loop.held[-1] == pytest.approx(max(SHORTEST_S, 3 * host_s))


def test_after_a_slow_iteration_it_becomes_shorter_again() -> None:
    loop = Loop(5e-3)
    loop.run(3)
    loop.host_s = 2e-5
    loop.run(20)

    assert loop.held[-1] == pytest.approx(6e-5)


def test_of_a_loop_that_waits_for_the_device_it_is_given_up() -> None:
    loop = Loop(1e-4, waits=True)
    loop.run(100)

    assert len(loop.held) < 15
    assert max(loop.held) == LONGEST_S


def test_a_slow_first_iteration_is_no_reason_to_give_up() -> None:
    loop = Loop(1.0)
    loop.run(1)
    loop.host_s = 4e-5

    assert all(loop.run(20))

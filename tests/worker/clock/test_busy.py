"""How long the stream is kept busy: as long as the host needs, and no longer than helps."""

from __future__ import annotations

import pytest

from pytest_distbench.worker.clock.busy import FIRST_S, LONGEST_S, SHORTEST_S, TRIES, BusyStream, cycles_per_s


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
def test_some_iterations_teach_how_long_it_takes(host_s: float) -> None:
    loop = Loop(host_s)

    assert all(loop.run(20)[1:])
    assert loop.held[-1] == pytest.approx(max(SHORTEST_S, 3 * host_s))


def test_after_a_slow_iteration_it_becomes_shorter_again() -> None:
    loop = Loop(5e-3)
    loop.run(3)
    loop.host_s = 2e-5
    loop.run(20)

    assert loop.held[-1] == pytest.approx(6e-5)


@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
@pytest.mark.parametrize("loop", [Loop(50e-3), Loop(1e-4, waits=True)], ids=["long", "waits"])
def test_where_it_does_not_help_it_is_given_up_before_anything_is_measured(loop: Loop, warmup: int) -> None:
    """Values with and without the host's time in one series are of two kinds."""
    loop.run(warmup)
    loop.busy.settle()
    held = len(loop.held)
    loop.run(50)

    assert len(loop.held) == held


def test_it_is_never_given_up_in_the_middle_of_a_series() -> None:
    """A loop that begins to wait after its warm-up costs little, and counts in one way."""
    loop = Loop(1e-4)
    loop.run(10)
    loop.busy.settle()
    held = len(loop.held)
    loop.waits = True
    loop.run(50)

    assert len(loop.held) == held + 50
    assert max(loop.held[held:]) == pytest.approx(4 * 3e-4)


@pytest.mark.parametrize("warmup", [2, 5])
def test_a_slow_first_iteration_is_no_reason_to_give_up(warmup: int) -> None:
    loop = Loop(1.0)
    loop.run(1)
    loop.host_s = 4e-5
    loop.run(warmup - 1)
    loop.busy.settle()

    assert all(loop.run(20))


def test_it_is_given_up_only_after_two_iterations_that_the_longest_did_not_cover() -> None:
    loop = Loop(50e-3)
    loop.run(TRIES)

    assert loop.held == [FIRST_S, LONGEST_S, LONGEST_S]


def test_a_batch_that_takes_the_host_too_long_is_not_held() -> None:
    """5 ms are covered, twenty times as much in one breath is not."""
    loop = Loop(5e-3)
    loop.run(5)
    loop.busy.settle(20)
    loop.busy.hold(20)

    assert len(loop.held) == 5
    assert max(loop.held) <= LONGEST_S


class Card:
    """Its clocks, in MHz, from so many seconds of work on; ``turns``: one for each kernel, again and again."""

    def __init__(self, clocks: dict[float, float], *, turns: tuple[float, ...] = ()) -> None:
        self.clocks, self.turns = clocks, turns
        self.worked_s, self.kernels = 0.0, 0

    def kernel_s(self, cycles: int) -> float:
        reached = self.clocks[max(at for at in self.clocks if at <= self.worked_s)]
        mhz = self.turns[self.kernels % len(self.turns)] if self.turns else reached
        self.kernels += 1
        taken_s = cycles / (mhz * 1e6)
        self.worked_s += taken_s
        return taken_s


@pytest.mark.parametrize(
    ("card", "mhz"),
    [
        pytest.param(Card({0.0: 1980}), 1980, id="steady"),
        pytest.param(Card({0.0: 345, 0.03: 1980}), 1980, id="noticed after 30 ms"),
        pytest.param(Card({0.0: 210, 0.005: 800, 0.015: 1400, 0.0395: 1755}), 1755, id="by steps"),
        pytest.param(
            Card({0.0: 345, 0.047: 900, 0.0485: 1410}), 1410, id="in the middle of it when it is first believed"
        ),
        pytest.param(Card({0.0: 1980, 0.008: 1200}), 1200, id="capped"),
        pytest.param(Card({0.0: 0.0}, turns=(1000, 1900)), 1900, id="never two alike"),
    ],
)
def test_how_fast_the_device_counts_is_read_of_a_card_at_work(card: Card, mhz: float) -> None:
    assert cycles_per_s(card.kernel_s) == pytest.approx(mhz * 1e6, rel=0.01)


def test_a_card_whose_clocks_never_settle_is_given_up_in_time() -> None:
    card = Card({0.0: 0.0}, turns=(500, 900, 1700))
    cycles_per_s(card.kernel_s)

    assert card.kernels == 200

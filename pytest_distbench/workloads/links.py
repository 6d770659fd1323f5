"""Links: every pair of ranks, one pair at a time, with messages of given sizes, to find slow pairs and ranks.

pytest's process reads the tables, so torch is imported when a rank runs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_distbench.errors import look_up
from pytest_distbench.records.kinds import LOWER_QUANTILE, quantile
from pytest_distbench.records.metric import Bound, Scalar, metric_key
from pytest_distbench.units import GIGABYTE
from pytest_distbench.workloads.causes import Link, imbalance

if TYPE_CHECKING:
    import torch

    from pytest_distbench.worker.context import RankContext

BURST = 16  # messages in one direction before the other side answers, as OSU's osu_bw has a window (there 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How two ranks exchange messages to measure the link between them, and which pairs of ranks do.

    Attributes:
        burst: messages before the other rank answers: one message by one as long, several by one element.
        timed: number by which the time of an exchange is divided to give the time of a message.
        metrics: names of the metrics measured so.
        choose: ``itertools`` function that makes the pairs: combinations, or permutations for both directions.
    """

    burst: int
    timed: int
    metrics: tuple[str, ...]
    choose: Callable[[Iterable[int], int], Iterable[tuple[int, ...]]]

    def exchange(self, rank: int, link: Link, message: torch.Tensor) -> None:
        """Send and receive the messages of one exchange, as rank ``rank``, which is one of the two of the link."""
        import torch.distributed as dist

        answer = message if self.burst == 1 else message[:1]
        if rank == link.source:
            for _ in range(self.burst):
                dist.send(message, link.target)
            dist.recv(answer, link.target)
        else:
            for _ in range(self.burst):
                dist.recv(message, link.source)
            dist.send(answer, link.source)


PATTERNS = {
    "ping-pong": Pattern(burst=1, timed=2, metrics=("latency", "bandwidth"), choose=itertools.combinations),
    "one-way": Pattern(burst=BURST, timed=BURST, metrics=("bandwidth",), choose=itertools.permutations),
}
"""Patterns by name: there and back, each pair once; or bursts in both directions, without times of single messages."""


def pairs(world_size: int, pattern: str) -> list[Link]:
    """The links of ``world_size`` ranks, in the order of measuring."""
    choose = look_up(PATTERNS, pattern, "pattern").choose
    return [Link(source, target) for source, target in choose(range(world_size), 2)]


def link_matrix(rank: RankContext) -> None:
    """Record ``latency`` (small messages) and ``bandwidth`` (large ones) of every link, at ``from`` and ``to``.

    The other ranks wait meanwhile. Under ``ping-pong`` the time of a message is half a round trip; under ``one-way`` a
    burst's share, the answer included. Each link is timed by the rank it leads from. With three ranks and more
    ``imbalance`` is the time of the slowest link over that of a typical one (``workloads/causes.py``).

    ``rank.params`` has latency_bytes, bandwidth_bytes, pattern, iterations, warmup, max_imbalance (a bound, or None).
    """
    from pytest_distbench.workloads.memory import expect_room

    params = rank.params
    links = pairs(rank.world_size, params["pattern"])
    expect_room(rank, 2 * params["bandwidth_bytes"], what=f"messages of {params['bandwidth_bytes']} B")
    found: dict[str, dict[Link, float]] = {name: {} for name in PATTERNS[params["pattern"]].metrics}
    for i, link in enumerate(links):
        rank.progress(f"link {i + 1}/{len(links)}  {link.source} -> {link.target}")
        for name, times in found.items():
            if rank.wants(name, link.at):
                times[link] = _measure(rank, link, name, params[f"{name}_bytes"])
    for name, times in found.items():
        if rank.rank == 0 and rank.world_size > 2 and len(times) == len(links):
            bound = params["max_imbalance"]
            limits = [] if bound is None else [Bound(side="most", value=bound, where="communication.links")]
            rank.notebook.note("imbalance", imbalance(times), bounds=limits, at={"of": name})


def _measure(rank: RankContext, link: Link, name: str, message_bytes: int) -> float:
    """Seconds of one message, the same in every rank; the rank that the link leads from records it."""
    import torch

    from pytest_distbench.worker.clock.iterations import time_iterations

    pattern = PATTERNS[rank.params["pattern"]]
    is_part = rank.rank in link
    message = torch.zeros(message_bytes if is_part else 0, dtype=torch.uint8, device=rank.device)
    with rank.loop(name) as loop:
        timed = time_iterations(
            rank,
            loop,
            metric_key(name, link.at),
            mode="per-iteration",
            warmup=rank.params["warmup"],
            iterations=rank.params["iterations"],
        )
        while True:
            try:
                next(timed)
            except StopIteration as end:
                times = [seconds / pattern.timed for seconds in end.value[0]]
                break
            if is_part:
                pattern.exchange(rank.rank, link, message)
    typical = quantile(times, LOWER_QUANTILE)
    if rank.rank == link.source:
        identity: dict[str, Scalar] = {"message_bytes": message_bytes, "pattern": rank.params["pattern"]}
        if name == "latency":
            rank.record(name, times, unit="s", better="lower", at=link.at, identity=identity)
        else:
            rate = message_bytes / typical / GIGABYTE
            rank.record(name, rate, unit="GB/s", better="higher", at=link.at, identity=identity)
    if is_part and rank.backend != "fake":  # which moves no data
        _check(rank.rank, link, message)
    return rank.sum_over_ranks(typical if rank.rank == link.source else 0.0)


def _check(rank: int, link: Link, message: torch.Tensor) -> None:
    import torch
    import torch.distributed as dist

    if rank == link.target:
        dist.recv(message, link.source)
        dist.send(message.add_(1), link.source)
        return
    pattern = (torch.arange(message.numel(), device=message.device) % 251).to(torch.uint8)
    dist.send(message.copy_(pattern), link.target)
    dist.recv(message.fill_(255), link.target)
    wrong = int((message != pattern + 1).sum())
    assert not wrong, f"rank {link.source} to rank {link.target} and back: {wrong} of {message.numel()} bytes are wrong"

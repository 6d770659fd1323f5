"""The words for each cause."""

from __future__ import annotations

import typing

import pytest

from pytest_distbench.judging import causes
from pytest_distbench.judging.links import Link, Slow
from pytest_distbench.records.gpu import GpuNorm
from pytest_distbench.records.link_terms import LinkTerms
from pytest_distbench.report.texts.causes import describe

WORDS: list[tuple[causes.Cause, list[str]]] = [
    (
        causes.OtherFingerprint(differences=tuple("abcdefghij"), is_slower=True),
        ["likely cause: what an iteration does changed", *(f"  {c}" for c in "abcdefgh"), "  and 2 more"],
    ),
    (causes.OtherFingerprint(differences=("a",), is_slower=False), ["what an iteration does changed", "  a"]),
    (
        causes.CostlierSizes(
            name="latency",
            sizes="at 8 B only",
            then=LinkTerms(latency_s=1e-5, bandwidth=2e9),
            now=LinkTerms(latency_s=2e-5, bandwidth=1e9),
        ),
        [
            "latency is slower at 8 B only",
            "  latency term 10 us -> 20 us (+100.0 %), bandwidth term 0.5 s/GB -> 1 s/GB (+100.0 %)",
        ],
    ),
    (
        causes.SlowLinks(slow=Slow((2,), (Link(0, 1),)), metrics=("latency", "bandwidth"), measured=6),
        [
            "rank 2: every link of it is slow (latency and bandwidth of 6 links)",
            "rank 0 to rank 1: this link is slow (latency and bandwidth of 6 links)",
        ],
    ),
    (
        causes.SlowLinks(slow=Slow((), (Link(0, 1), Link(0, 2), Link(1, 2))), metrics=("latency",), measured=3),
        ["all 3 links are slow: no single rank, no single pair (latency of 3 links)"],
    ),
    (
        causes.SlowLinks(slow=Slow((), (Link(0, 1),)), metrics=("latency",), measured=1),
        ["rank 0 to rank 1: this link is slow (latency)"],
    ),
    (
        causes.SlowLinks(
            slow=Slow((), (Link(0, 1),), senders=(2,)), metrics=("latency",), measured=6, hosts=("a", "a", "b")
        ),
        [
            "rank 2 (b): every link from it is slow (latency of 6 links)",
            "rank 0 to rank 1 (a to a): this link is slow (latency of 6 links)",
        ],
    ),
    (causes.LongerPhase(name="load", then_s=1.0, now_s=1.5), ["phase load: 1 s -> 1.5 s (+50.0 %)"]),
    (
        causes.CpuTime(metric="m", then_s=0.02, now_s=0.03, spent="both"),
        [
            (
                "CPU time of all ranks per iteration of m: 20 ms -> 30 ms (+50.0 %): "
                "the added time is partly computing, partly waiting"
            )
        ],
    ),
    (
        causes.CpuTime(metric="m", then_s=0.02, now_s=0.02, spent="waiting"),
        ["CPU time of all ranks per iteration of m: 20 ms -> 20 ms (+0.0 %): the added time is waiting, not computing"],
    ),
    (
        causes.CpuTime(metric="m", then_s=0.02, now_s=0.022, spent="waiting", may_lack_cpus=True),
        [
            (
                "CPU time of all ranks per iteration of m: 20 ms -> 22 ms (+10.0 %): the added time is waiting, not "
                "computing, for a CPU perhaps: other processes computed meanwhile"
            )
        ],
    ),
    (
        causes.CpuTime(metric="m", then_s=0.02, now_s=0.03, spent="both", may_lack_cpus=True),
        [
            (
                "CPU time of all ranks per iteration of m: 20 ms -> 30 ms (+50.0 %): the added time is partly "
                "computing, partly waiting, for a CPU perhaps: other processes computed meanwhile"
            )
        ],
    ),
    (
        causes.CpuTime(metric="wall_time", then_s=2.0, now_s=3.0, spent="computing"),
        ["CPU time of all ranks in wall_time: 2 s -> 3 s (+50.0 %): the added time is computing"],
    ),
    (
        causes.HostTime(metric="m", then_s=0.004, now_s=0.012, added_by="device"),
        [
            ("host's time of all ranks per iteration of m: 4 ms -> 12 ms (+200.0 %): the added time is the device's"),
            "  CPU time is no evidence here: a host that waits for an event of the device spins",
        ],
    ),
    (
        causes.LateRank(rank=1, metric="optimizer_step", late_s=0.01, hosts=("a", "b")),
        ["rank 1 (b) comes 10 ms late to the collectives of a training step, the others wait for it"],
    ),
    (
        causes.LateRank(rank=1, metric="m", late_s=0.01),
        ["rank 1 comes 10 ms late to the collectives of m, the others wait for it"],
    ),
    (causes.SlowestRank(rank=3), ["rank 3 was the slowest in over 90 % of the iterations"]),
    (
        causes.Clocks(then=GpuNorm(sm_mhz=2000.0, memory_mhz=2619.0), now=GpuNorm(sm_mhz=1500.0, memory_mhz=2619.0)),
        ["median clocks of the slowest GPU: SM 2000 MHz -> 1500 MHz (-25.0 %), memory 2619 MHz -> 2619 MHz (+0.0 %)"],
    ),
    (
        causes.Clocks(
            then=GpuNorm(sm_mhz=1980.0, host_cpu="Intel Xeon Platinum 8480C"),
            now=GpuNorm(sm_mhz=1980.0, host_cpu="AMD EPYC 9654"),
        ),
        [
            "median clocks of the slowest GPU: SM 1980 MHz -> 1980 MHz (+0.0 %)",
            "  their host's CPU is AMD EPYC 9654, at the baseline it was Intel Xeon Platinum 8480C",
        ],
    ),
    (
        causes.Clocks(then=GpuNorm(sm_mhz=1980.0, host_cpu="Grace"), now=GpuNorm(sm_mhz=1980.0, host_cpu="Grace")),
        ["median clocks of the slowest GPU: SM 1980 MHz -> 1980 MHz (+0.0 %)"],
    ),
    (
        causes.Clocks(then=GpuNorm(sm_mhz=1980.0), now=GpuNorm(sm_mhz=1980.0, host_cpu="Grace")),
        ["median clocks of the slowest GPU: SM 1980 MHz -> 1980 MHz (+0.0 %)"],
    ),
    (
        causes.Clocks(then=GpuNorm(sm_mhz=2000.0), now=GpuNorm(sm_mhz=1500.0)),
        ["median clocks of the slowest GPU: SM 2000 MHz -> 1500 MHz (-25.0 %)"],
    ),
    (
        causes.FreeAlgorithm(metric="loss_curve"),
        [
            "loss_curve: NCCL_ALGO is not set, so NCCL may sum in another order than it did at the baseline",
            "  NCCL_ALGO=Ring (or Tree) fixes it; record the baseline again under it",
        ],
    ),
]


@pytest.mark.parametrize(("cause", "lines"), WORDS)
def test_a_cause_has_words(cause: causes.Cause, lines: list[str]) -> None:
    assert list(describe(cause)) == lines


def test_every_kind_of_cause_has_words() -> None:
    assert {type(cause) for cause, _ in WORDS} == set(typing.get_args(causes.Cause))

"""Tokens per second and MFU."""

from __future__ import annotations

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.throughput import PEAKS, peak_flops, record_throughput, transformer_flops_per_token


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA H800 PCIe", 756),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA H20", 148),
        ("NVIDIA A100-PCIE-80GB", 312),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA A10", 125),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("Tesla V100-SXM2-32GB", 125),
        ("Tesla T4", 65),
    ],
)
def test_the_peak_of_a_product_is_found_by_the_name_that_the_driver_gives(name: str, tflops: float) -> None:
    assert peak_flops(name) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce GTX 1080",
        "A1000",
        "AL4",
        "",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM-64GB",
    ],
)
def test_no_peak_is_guessed(name: str) -> None:
    with pytest.raises(RecordingError, match="give peak="):
        peak_flops(name)


def test_each_row_of_the_table_can_match() -> None:
    assert len({pattern for pattern, _ in PEAKS}) == len(PEAKS)


def test_flops_per_token_are_those_of_palm() -> None:
    """PaLM 540B: 118 layers, width 48 heads * 256, sequences of 2048: appendix B's formula by hand."""
    assert transformer_flops_per_token(540_350_000_000, layers=118, width=48 * 256, sequence=2048) == pytest.approx(
        6 * 540.35e9 + 12 * 118 * 12288 * 2048
    )


def test_rates_are_recorded_and_judged() -> None:
    rank = make_rank()
    record_throughput(rank, tokens=3000.0, seconds=2.0, flops_per_token=2e9, peak=6e12)

    found = {o.name: o for o in rank.notebook.observations}
    assert found["tokens_per_second"].values == [1500.0]
    assert found["mfu"].values == [pytest.approx(0.5)]
    assert {o.better for o in found.values()} == {"higher"}


def test_on_a_cpu_there_is_no_share_of_an_unknown_peak() -> None:
    rank = make_rank()
    record_throughput(rank, tokens=3000.0, seconds=2.0, flops_per_token=2e9)

    assert [o.name for o in rank.notebook.observations] == ["tokens_per_second"]


def test_on_a_gpu_the_peak_is_that_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    rank.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    record_throughput(rank, tokens=312.0, seconds=1.0, flops_per_token=0.5e12)

    assert rank.notebook.observations[1].values == [pytest.approx(0.5)]


def test_more_than_the_peak_is_refused_with_its_unit() -> None:
    with pytest.raises(RecordingError, match=r"an mfu of 2.02e\+11.*peak= is in FLOP/s \(989e12 for 989 TFLOP/s\)"):
        record_throughput(make_rank(), tokens=1000.0, seconds=1.0, flops_per_token=2e11, peak=989)


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"seconds": -1.0}, {"flops_per_token": float("nan")}])
def test_what_is_no_rate_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RecordingError, match=rf"record_throughput.*{next(iter(wrong))}"):
        record_throughput(make_rank(), **{"tokens": 1.0, "seconds": 1.0, "peak": 1.0, **wrong})

"""Tokens per second, and model FLOPS utilisation (MFU): which share of what the devices can do a training uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.arguments import check_number, check_whole, refuse

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

PEAKS: tuple[tuple[str, float], ...] = (
    (r"GB200|GB300", 2500e12),
    (r"B200|B300( SXM6 AC)?", 2250e12),
    (r"(H100|H200|H800) NVL", 835e12),
    (r"(H100|H800) PCIe", 756e12),
    (r"H100 80GB HBM3|H200|H800|GH200 \d+GB?( HBM3e)?", 989e12),
    (r"H20(-3e)?", 148e12),
    (r"(A100|A800)(-SXM4-[48]0GB|-PCIE-[48]0GB| 80GB PCIe)", 312e12),
    (r"A30", 165e12),
    (r"A40", 149.7e12),
    (r"A10G", 70e12),
    (r"A10", 125e12),
    (r"L40S", 362e12),
    (r"L40", 181e12),
    (r"L4", 121e12),
    (r"RTX PRO 6000 Blackwell Workstation Edition", 503.8e12),
    (r"RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9e12),
    (r"RTX 6000 Ada Generation", 364.2e12),
    (r"GeForce RTX 5090", 209.5e12),
    (r"GeForce RTX 4090", 165.2e12),
    (r"GeForce RTX 3090", 71e12),
    (r"V100S-PCIE-32GB", 130e12),
    (r"V100-PCIE-(16|32)GB", 112e12),
    (r"V100-SXM2-(16|32)GB", 125e12),
    (r"T4", 65e12),
)
"""Pattern of a product's whole name -> dense BF16 FLOP/s of its tensor cores with FP32 accumulation (V100 and T4:
FP16), from NVIDIA's data sheets, which print twice as much where they count sparsity; of GB200 and GB300 those of the
NVL72 divided by 72, of B200 and B300 those of the HGX divided by 8, of RTX cards the tables at the end of their
architectures' white papers. A name that goes on is another product: a laptop's, a ``Ti``, a MIG slice."""

_MAKER = r"(NVIDIA )?(Tesla )?"


def peak_flops(device_name: str) -> float:
    """What one device can do, in FLOP/s, see :data:`PEAKS`.

    Args:
        device_name: as ``torch.cuda.get_device_name`` gives it.

    Raises:
        RecordingError: it is in no row of the table.
    """
    for pattern, peak in PEAKS:
        if re.fullmatch(rf"{_MAKER}({pattern})", device_name):
            return peak
    raise RecordingError(f"the peak of {device_name!r} is not known: give peak= in FLOP/s, from its data sheet")


def transformer_flops_per_token(parameters: int, *, layers: int, width: int, sequence: int) -> float:
    """FLOPs of a training per token, forward and backward: ``6 N + 12 L d T``.

    Source: PaLM, arXiv 2204.02311, appendix B. Nothing that is computed anew counts.

    Args:
        parameters: N, of the model, embeddings left out.
        layers: L.
        width: d, heads times their size.
        sequence: T, tokens of one sequence.

    Raises:
        RecordingError: no whole numbers of at least 1.
    """
    call = "transformer_flops_per_token(...)"
    n = check_whole(call, "parameters", parameters, least=1)
    attention = 12
    for name, value in (("layers", layers), ("width", width), ("sequence", sequence)):
        attention *= check_whole(call, name, value, least=1)
    return 6.0 * n + attention


def record_throughput(
    rank: RankContext, *, tokens: float, seconds: float, flops_per_token: float | None = None, peak: float | None = None
) -> None:
    """Record ``tokens_per_second``, and ``mfu`` (0 to 1) where FLOPs per token are given and the peak is known.

    Both are judged: they may not fall. Of the ranks' numbers the smallest counts.

    Args:
        rank: gives world size and device.
        tokens: that all ranks together have trained on.
        seconds: that this rank needed for them, with the device waited for.
        flops_per_token: such as :func:`transformer_flops_per_token` gives.
        peak: of one device, FLOP/s; None: as :func:`peak_flops` knows it. On a CPU there is no ``mfu`` without it.

    Raises:
        RecordingError: no numbers above 0, a GPU whose peak is not known, or more than the peak.
    """
    call = "record_throughput(...)"
    rate = _positive(call, "tokens", tokens) / _positive(call, "seconds", seconds)
    rank.record("tokens_per_second", rate, unit="tokens/s", better="higher")
    if flops_per_token is None:
        return
    if peak is None and rank.device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(rank.device))
    if peak is not None:
        used = rate * _positive(call, "flops_per_token", flops_per_token)
        mfu = used / (rank.world_size * _positive(call, "peak", peak))
        if mfu > 1:
            raise RecordingError(
                f"{call}: an mfu of {mfu:.3g}: {used / rank.world_size:.3g} FLOP/s on each device is more than its "
                f"peak, {peak:.3g}. peak= is in FLOP/s (989e12 for 989 TFLOP/s), flops_per_token= in FLOP, and tokens= "
                "and seconds= are of the same steps"
            )
        rank.record("mfu", mfu, better="higher")


def _positive(call: str, name: str, value: float) -> float:
    number = check_number(call, name, value)
    if number <= 0:
        refuse(call, f"{name} above 0", value)
    return number

"""Fit of the latency and bandwidth that explain the times of a sweep over message sizes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEWEST_SIZES = 6
"""Fewer do not tell the two terms apart, let alone how well they fit."""

WIDEST = 10.0
"""An uncertainty beyond this, of a logarithm, is no knowledge at all."""

_STEPS = 60
_CLOSE = 1e-10
_FARTHEST_STEP = 2.0
_DAMPING = 1e-9
_HUBER = 1.345
_NORMAL_MAD = 1.4826
_FINEST_SCALE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTerms:
    """The model ``t = latency_s + message_bytes / bandwidth`` (Hockney, Parallel Computing 20, 1994).

    Attributes:
        latency_s: of a call that sends nothing; above zero.
        bandwidth: bytes per second of a call that sends very much.
        latency_error: standard error of ``latency_s``, as a fraction of it.
        bandwidth_error: the same of the bandwidth.
        half_size_error: the same of ``half_size``.
    """

    latency_s: float
    bandwidth: float
    latency_error: float = 0.0
    bandwidth_error: float = 0.0
    half_size_error: float = 0.0

    @property
    def s_per_byte(self) -> float:
        return 1 / self.bandwidth

    @property
    def half_size(self) -> float:
        """Bytes of the message that gets half of the bandwidth: from some times this on, bandwidth is saturated.

        Hockney's n_1/2.
        """
        return self.latency_s * self.bandwidth


def fit_link_terms(times: Mapping[int, float]) -> LinkTerms:
    """Fit both terms to a time per size.

    Errors are taken as relative ones, so that 4 B count as much as 1 GiB: residuals are of logarithms, and so are the
    terms, which keeps them above zero. Gauss-Newton steps with Huber's weights (Huber, Robust Statistics, 1981, chapter
    7; constant 1.345 times the median absolute deviation), so that one disturbed size, or the step from one algorithm
    to the next, does not turn the line. The standard errors are those of the weighted linear problem at the end: what
    the model misses, such as caches, makes them larger.
    """
    sizes, logs = list(times), [math.log(t) for t in times.values()]
    # Sizes without bytes have no second term; the largest ones have hardly anything else.
    latency = math.log(min(times.values()))
    rate = max(logs) - math.log(max(1, *sizes))
    weights = [1.0] * len(sizes)
    for _ in range(_STEPS):
        residuals, shares = _residuals(sizes, logs, latency, rate)
        weights = _huber(residuals)
        step = _solve(shares, weights, residuals)
        latency, rate = latency + step[0], rate + step[1]
        if max(map(abs, step)) < _CLOSE:
            break
    residuals, shares = _residuals(sizes, logs, latency, rate)
    a, b, both = _errors(shares, weights, residuals)
    return LinkTerms(
        latency_s=math.exp(latency),
        bandwidth=math.exp(-rate),
        latency_error=a,
        bandwidth_error=b,
        half_size_error=both,
    )


def _residuals(
    sizes: Sequence[int], logs: Sequence[float], latency: float, rate: float
) -> tuple[list[float], list[float]]:
    """Logarithm of measured over modelled, and the share of the latency in what is modelled, by size."""
    residuals, shares = [], []
    a, b = math.exp(latency), math.exp(rate)
    for size, log in zip(sizes, logs, strict=True):
        modelled = a + b * size
        residuals.append(log - math.log(modelled))
        shares.append(a / modelled)
    return residuals, shares


def _huber(residuals: Sequence[float]) -> list[float]:
    scale = max(_FINEST_SCALE, _NORMAL_MAD * statistics.median(map(abs, residuals)))
    return [min(1.0, _HUBER * scale / abs(r)) if r else 1.0 for r in residuals]


def _matrix(shares: Sequence[float], weights: Sequence[float]) -> tuple[float, float, float]:
    """J'WJ, whose rows are (share, 1 - share); a little is added, so that it can be inverted."""
    xx = sum(w * s * s for s, w in zip(shares, weights, strict=True))
    yy = sum(w * (1 - s) ** 2 for s, w in zip(shares, weights, strict=True))
    xy = sum(w * s * (1 - s) for s, w in zip(shares, weights, strict=True))
    return xx + _DAMPING, yy + _DAMPING, xy


def _solve(shares: Sequence[float], weights: Sequence[float], residuals: Sequence[float]) -> tuple[float, float]:
    xx, yy, xy = _matrix(shares, weights)
    x = sum(w * s * r for s, w, r in zip(shares, weights, residuals, strict=True))
    y = sum(w * (1 - s) * r for s, w, r in zip(shares, weights, residuals, strict=True))
    determinant = xx * yy - xy * xy
    step = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    return tuple(max(-_FARTHEST_STEP, min(_FARTHEST_STEP, s)) for s in step)  # type: ignore[return-value] # two of them


def _errors(
    shares: Sequence[float], weights: Sequence[float], residuals: Sequence[float]
) -> tuple[float, float, float]:
    """Standard errors of the logarithms of latency, bandwidth, and both together."""
    xx, yy, xy = _matrix(shares, weights)
    freedom = max(1, len(residuals) - 2)
    variance = sum(w * r * r for w, r in zip(weights, residuals, strict=True)) / freedom
    determinant = xx * yy - xy * xy
    latency, rate, common = yy / determinant, xx / determinant, -xy / determinant
    variances = latency, rate, latency + rate - 2 * common
    latency_error, rate_error, half = (min(WIDEST, math.sqrt(variance * v)) for v in variances)
    return latency_error, rate_error, half

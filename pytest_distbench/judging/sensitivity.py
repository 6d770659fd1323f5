"""What a run can detect: how good its baselines are, and injected slowdowns.

The noise of a timing is the standard deviation of the logarithm of what is judged of each launch, and no less than what
is typical for its siblings. The stored comparison is that of :mod:`~pytest_distbench.judging.thresholds` with the most
launches of a run; interleaved A/B is that of :mod:`~pytest_distbench.judging.confirmation` with the most pairs, each of
one launch of the candidate and two of the baseline commit. A change of the machine's speed between the two occasions
costs the first more than is reckoned here, and the second less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from pytest_distbench.judging.confirmation import LOOKS, SPENDING
from pytest_distbench.judging.screening import is_clock
from pytest_distbench.judging.stats import BASELINE_ERROR_RATE, detectable_slowdown
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import (
    DRIFT,
    ONE_AGAINST_TWO,
    Circumstances,
    noise_of,
    smallest_slowdown,
    typical_noise,
)
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, metric_name
from pytest_distbench.records.run import Finding, Sensitivity
from pytest_distbench.records.wanted import RUN_LAUNCHES
from pytest_distbench.units import is_duration, is_rate

LARGEST_MDE = 10.0
"""As a fraction: larger slowdowns need no number."""

POOR = 0.05
"""With more noise than this there is advice: it hides slowdowns of the usual tolerance."""


def sensitivity_of(metrics: Mapping[str, Sequence[Sample]], tolerances: Mapping[str, float]) -> Sensitivity | None:
    """Of the timing of a case whose slowdowns are the hardest to detect.

    Args:
        tolerances: by metric, of those that are judged, as fractions.

    Returns:
        None if the case has no timing with two launches.
    """
    typical = typical_noise(metrics)
    found: list[tuple[float, str, float]] = []
    for key, tolerance in tolerances.items():
        metric = metrics.get(key)
        if not metric or not is_clock(metric[0], metric[0].unit) or (own := noise_of(metric)) is None:
            continue
        noise = max(own, typical.get(metric_name(key), 0.0))
        known = sum(m.value is not None for m in metric)
        mde = detectable_slowdown(noise, known, RUN_LAUNCHES, BASELINE_ERROR_RATE, drift=DRIFT, tolerance=tolerance)
        found.append((mde, key, noise))
    if not found:
        return None
    mde, key, noise = max(found)
    under = Circumstances(tolerance=tolerances[key], comparisons=1, looks=LOOKS, spending=SPENDING)
    paired = smallest_slowdown(noise * math.sqrt(ONE_AGAINST_TWO), under)
    return Sensitivity(metric=key, noise=noise, mde=min(mde, LARGEST_MDE), paired_mde=min(paired, LARGEST_MDE))


def sensitivity_lines(found: Sequence[tuple[str, Sensitivity]]) -> list[str]:
    """How good the baselines of some cases are, in a sentence, and what to do about it where one of them is poor."""
    if not found:
        return []
    ordered = sorted(found, key=lambda one: one[1].mde)
    (_, middle), (title, worst) = ordered[(len(ordered) - 1) // 2], ordered[-1]
    name, noise = f"{title} {worst.metric}", f"noise {_percent(worst.noise)}"
    told = f"{name}: {noise}: this baseline alone detects slowdowns {_above(worst)}"
    if len(found) > 1:
        told = (
            f"noise {_percent(middle.noise)} (median of {len(found)} cases): baselines alone detect slowdowns "
            f"{_above(middle)}; worst, {name}: {noise}, {_above(worst)}"
        )
    advice = (
        "to detect smaller ones: a quieter machine (distbench doctor), or more iterations in the loop; record again"
    )
    return [told, advice] if worst.noise > POOR else [told]


def _above(one: Sensitivity) -> str:
    return f"above {_percent(one.mde)}, with A/B about {_percent(one.paired_mde)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


BEYOND = 4 / 3
"""What is planted is so many times the tolerance: one that is exactly as large is no regression, nor far from one."""

LEAST_SHARE = 0.05
"""Of a case that tolerates next to nothing."""


def clocks_of(terms: Terms, launch: LaunchRecord, *, left_out: Collection[str] = ()) -> list[str]:
    return [
        m.key
        for m in launch.measurements
        if is_clock(m, m.unit) and m.is_judged and terms.wants(m.name) and m.name not in left_out
    ]


def share_beyond(tolerances: Iterable[float]) -> float:
    """The share of its own duration by which what is timed is delayed: beyond all of these tolerances."""
    return max(LEAST_SHARE, BEYOND * max(tolerances))


def spoken_against(verdicts: Sequence[Finding], clocks: Collection[str]) -> Finding | None:
    """What fails the case whatever the clocks say, so that nothing can be learned of them."""
    return next((v for v in verdicts if v.is_failure and v.metric not in clocks), None)


_LOWER = frozenset({"time", "latency", "duration", "delay", "stall", "loss", "error", "perplexity", "memory"})
_HIGHER = frozenset({
    "throughput", "bandwidth", "accuracy", "efficiency", "speedup", "goodput", "busbw", "algbw", "mfu", "tps", "sps",
})  # fmt: skip
_LEARNED = frozenset({
    "loss", "losses", "nll", "entropy", "error", "perplexity", "ppl", "accuracy", "acc", "precision", "recall", "auc",
    "bleu", "rouge", "wer", "score", "reward", "checksum", "digest", "hash", "norm", "weights", "f",
})  # fmt: skip
"""Of what a training computes, and of its state. Whatever else is exact, such as a count of parameters, is not."""
_QUALIFIERS = frozenset({"top", "k", "mean", "final", "last", "first", "best", "train", "val", "test", "eval"})
_AFTER_NOUN = re.compile(r"_(?:to|per|at|of|in|on|by|with|over)_.*")
_WORD = re.compile(r"[a-z]+")


def why_implausible(name: str, unit: str, better: Better) -> str:
    """Why the direction is asked about, in a clause; empty where nothing speaks against it.

    Of the name its noun counts, the last word before ``_to_`` or ``_per_``.
    """
    sign = METRIC_KINDS[better].sign
    if not sign:
        return ""
    if sign < 0 and is_duration(unit):
        return f"it is a time ({unit}), and a longer one would count as an improvement"
    if sign > 0 and is_rate(unit):
        return f"it is a rate ({unit}), and a lower one would count as an improvement"
    noun = _noun(name)
    if sign < 0 and noun in _LOWER:
        return f"{'an' if noun[0] in 'aeo' else 'a'} {noun} that rises would count as an improvement"
    if sign > 0 and noun in _HIGHER:
        return f"{'an' if noun[0] in 'aeo' else 'a'} {noun} that falls would count as an improvement"
    return ""


def is_learned(name: str) -> bool:
    """Whether a metric's name says that a training computes it: a loss, an accuracy, a checksum of its weights."""
    return _noun(name, _QUALIFIERS) in _LEARNED


def _noun(name: str, qualifiers: Container[str] = ()) -> str:
    """The last word before ``_to_`` or ``_per_`` that is no qualifier; empty where there is none."""
    words = [word for word in _WORD.findall(_AFTER_NOUN.sub("", name.lower())) if word not in qualifiers]
    return words[-1] if words else ""

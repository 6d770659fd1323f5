"""Was it the code or the card? Whether GPUs were held back more than when the baseline was taken. Pure, no I/O.

A slowdown that was measured on such GPUs is *inconclusive*. Power caps hold back most trainings on most cards, so what
counts is what was worse than at the baseline; and one launch of several does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from pytest_distbench.records.card import CardNorm, CardWitness
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.quantiles import median

ORDINARY = {"power cap": 0.25}
"""What holds clocks down in ordinary work too: it counts from so much more of the time on than at the baseline, and
only where the clock is lower."""
SHARE = 0.1
"""All else counts from so much more of the time on."""
SLOWER_CLOCK = 0.98
"""A median clock below this part of the baseline's is lower."""
_ALIKE_W, _ALIKE_MHZ = 1.0, 1.0


def norm_of(launches: Sequence[LaunchRecord]) -> CardNorm | None:
    """The GPUs of the median launch, of which the slowest counts; None where nobody looked at any."""
    watched = [launch.cards for launch in launches if launch.cards]
    if not watched:
        return None
    names = sorted({name for cards in watched for card in cards for name in card.held})
    held = {name: statistics.median(_share(cards, name) for cards in watched) for name in names}

    def slowest(of: Callable[[CardWitness], float | None]) -> float | None:
        """Of the GPUs of a launch the least, of the launches the median."""
        return _typical(min((v for v in map(of, cards) if v is not None), default=None) for cards in watched)

    return CardNorm(
        sm_mhz=slowest(lambda card: card.sm_mhz),
        memory_mhz=slowest(lambda card: card.memory_mhz),
        power_limit_w=slowest(lambda card: card.power_limit_w),
        sm_limit_mhz=slowest(lambda card: card.sm_limit_mhz),
        held={name: round(share, 2) for name, share in held.items() if share >= 0.01},
    )


def disturbance(then: CardNorm | None, launches: Sequence[LaunchRecord]) -> str:
    """Why a slowdown may be the card's, in a clause; empty: nothing speaks for that."""
    now = norm_of(launches)
    if now is None:
        return ""
    then = then or CardNorm()
    watched = [launch.cards for launch in launches if launch.cards]
    if shared := _sharers(watched):
        return shared
    if _is_lower(now.power_limit_w, then.power_limit_w, _ALIKE_W):
        return f"the power limit is {now.power_limit_w:.0f} W, at the baseline it was {then.power_limit_w:.0f} W"
    if now.sm_limit_mhz is not None and _is_lower(now.sm_limit_mhz, then.sm_limit_mhz or then.sm_mhz, _ALIKE_MHZ):
        before = f"{then.sm_limit_mhz:.0f} MHz" if then.sm_limit_mhz is not None else "free"
        return f"the SM clock is set to {now.sm_limit_mhz:.0f} MHz, at the baseline it was {before}"
    for name, share in sorted(now.held.items(), key=lambda item: (item[0] in ORDINARY, -item[1])):
        before_share = then.held.get(name, 0.0)
        if share <= before_share + ORDINARY.get(name, SHARE):
            continue
        if name in ORDINARY and not _is_slower(now.sm_mhz, then.sm_mhz):
            continue
        card = max((card for cards in watched for card in cards), key=lambda card: card.held.get(name, 0.0))
        return f"{card.label} was held down by {name} for {share:.0%} of the time{_clocks(then, now)}"
    return ""


def _sharers(watched: Sequence[Sequence[CardWitness]]) -> str:
    """Who else computed on the GPUs, in at least half of the launches."""
    shared = [next(card for card in cards if card.others) for cards in watched if any(card.others for card in cards)]
    if 2 * len(shared) < len(watched) or not shared:
        return ""
    return f"{shared[-1].label} was shared with {', '.join(shared[-1].others)}"


def _share(cards: Sequence[CardWitness], name: str) -> float:
    return max(card.held.get(name, 0.0) for card in cards)


def _clocks(then: CardNorm, now: CardNorm) -> str:
    if now.sm_mhz is None or then.sm_mhz is None:
        return ""
    return f": {now.sm_mhz:.0f} MHz, at the baseline {then.sm_mhz:.0f} MHz"


def _is_lower(now: float | None, then: float | None, alike: float) -> bool:
    return now is not None and then is not None and now < then - alike


def _is_slower(now: float | None, then: float | None) -> bool:
    return now is None or then is None or now < SLOWER_CLOCK * then


def _typical(values: Iterable[float | None]) -> float | None:
    """The median, four digits."""
    middle = median(values)
    return None if middle is None else float(f"{middle:.4g}")

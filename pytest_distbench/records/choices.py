"""What a user may choose, and what happens unless told otherwise: shared by pytest's options and the commands."""

from __future__ import annotations

from typing import Literal, get_args

Update = Literal["new", "failed", "changed", "all"]

UPDATES: tuple[Update, ...] = get_args(Update)

Confirm = Literal["auto", "always", "never"]
"""Which comparisons with stored baselines are decided in turns with the revision that recorded them."""

CONFIRMS: tuple[Confirm, ...] = get_args(Confirm)

CONFIRM_BUDGET_S = 60.0
"""Seconds of a run that go into that."""

Missing = Literal["warn", "fail", "skip"]
"""What a case without a baseline does to its test."""

MISSING: tuple[Missing, ...] = get_args(Missing)

TracedCases = Literal["regressed", "all"]

TRACED_CASES: tuple[TracedCases, ...] = get_args(TracedCases)

Mode = Literal["per-iteration", "batch", "graph"]
"""How a clock stands around what is timed: each iteration, iterations in one breath, or replays of a CUDA graph."""

MODES: tuple[Mode, ...] = get_args(Mode)

OverRanks = Literal["max", "mean"]
"""What stands for an iteration of a clock: the slowest rank's time, or the mean of all."""

ELASTIC_BASELINE_LAUNCHES = 3
"""The most launches of an elastic job or a pool of jobs in an update: each may take a minute."""

ELASTIC_RUN_LAUNCHES = 5
"""The same while an answer is open. Three stored launches and three new ones allow for 7.4 standard deviations of noise
between launches (at the error rate of one comparison), five for 5.0, eight for 4.0, and ten for 3.7: the first few each
take a fifth off what can be found, the later ones hardly a tenth, and each may take a minute."""

RUN_LAUNCHES = 10
"""Launches of a case at most, while its answer is open."""

DEFAULT_TOLERANCE = 0.1
"""Accepted change from a stored baseline towards worse, as a fraction, where nobody says otherwise."""

PAIRED_TOLERANCE = 0.05
"""A slowdown below this is not worth a red test: two runs of the same code differ by some per cent in their memory
layout, which pairs do not cancel. Tolerances of stored baselines, which allow for the machine's drift, do not apply."""

MOST_TOLERANCE = 5.0
"""A number that may become six times as large is not judged; one above is meant in per cent."""

TOLERANCE_WANTED = "a fraction from 0 to 5, such as 0.05, which is 5 %"

ANY_PLATFORM = "any"
"""Where baselines of the ``fake`` backend lie: what a program sends does not depend on the hardware it runs on."""

LARGEST_WHOLE = 2**53
"""Up to here JSON's numbers, which are float64, hold every whole number."""

MOST_LAUNCHES = 1000
"""Launches of a case. More, or more seeds, are a typing error."""

SEEDS = range(-(2**63), 2**64)
"""What ``torch.manual_seed`` takes."""

LONGEST_TIMEOUT_S = 7 * 86400.0
"""Of one launch: longer than this is a typing error."""

"""Verdicts on the tensors that a training leaves: its weights at the end, and what it saved. Pure.

Equal digits pass. If most of what was trained is equal in every digit, the arithmetic is the same, and what is not
equal is *changed* (:func:`is_same_arithmetic`). Else other digits are *numerics* as long as no tensor deviates by more
than a share of its change since the first update (:func:`accepted_share`), or :data:`TIMES_SPREAD` times the difference
between the baseline's launches; beyond that they are *changed*, but for a few that noise alone changes
(:data:`NOISE_SHARE`). A sketch shows how far two tensors are apart (``records.trained``). ``benchmarks/numerics.py``
measures the shares. A name that is gone counts, unless another name holds the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.judging.golden_curve import ROUNDING
from pytest_distbench.records.iteration import ALL, named_ranks
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.trained import NOT_A_TENSOR, UPDATES, Option, TensorState

OF_LOWER_PRECISION = 0.25
"""Share of its change by which a weight deviates at most if a precision below float32 may have a part in it: more than
twice what gradients in bfloat16 do."""

OF_ROUNDING = 0.01
"""Same share in float32: a hundred times what another order of sums or instruction set does in 80 steps."""

TIMES_LOSSES, TIMES_SPREAD = 10.0, 4.0
"""Weights may deviate, as a share of their change, by the first factor times the losses' deviation relative to their
range; and by the second factor times the difference between the baseline's launches. Rounding grows with the steps."""

EQUAL_SHARE = 0.5  # of the squared change since the first update, this share has to be equal in every digit

NOISE_SHARE, NOISE_TIMES = 0.1, 2.0
"""A bias in front of a batch norm, or of attention's keys, has a gradient of nothing but rounding, which Adam makes as
large as any: such tensors, together this share of the squared change, may differ by twice their change."""

OF_UNKNOWN_WAY = 2.0
"""Factor on the accepted share for saved tensors other than weights, such as optimizer state: their deviation is taken
relative to their norm, because their change since the first update is unknown."""
_LEAST_OF_NORM = 0.05

_ALIKE = 1e-4
FEWEST_AGREEING = 3
Tensors = Mapping[str, Mapping[str, TensorState]]
Options = Mapping[str, Mapping[str, Option]]
_ByName = Mapping[str, Mapping[str, TensorState]]


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor that differs: how, in words; its distance over the accepted one; and its rank, or "" for all."""

    name: str
    text: str
    excess: float
    who: str = ""
    distance: float = math.inf
    change: float = 0.0
    is_rounding: bool = False


def accepted_share(*, is_exact: bool, loss_share: float | None) -> float:
    """Share of its change by which a weight may deviate; see the fields of ``training_rule.Family``."""
    least = OF_ROUNDING if is_exact and loss_share is not None else OF_LOWER_PRECISION
    return min(1.0, max(least, TIMES_LOSSES * (loss_share or 0.0)))


def is_same_arithmetic(stored: Tensors, current: Tensors) -> bool:
    """Whether most of what was trained is equal in every digit: then no difference is rounding."""
    whole = equal = 0.0
    now = _by_name(current)
    for name, states in _by_name(stored).items():
        for ranks, state in states.items():
            other = now.get(name, {}).get(ranks)
            whole += state.change**2
            equal += state.change**2 if other is not None and other.digest == state.digest else 0.0
    return 0.0 < whole * EQUAL_SHARE <= equal


def beyond_noise(found: Sequence[Change], stored: Tensors) -> Change:
    """The largest change that is not the noise of tensors without a gradient (:data:`NOISE_SHARE`), else the least."""
    left = NOISE_SHARE * sum(state.change**2 for named in stored.values() for state in named.values())
    for one in found:
        if not 0.0 < one.distance <= NOISE_TIMES * one.change or one.change**2 > left:
            return one
        left -= one.change**2
    return found[-1]


def own_share(stored: Tensors) -> float:
    """Difference between the baseline's launches, relative to the change since the first update, over all tensors."""
    known = [(s.spread**2, s.change**2) for named in stored.values() for s in named.values() if s.change]
    spreads, moves = map(math.fsum, zip(*known, strict=True)) if known else (0.0, 1.0)
    return math.sqrt(spreads / moves)


def stored_tensors(launches: Sequence[Sample]) -> dict[str, dict[str, TensorState]]:
    """What a baseline keeps of its launches: the first one's tensors, and how far the others are from them.

    What a launch lacks, by name and ranks, does not repeat, and is left out.
    """
    kept: dict[str, dict[str, TensorState]] = {}
    for ranks, named in launches[0].tensors.items():
        for name, first in named.items():
            found = (launch.tensors.get(ranks, {}).get(name) for launch in launches)
            known = [state for state in found if state is not None]
            if len(known) < len(launches):
                continue
            repeats = all(other.digest == first.digest for other in known)
            if all(other.form == first.form for other in known) and (repeats or first.form != NOT_A_TENSOR):
                spread = max(map(first.distance, known))
                state = replace(first, spread=float(f"{spread:.3g}"), digest=first.digest if repeats else "")
                kept.setdefault(ranks, {})[name] = state
    return kept


def changes(stored: Tensors, current: Tensors, *, share: float = OF_LOWER_PRECISION) -> list[Change]:
    """Differences of a launch's tensors from the baseline's, the largest first."""
    then, now = _by_name(stored), _by_name(current)
    called = _called_now(then, now)
    new = [Change(name, "is new", math.inf) for name in sorted(now.keys() - set(called.values()))]
    return sorted([*_changes(then, now, called, share), *new], key=lambda change: -change.excess)


def changes_of_saved(
    stored: Tensors, current: Tensors, *, share: float, launches: int, ends_alike: bool = False
) -> list[Change]:
    """Differences of saved tensors beyond a share, see :func:`accepted_share`. New tensors and files are no difference.

    Missing ones count if ``launches``, those of the baseline, are :data:`FEWEST_AGREEING` or more. Without
    ``ends_alike``, files that were saved after another number of updates are not compared.
    """
    then, now = _by_name(stored), _by_name(current)
    other = {_file(name) for name in then if name.endswith(f": {UPDATES}") and name in now and then[name] != now[name]}
    then = {name: states for name, states in then.items() if ends_alike or _file(name) not in other}
    called = _called_now(then, now)
    if launches < FEWEST_AGREEING:
        then = {name: states for name, states in then.items() if name in called}
    lost = {_file(name) for name in then} - {_file(name) for name in called}
    gone = [Change(file, "is not saved any more", math.inf) for file in sorted(lost)]
    then = {name: states for name, states in then.items() if _file(name) not in lost}
    return gone + sorted(_changes(then, now, called, share), key=lambda change: -change.excess)


def _file(name: str) -> str:
    return name.partition(": ")[0]


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _called_now(then: _ByName, now: _ByName) -> dict[str, str]:
    """Name in the baseline -> name now: the same, or for a name that is gone the nearest new one."""
    called = {name: name for name in then if name in now}
    new = sorted(now.keys() - then.keys())
    for name in sorted(then.keys() - now.keys()):
        near = {other: apart for other in new if (apart := _apart(then[name], now[other])) < math.inf}
        if near:
            called[name] = min(near, key=near.__getitem__)
            new.remove(called[name])
    return called


def _apart(then: Mapping[str, TensorState], now: Mapping[str, TensorState]) -> float:
    """Distance of two tensors that may be one under two names, or infinity. Plain numbers must be equal."""
    if then.keys() != now.keys() or any(then[who].form != now[who].form for who in then):
        return math.inf
    is_other = any(s.form == NOT_A_TENSOR and s.digest != now[who].digest for who, s in then.items())
    return math.inf if is_other else math.fsum(s.distance(now[who]) for who, s in then.items())


def _changes(then: _ByName, now: _ByName, called: Mapping[str, str], share: float) -> Iterator[Change]:
    holders = {state.digest: name for name in then for state in then[name].values()}
    largest: dict[str, float] = {}  # norm, of what is of one kind: exp_avg, weight
    for name, state in ((name, state) for name, states in then.items() for state in states.values()):
        largest[_kind(name)] = max(largest.get(_kind(name), 0.0), abs(state.norm))
    for name in sorted(name for name in then if _kind(name) not in _HOW):
        if name not in called:
            yield Change(name, "is gone", math.inf)
            continue
        current, known = now[called[name]], then[name]
        forms = [sorted({state.form for state in side.values()}) for side in (known, current)]
        if forms[0] != forms[1]:
            yield Change(name, f"was {' and '.join(forms[0])}, is {' and '.join(forms[1])}", math.inf)
            continue
        if known.keys() == {ALL} and ALL not in current:
            first, *others = current
            text = f"of rank {', '.join(others)} is not that of rank {first}; the baseline's ranks held the same"
            yield Change(name, text, math.inf)
            continue
        for ranks, state in current.items():
            before = known.get(ranks) or next((s for who, s in known.items() if _overlap(who, ranks)), None)
            rounding = ROUNDING * largest[_kind(name)]
            if before is not None and (change := _change(before, state, holders, share, rounding)) is not None:
                who = f" of rank{'s' * (not ranks.isdecimal())} {ranks}" if len(current) > 1 else ""
                yield dataclasses.replace(change, name=name.removesuffix(": "), who=who)


_HOW = ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
"""Options that say how an optimizer computes, or that only some versions of torch have: not what it computes."""


def option_changes(stored: Options, current: Options) -> list[str]:
    """A sentence per optimizer option whose value changed; options that only one side has are ignored."""
    found: dict[str, list[str]] = {}
    for ranks, named in current.items():
        then = {name: value for who, those in stored.items() if _overlap(who, ranks) for name, value in those.items()}
        for name, value in named.items():
            if (was := then.get(name, value)) != value and name.rpartition(": ")[2] not in _HOW:
                found.setdefault(f"{name} {_option(was)} -> {_option(value)}", []).append(ranks)
    return [what if ALL in ranks else f"{what} on rank {', '.join(ranks)}" for what, ranks in found.items()]


def _option(value: Option) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _by_name(tensors: Tensors) -> dict[str, dict[str, TensorState]]:
    found: dict[str, dict[str, TensorState]] = {}
    for ranks, named in tensors.items():
        for name, state in named.items():
            found.setdefault(name, {})[ranks] = state
    return found


def _overlap(ranks: str, others: str) -> bool:
    return ALL in (ranks, others) or bool({*named_ranks([ranks])} & {*named_ranks([others])})


def _change(
    then: TensorState, now: TensorState, holders: Mapping[str, str], share: float, rounding: float
) -> Change | None:
    if then.digest == now.digest:
        return None
    if then.form == NOT_A_TENSOR:  # other digits may lead to any other number of correct answers
        return Change("", f"{then.norm:.9g} -> {now.norm:.9g}", 1.0)
    distance = then.distance(now)
    of_way = share * then.change or OF_UNKNOWN_WAY * max(share, _LEAST_OF_NORM) * abs(then.norm)
    accepted = max(of_way, TIMES_SPREAD * then.spread, rounding)
    excess = distance / accepted if accepted else math.inf if distance else 0.0
    if not then.digest and excess <= 1.0:
        return None  # the baseline's launches differ by as much
    return Change(
        "",
        _how(then, now, distance, holders),
        excess,
        distance=distance,
        change=then.change,
        is_rounding=distance <= rounding,
    )


def _how(then: TensorState, now: TensorState, distance: float, holders: Mapping[str, str]) -> str:
    if now.digest in holders:
        return f"holds what {holders[now.digest]} held"
    if then.norm and (factor := _factor(then, now)):
        return f"is {factor:.4g} times the baseline's"
    relative = f", {distance / then.change:.2g} times its change since the first update" if then.change else ""
    if then.norm and abs(now.norm / then.norm - 1) < _ALIKE and distance > _ALIKE * then.norm:
        return f"has the same norm {then.norm:.4g}, in another order or with other signs"
    return f"differs by about {distance:.2g}{relative} (norm {then.norm:.4g} -> {now.norm:.4g})"


def _factor(then: TensorState, now: TensorState) -> float:
    """Factor by which all of a tensor was multiplied, or 0 if it was not."""
    if not then.product or abs(now.product / then.product - 1) < _ALIKE:
        return 0.0
    factor = now.product / then.product
    scale = _ALIKE * then.norm * abs(factor)
    is_it = abs(now.norm - abs(factor) * then.norm) < scale
    return factor if is_it and abs(now.other_product - factor * then.other_product) < scale else 0.0

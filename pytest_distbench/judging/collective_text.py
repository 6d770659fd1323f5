"""Two sequences of collectives -> what differs, in sentences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_distbench.records.iteration import PICKLE, Collective
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_bytes


def payload_bytes(collectives: Iterable[Collective]) -> int:
    """Bytes one rank puts into these collectives."""
    return sum(c.message_bytes * c.count for c in collectives if c.op != "recv")


def changes(before: Sequence[Collective], after: Sequence[Collective]) -> list[str]:
    """How one sequence differs from another, one sentence each. Of what only one holds nothing is said."""
    before, after = _alike_told(before, after)
    gone, come = count(before), count(after)
    common = gone & come
    gone, come = gone - common, come - common
    if not gone and not come:
        return _reordering(before, after)
    sentences = []
    old, new = _families(gone), _families(come)
    for op, group in dict.fromkeys((*old, *new)):
        where = _where(group)
        for was, now in _by_dtype(old.get((op, group), {}), new.get((op, group), {})):
            sentences.append(_became(was, now, op, where))
    sent, sends = format_bytes(payload_bytes(before)), format_bytes(payload_bytes(after))
    if sent != sends:
        sentences.append(f"{sent} sent per rank became {sends}")
    return sentences


def _alike_told(
    before: Sequence[Collective], after: Sequence[Collective]
) -> tuple[Sequence[Collective], Sequence[Collective]]:
    """Both without reductions, roots and partners where one of them does not hold these."""
    if all(c.how is not None for c in (*before, *after)):
        return before, after
    return [replace(c, how=None) for c in before], [replace(c, how=None) for c in after]


def told(collectives: Sequence[Collective]) -> str:
    """``1 all_reduce of 4 KiB float32 and 2 barrier``."""
    families = _families(count(_alike_told(collectives, [])[0]))
    words = [f"{_tell(f, op, _Shown())}{_where(group)}" for (op, group), f in families.items()]
    return " and ".join(words) or "nothing"


def _where(group: str) -> str:
    return "" if group == "default" else f" in {group}"


def _became(old: Mapping[Collective, int], new: Mapping[Collective, int], op: str, where: str) -> str:
    if not new:
        return f"{_tell(old, op, _Shown())}{where} {'is' if sum(old.values()) == 1 else 'are'} gone"
    if not old:
        return f"{_tell(new, op, _Shown())}{where} {'was' if sum(new.values()) == 1 else 'were'} added"
    shown = _Shown(
        dtype={c.dtype for c in old} != {c.dtype for c in new}, how={c.how for c in old} != {c.how for c in new}
    )
    was, now = _tell(old, "", shown), _tell(new, "", shown)
    if was == now:
        shown = shown._replace(is_rounded=False)
        was, now = _tell(old, "", shown), _tell(new, "", shown)
    number, _, rest = was.partition(" ")
    return f"{number} {op} {rest}".rstrip() + f"{where} became {now}"


def _families(counts: Mapping[Collective, int]) -> dict[tuple[str, str], dict[Collective, int]]:
    found: dict[tuple[str, str], dict[Collective, int]] = {}
    for c, number in counts.items():
        found.setdefault((c.op, c.group), {})[c] = number
    return found


def _by_dtype(
    old: Mapping[Collective, int], new: Mapping[Collective, int]
) -> Iterator[tuple[dict[Collective, int], dict[Collective, int]]]:
    """What has a dtype that is old and new, and the rest: that may have been converted, or have come or gone."""
    lasting = {c.dtype for c in old} & {c.dtype for c in new}
    for is_lasting in (True, False):
        was = {c: n for c, n in old.items() if (c.dtype in lasting) == is_lasting}
        now = {c: n for c, n in new.items() if (c.dtype in lasting) == is_lasting}
        if was or now:
            yield was, now


def count(collectives: Iterable[Collective]) -> Counter[Collective]:
    """Collective (counted once) -> how often it occurs, wherever."""
    counts: Counter[Collective] = Counter()
    for c in collectives:
        counts[replace(c, count=1)] += c.count
    return counts


class _Shown(NamedTuple):
    """What is told of collectives besides their number and sizes."""

    dtype: bool = True
    how: bool = False
    is_rounded: bool = True


def _tell(counts: Mapping[Collective, int], op: str, shown: _Shown) -> str:
    """``214 all_reduce of 4 KiB to 100 KiB float32 (sum)``."""
    size = format_bytes if shown.is_rounded else "{:,} B".format
    sizes = sorted({c.message_bytes for c in counts if c.dtype != PICKLE})
    words = [str(sum(counts.values())), *([op] if op else [])]
    if sizes and sizes[-1]:
        span = size(sizes[0]) if len(sizes) == 1 else f"{size(sizes[0])} to {size(sizes[-1])}"
        words += ["of", span]
    elif shown.dtype and not sizes:
        words.append("of")
    if shown.dtype and (kinds := sorted({c.dtype for c in counts} - {""})):
        words.append(" and ".join(kinds))
    if shown.how and (ways := sorted({c.how for c in counts if c.how})):
        words.append(f"({' and '.join(ways)})")
    return " ".join(words)


def _reordering(before: Sequence[Collective], after: Sequence[Collective]) -> list[str]:
    """Where two sequences of the same collectives part; nothing if they do not."""
    for number, (old, new) in enumerate(zip(_one_by_one(before), _one_by_one(after), strict=True), 1):
        if old != new:
            shown = _Shown(how=old.how != new.how)
            was, now = (_tell({c: 1}, c.op, shown).removeprefix("1 ") for c in (old, new))
            return [f"the same collectives in another order: number {number} was {was}, is {now}"]
    return []


def _one_by_one(collectives: Iterable[Collective]) -> Iterator[Collective]:
    for c in collectives:
        yield from [replace(c, count=1)] * c.count

"""Which link, or which rank, is slow."""

from __future__ import annotations

import itertools

import pytest
from support.results import result, verdict

from pytest_distbench.judging.remarks import find_causes
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Bound, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.verdicts import cause_lines
from pytest_distbench.workloads import causes
from pytest_distbench.workloads.causes import Link, Slow, find_slow, fit_link_terms, outliers


def named(
    ranks: tuple[int, ...], links: tuple[Link, ...] = (), senders: tuple[int, ...] = (), receivers: tuple[int, ...] = ()
) -> Slow:
    return ranks, links, senders, receivers


def links(ranks: int) -> list[Link]:
    return [Link(*pair) for pair in itertools.combinations(range(ranks), 2)]


def times(ranks: int, *slow: tuple[int, int]) -> dict[Link, float]:
    return {link: 10.0 if link in slow else 2.0 for link in links(ranks)}


@pytest.mark.parametrize(
    ("ranks", "slow", "expected"),
    [
        (4, [(1, 3)], named((), (Link(1, 3),))),
        (4, [(0, 2), (1, 2), (2, 3)], named((2,), ())),
        (4, [(0, 2), (1, 2), (2, 3), (0, 1)], named((2,), (Link(0, 1),))),
        (4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)], named((0, 1), ())),
        (3, [(0, 1), (0, 2)], named((0,), ())),
        (3, [(0, 1)], named((), (Link(0, 1),))),
        (4, [], named((), ())),
        (2, links(2), named((), (Link(0, 1),))),
        (4, links(4), named((), tuple(links(4)))),  # of all no rank is to blame
    ],
)
def test_a_rank_is_named_where_all_its_links_are_slow_else_the_links(
    ranks: int, slow: list[tuple[int, int]], expected: Slow
) -> None:
    assert find_slow([Link(*pair) for pair in slow], links(ranks)) == expected


def test_of_links_in_both_directions_a_rank_is_slow_where_it_is_so_both_ways() -> None:
    both = [Link(*pair) for pair in itertools.permutations(range(3), 2)]
    sends_slowly = [Link(0, 1), Link(0, 2)]

    assert find_slow(sends_slowly, both) == named((), (), senders=(0,))
    assert find_slow([Link(0, 1), Link(2, 1), Link(2, 0)], both) == named((), (), senders=(2,), receivers=(1,))
    assert find_slow(sends_slowly[:1], both) == named((), (Link(0, 1),))
    assert find_slow([link for link in both if 0 in link], both) == named((0,), ())


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_a_slow_rank_does_not_move_what_is_typical(ranks: int) -> None:
    slow = times(ranks, *((0, other) for other in range(1, ranks)))

    assert causes.typical_time(slow) == 2.0
    assert causes.imbalance(slow) == 5.0
    assert outliers(slow) == [Link(0, other) for other in range(1, ranks)]


def test_a_link_at_half_its_rate_stands_out_and_one_at_two_thirds_does_not() -> None:
    assert outliers({**times(4), Link(0, 1): 4.0}) == [Link(0, 1)]
    assert outliers({**times(4), Link(0, 1): 3.0}) == []


def test_of_two_ranks_nothing_is_typical() -> None:
    assert causes.typical_time(times(2)) is None
    assert outliers(times(2, (0, 1))) == []


def test_a_low_rate_is_a_long_time() -> None:
    at = Link(0, 1).at
    found = causes.by_link(
        [
            verdict(metric=metric_key("latency", at), at=at, current=0.5),
            verdict(metric=metric_key("bandwidth", at), at=at, current=4.0, better="higher", unit="GB/s"),
            verdict(metric="step"),
        ]
    )
    told = {name: causes.times_of(verdicts) for name, verdicts in found.items()}

    assert told == {"latency": {Link(0, 1): 0.5}, "bandwidth": {Link(0, 1): 0.25}}


SIZES = [4 * 2**n for n in range(25)]


@pytest.mark.parametrize(("latency_s", "s_per_byte"), [(2e-4, 1e-9), (1e-8, 1e-9), (2e-4, 1e-12)])
def test_the_terms_a_sweep_was_made_of_are_found(latency_s: float, s_per_byte: float) -> None:
    terms = fit_link_terms({size: latency_s + s_per_byte * size for size in SIZES})

    assert terms == (pytest.approx(latency_s, rel=1e-6), pytest.approx(s_per_byte, rel=1e-6))


def test_disturbed_sizes_and_slower_calls_move_their_own_term_alone() -> None:
    before = fit_link_terms({size: 2e-4 + 1e-9 * size for size in SIZES})
    after = fit_link_terms({size: 3e-4 + 1e-9 * size for size in SIZES})
    assert after == (pytest.approx(1.5 * before[0]), pytest.approx(before[1]))

    times = {size: 2e-4 + 1e-9 * size for size in SIZES}
    disturbed = fit_link_terms({**times, 4 * 2**3: 5e-3, 2**24: 1.0})
    assert disturbed == (pytest.approx(2e-4, rel=0.02), pytest.approx(1e-9, rel=0.02))

    assert min(fit_link_terms({4: 2.0, 64: 1.0, 1024: 0.5, 4096: 0.1})) > 0
    assert min(fit_link_terms({4: 1e-9, 64: 1e-6, 1024: 1e-2, 4096: 1.0})) > 0


SLOWER = verdict("beyond-threshold")


def lines(made: CaseResult) -> list[str]:
    return cause_lines(replace(made, causes=find_causes(made)))


def causes_with(made: CaseResult, words: str) -> list[str]:
    return [line for line in lines(made) if words in line]


def test_of_a_sweep_it_is_said_whether_a_call_or_a_byte_costs_more() -> None:
    def point(size: int) -> Finding:
        then = 1e-5 + size * 1e-9
        at = {"message_bytes": size}
        return replace(SLOWER, metric=metric_key("latency", at), at=at, baseline=then, current=then + 2e-5)

    assert lines(result(*map(point, (8, 64, 512, 1024, 4096, 16384)))) == [
        "latency is slower at all 6 sizes",
        "  latency term 10 us -> 30 us (+200.0 %), bandwidth term 1 s/GB -> 1 s/GB (+0.0 %)",
        "",
    ]


def link(source: int, target: int, code: str = "within-threshold", **changes: object) -> Finding:
    at = Link(source, target).at
    return replace(SLOWER, metric=metric_key("latency", at), at=at, code=code, **changes)


def test_slow_links_are_named_by_rank_or_by_link() -> None:
    matrix = [link(0, 1), link(0, 2, "beyond-threshold"), link(1, 2, "beyond-threshold")]
    assert causes_with(result(*matrix), "slow") == ["rank 2: every link of this rank is slow (latency of 3 links)"]
    [line] = causes_with(result(*matrix, launches=[LAUNCH_ON_HOSTS]), "slow")
    assert line == "rank 2 (c): every link of this rank is slow (latency of 3 links)"

    one = [link(0, 1, "beyond-threshold"), link(0, 2), link(1, 2)]
    everything = [link(0, 1, "beyond-threshold"), link(0, 2, "beyond-threshold"), link(1, 2, "beyond-threshold")]
    found = causes_with(result(*one, launches=[LAUNCH_ON_HOSTS]), "slow")
    assert found == ["rank 0 to rank 1 (a to b): this link is slow (latency of 3 links)"]
    seen = causes_with(result(*everything), "slow")
    assert seen == ["all 3 links are slow: no single rank, no single pair (latency of 3 links)"]
    assert causes_with(result(one[0]), "slow") == ["rank 0 to rank 1: this link is slow (latency)"]
    many = [link(a, b, "beyond-threshold" if (a + b) % 2 else "equal") for a, b in itertools.combinations(range(6), 2)]
    assert causes_with(result(*many), "more links") == ["  and 1 more links"]

    # Two links that are a little slower than the third do not hide the one that is beyond
    matrix = [link(0, 1, "no-baseline", current=1.0), link(0, 2, "no-baseline", current=1.4)]
    matrix.append(link(1, 2, "no-baseline", current=9.0))
    beyond = Finding(
        metric="imbalance[of=latency]", at={"of": "latency"}, code="bound", unit="", better="info", current=9.0,
        bounds=[Bound(side="most", value=3.0, where="here")],
    )  # fmt: skip
    assert causes_with(result(*matrix), "slow") == []
    assert causes_with(result(*matrix, beyond), "slow") == ["rank 1 to rank 2: this link is slow (latency of 3 links)"]


LAUNCH_ON_HOSTS = LaunchRecord(index=0, outcome="passed", wall_s=1.0, hosts=["a", "b", "c"])


@pytest.mark.parametrize(
    ("hit", "words"),
    [
        ([4, 8, 16, 32], "at all 4 sizes"),
        ([16, 32], "from 16 B up"),
        ([4, 8], "up to 8 B"),
        ([8, 16], "from 8 B to 16 B"),
        ([8], "at 8 B only"),
        ([4, 16], "at 2 of 4 sizes, first at 4 B"),
    ],
)
def test_sizes_in_words(hit: list[int], words: str) -> None:
    assert causes.which(hit, [4, 8, 16, 32]) == words

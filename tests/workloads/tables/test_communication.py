"""The tables of communication: bucket sizes, growth with the world size, links."""

from __future__ import annotations

import itertools

from support.fingerprints import of, reduce
from support.results import point, result, verdict

from pytest_distbench.records.case import Conditions
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.metric import metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.workloads.causes import Link
from pytest_distbench.workloads.tables.communication import BUCKETS, GROWTH, LINK_TEXT, LINKS, growth_rows, link_points


def bucket(calls: str, tensors: int, seconds: float | None) -> Finding:
    at = {"calls": calls, "tensors": tensors}
    return verdict(metric=metric_key("latency", at), at=at, facts={"message_bytes": 10**6}, current=seconds)


def test_each_way_is_compared_with_its_own_fewest_tensors() -> None:
    made = result(bucket("each", 214, 0.04), bucket("each", 2, 0.01), bucket("coalesced", 2, 0.02))
    assert [row[1:] for row in BUCKETS.table([made]).texts] == [
        ["each", "2", "976.6 KiB", "10000.0", "1.00", "0.100", "unchanged"],
        ["each", "214", "976.6 KiB", "40000.0", "4.00", "0.025", "unchanged"],
        ["coalesced", "2", "976.6 KiB", "20000.0", "1.00", "0.050", "unchanged"],
    ]

    assert BUCKETS.table([result(point(8), bucket("each", 1, None))]).rows == []


def latency(link: Link, seconds: float) -> Finding:
    return verdict(metric=metric_key("latency", link.at), at=link.at, current=seconds)


def matrix(ranks: int, *slow: tuple[int, int]) -> CaseResult:
    links = [Link(*pair) for pair in itertools.combinations(range(ranks), 2)]
    return result(*(latency(link, 5e-4 if link in slow else 1e-4) for link in links))


def test_a_slow_link_or_rank_is_noted_at_each_link_of_more_than_two_ranks() -> None:
    found = {point.link: point.note for point in link_points(matrix(4, (1, 3))) if point.note}
    assert found == {Link(1, 3): "this link"}

    points = list(link_points(matrix(4, (0, 2), (1, 2), (2, 3))))
    assert {point.link for point in points if point.note == "rank 2"} == {Link(0, 2), Link(1, 2), Link(2, 3)}
    assert {point.share for point in points} == {1.0, 5.0}

    [point] = link_points(matrix(2))
    assert (point.note, point.share, point.latency_s, point.bandwidth) == ("", None, 1e-4, None)

    links = [Link(0, 1), Link(0, 2), Link(1, 2)]
    rates = [
        verdict(metric=metric_key("bandwidth", link.at), at=link.at, better="higher", unit="GB/s", current=rate)
        for link, rate in zip(links, (10.0, 2.0, 10.0), strict=True)
    ]
    [_, slow, _] = link_points(result(*(latency(link, 1e-4) for link in links), *rates))
    assert (slow.note, slow.share, slow.bandwidth) == ("this link", 5.0, 2.0)

    assert [v.at for v in LINK_TEXT.choose(matrix(4, (1, 3)).verdicts)] == [{"from": 1, "to": 3}]
    assert not LINK_TEXT.is_of(result(verdict()))


def test_each_link_is_a_row() -> None:
    links = [
        verdict(metric=metric_key("latency", Link(*pair).at), at=Link(*pair).at, current=seconds)
        for pair, seconds in (((0, 1), 1e-4), ((0, 2), 5e-4), ((1, 2), 1e-4))
    ]

    assert LINKS.table([result(*links)]).texts[1] == [
        "test_a[ws2]", "0", "2", "500.0", "-", "5.00", "this link", "unchanged",
    ]  # fmt: skip


def at(family: str, ranks: int, fingerprint: Fingerprint, *, run: str = "") -> CaseResult:
    made = result()
    conditions = Conditions(world_size=ranks, backend="fake", launcher="warm", fake_rank=0)
    launch = replace(made.launches[0], fingerprints={"step": fingerprint})
    case_id = f"{family}-ws{ranks}".strip("-")
    named = replace(made.case, id=case_id, family=family, run=run, names_size=bool(run), conditions=conditions)
    return replace(made, case=named, launches=[launch])


def test_sizes_of_one_test_stand_together_with_the_factor_to_the_smallest() -> None:
    results = [
        at("fsdp", 64, of(reduce(1024), facts={"parameter_bytes": {"0": 128}})),
        at("ddp", 8, of(reduce(4))),
        at("ddp", 64, of(reduce(4))),
        at("fsdp", 8, of(reduce(1024), facts={"parameter_bytes": {"0": 1024}})),
    ]

    assert GROWTH.table(results).texts == [
        ["test_a[fsdp]", "step", "8", "1", "1 KiB", "1 KiB", "0 B"],
        ["test_a[fsdp]", "step", "64", "1 (x1)", "1 KiB (x1)", "128 B (x0.125)", "0 B"],
        ["test_a[ddp]", "step", "8", "1", "4 B", "0 B", "0 B"],
        ["test_a[ddp]", "step", "64", "1 (x1)", "4 B (x1)", "0 B", "0 B"],
    ]


def test_what_did_not_grow_or_has_no_fingerprint_has_no_row() -> None:
    assert not list(growth_rows([at("", 2, of()), at("", 2, of())]))
    assert not list(growth_rows([at("", 2, Fingerprint(missing="not recorded")), result()]))

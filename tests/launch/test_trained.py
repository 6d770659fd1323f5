"""Samples of a launch, from the ranks' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_distbench.launch.trained import by_ranks, samples_of
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.metric import REPLICAS, SAID, SAVED, WEIGHTS, Sample
from pytest_distbench.records.trained import Option, TensorState, Trained


def state(digest: str, *, form: str = "float32 4", norm: float = 1.0, change: float = 1.0) -> TensorState:
    return TensorState(form, digest, norm, 0.1, 0.2, change)


def reports(*ranks: Trained) -> list[RankReport]:
    return [RankReport(rank=i, outcome="passed", phase="body", phases={}, trained=one) for i, one in enumerate(ranks)]


def rank_of(
    *checks: str,
    end: TensorState | str = "a",
    updates: Sequence[int] = (1, 2, 4, 8),
    replicas: Mapping[str, list[int]] | None = None,
    options: Mapping[str, Option] | None = None,
) -> Trained:
    """A rank with one weight, by its digests after updates."""
    return Trained(
        updates=9,
        weights={"w": end if isinstance(end, TensorState) else state(end)},
        names=["w"],
        replicas={"w": [0, 1, 2]} if replicas is None else dict(replicas),
        checks=[(update, [digest]) for update, digest in zip(updates, checks, strict=False)],
        options=dict(options or {}),
    )


def replicas(*ranks: Trained) -> Sample | None:
    return next((m for m in samples_of(reports(*ranks)) if m.name == REPLICAS), None)


def test_what_ranks_hold_alike_stands_once() -> None:
    a, b = state("a"), state("b")
    found = by_ranks({0: {"x": a, "y": a}, 1: {"x": a, "y": b}, 2: {"x": a, "y": b}}, 3)

    assert found == {"all": {"x": a}, "0": {"y": a}, "1-2": {"y": b}}


def test_weights_have_their_updates_options_and_norm_and_a_file_the_moves_of_its_weights() -> None:
    one = Trained(
        updates=7,
        weights={"net.w": state("a", norm=3.0, change=0.5), "b": state("b", norm=4.0)},
        saved={"m.pt: model.net.w": state("c", change=0.0), "m.pt: epoch": state("d", change=0.0)},
        options={"SGD: lr": 0.5},
    )
    weights, saved = samples_of(reports(one, Trained(updates=6)))

    assert (weights.name, weights.value, weights.identity) == (WEIGHTS, 5.0, {"updates": 7})
    assert weights.tensors["0"]["the number of updates"].norm == 7
    assert weights.options == {"0": {"SGD: lr": 0.5}}
    assert saved.name == SAVED
    assert {name: s.change for name, s in saved.tensors["0"].items()} == {"m.pt: model.net.w": 0.5, "m.pt: epoch": 0.0}
    assert samples_of(reports(Trained(), Trained())) == []


TWO, THREE = rank_of("1", "2"), rank_of("1", "2", "3")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([TWO, TWO, TWO], ""),
        ([TWO, rank_of("9", "8"), TWO], "rank 1 holds other values than rank 0, from update 1 on: w"),
        ([THREE, THREE, rank_of("1", "2", "9")], "rank 2 holds other values than rank 0, between updates 2 and 4: w"),
        ([TWO, rank_of("9", "2"), TWO], ""),  # it was made equal again
        ([rank_of("1", end="x"), rank_of("1"), rank_of("1")], ""),  # rank 0 evaluates an average
        ([rank_of("1", replicas={}), rank_of("9", replicas={}), rank_of("1", replicas={})], ""),
        ([rank_of("1", replicas={"w": [0]}), rank_of("9", replicas={"w": [1]}), rank_of("7", replicas={"w": [2]})], ""),
        ([rank_of("1"), rank_of(""), rank_of("1")], "rank 1 holds other values than rank 0, from update 1 on: w"),
    ],
)
def test_replicas_that_differ_are_named_with_the_updates_between_which_they_parted(
    ranks: list[Trained], text: str
) -> None:
    found = replicas(*ranks)

    assert ("" if found is None else found.facts[SAID]) == text
    assert found is None or [(bound.side, bound.value) for bound in found.bounds] == [("most", 0)]


@pytest.mark.parametrize(
    ("form", "apart", "is_reported"),
    [("bfloat16 4", 0.005, False), ("bfloat16 4", 0.5, True), ("float32 4", 0.005, True), ("float16 4", 0.005, True)],
)
def test_stochastic_rounding_of_a_low_precision_is_no_fault(form: str, apart: float, is_reported: bool) -> None:
    ends = [TensorState(form, "a", 1.0, 0.1, 0.2, 1.0), TensorState(form, "b", 1.0 + apart, 0.1, 0.2, 1.0)]
    ranks = [rank_of("1", end=ends[0]), rank_of("9", end=ends[1])]

    assert (replicas(*ranks) is not None) == is_reported

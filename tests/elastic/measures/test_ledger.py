"""Digests at checkpoints and loads, compared: ranks among each other, and what their models were given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from support.timelines import JOB, Timeline, but

from pytest_distbench.elastic.measures import ledger, measure
from pytest_distbench.elastic.measures.ledger import LOADS, PARAMETERS, RANDOM, STATE, count, mismatches
from pytest_distbench.elastic.records import RANDOM_PART, HeldAt, event
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event


def held(at: HeldAt, rank: int, generation: int, model: str, *, step: int = 6, stream: str = "") -> Event:
    of = {"t": 20.0 + 20 * generation, "slot": rank, "generation": generation, "rank": rank, "at": at}
    place = {"step": step, "epoch": 0, "position": 6}
    return event("held", **of, **place, parameters={"model": model}, random={"torch": stream} if stream else {})


def went_on(*slots: int) -> Timeline:
    """Two nodes to step 10 with a checkpoint of step 6, and some behind it."""
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=11.0, steps=10, saved=[6])
    timeline.generation(1, slots, first=31.0, steps=6, resumed=6)
    return timeline


def changed(lines: Sequence[Event]) -> dict[str, int]:
    timeline = went_on(0, 1)
    timeline.lines += lines
    found = mismatches(timeline.history)
    return {metric: number for metric in (*LOADS, RANDOM) if (number := count(found, metric)[0])}


@pytest.mark.parametrize(
    ("nodes", "updates", "given_up", "number"),
    [
        ((2, 1), (1, 1), False, 0),
        ((2, 1), (1, 0.5), False, 0),  # gradients are accumulated, for as many samples a step
        ((2, 1), (1, 0.5), True, 1),
        ((2, 1), (1, 0.25), False, 1),
        ((1, 2), (0.5, 1), False, 0),
        ((1, 2), (1, 2), False, 2),
        ((2, 2), (1, 0.5), False, 2),
        ((2, 2), (1, 0.9), False, 0),  # one of ten may be on its way
        ((1, 1), (0.5, 0.5), False, 0),
        ((1, 1), (1, 0.8), False, 1),
    ],
)
def test_optimizers_step_as_often_as_before_for_a_batch_or_for_as_many_samples(
    nodes: tuple[int, int], updates: tuple[float, float], given_up: bool, number: int
) -> None:
    timeline = Timeline()
    for generation, count_ in enumerate(nodes):
        timeline.generation(generation, range(count_), first=11.0 + 20 * generation, steps=10)
    timeline.lines = [
        but(
            line,
            updates=int(line.step * updates[line.generation]) - int((line.step - 1) * updates[line.generation]),
            is_given_up=given_up and line.generation > 0 and line.step % 2 == 0,
        )
        if line.what == "stepped"
        else line
        for line in timeline.lines
    ]

    assert count(mismatches(timeline.history), ledger.UPDATES)[0] == number


@pytest.mark.parametrize(
    ("nodes", "betas", "number"),
    [
        ((1, 2), ["a", "b"], 0),  # a rule for the number of nodes, perhaps
        ((2, 2), ["a", "b"], 2),
        ((2, 1, 2), ["a", "b", "a"], 0),
        ((2, 1, 2), ["a", "b", "b"], 2),
        ((1, 2, 1), ["a", "b", "b"], 1),
        ((1, 2, 1, 2), ["a", "b", "a", "c"], 2),
        ((2, 1, 2), ["ab", "bc", "cd"], 0),  # a schedule moves them from step to step
        ((2, 2), ["ab", "bc"], 0),
        ((1, 2), ["a", "a,b"], 1),  # the newcomer's alone
        ((1, 3), ["a", "b,b,c"], 1),
    ],
)
def test_options_are_those_of_rank_0_and_of_a_generation_of_as_many_nodes(
    nodes: tuple[int, ...], betas: list[str], number: int
) -> None:
    timeline = Timeline()
    for generation, count_ in enumerate(nodes):
        behind = 6 * generation
        timeline.generation(generation, range(count_), first=11.0 + 20 * generation, steps=6, resumed=behind)
        for rank in range(count_):
            mine = betas[generation].split(",")
            begun, saved = (mine[rank if len(mine) > 1 else 0] * 2)[:1], mine[rank if len(mine) > 1 else 0][-1]
            timeline.lines += [
                but(held(at, rank, generation, "a", step=step), options={"AdamW": [f"betas {value}", "eps 1e-08"]})
                for at, step, value in (("begin", behind, begun), ("save", behind + 6, saved))
            ]

    found = mismatches(timeline.history)
    assert count(found, STATE)[0] == number
    assert all(re.fullmatch("AdamW is set to betas ., and .* to betas .", told) for *_, told in found)


def test_a_field_counts_where_all_ranks_have_it_and_it_moves_from_checkpoint_to_checkpoint() -> None:
    def line(at: HeldAt, rank: int, generation: int, step: int, value: str) -> Event:
        return but(held(at, rank, generation, "a", step=step), fields={"clips": {"mean": value}})

    begins = [line("begin", rank, generation, 0, "fresh") for generation in (0, 1) for rank in (0, 1)]
    alike = [line("save", rank, 0, step, f"of {step}") for rank in (0, 1) for step in (3, 6)]
    still = [line("save", rank, 0, step, "filled") for rank in (0, 1) for step in (3, 6)]
    apart = [line("save", rank, 0, step, f"of {step} and {rank}") for rank in (0, 1) for step in (3, 6)]

    assert changed([*begins, *alike]).get(STATE) == 2
    assert STATE not in changed([*begins, *still])  # a cache
    assert STATE not in changed([*begins, *apart])  # a clock
    assert STATE not in changed([*begins[:2], *alike, *(line("begin", r, 1, 6, "set by the body") for r in (0, 1))])


@pytest.mark.parametrize(("second", "number"), [("a", 0), ("b", 1), (None, 0)])
def test_differing_ranks_are_reported_for_a_job_without_changes_too(second: str | None, number: int) -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=11.0, steps=10, saved=[6])
    timeline.lines += [held("save", 0, 0, "a"), *([held("save", 1, 0, second)] if second else [])]
    _, found = measure(replace(JOB, checkpoint_every=6), timeline.history)

    assert {m.name: m.value for m in found if m.name in LOADS} == {ledger.REPLICAS: number}


@pytest.mark.parametrize(
    ("begun", "found"),
    [([("a", "r0"), ("a", "r1")], {}), ([("a", "r0")] * 2, {RANDOM: 1}), ([("b", "r0"), ("b", "r1")], {PARAMETERS: 2})],
)
def test_all_ranks_have_to_begin_with_what_rank_0_held_and_each_with_its_own_random_stream(
    begun: list[tuple[str, str]], found: dict[str, int]
) -> None:
    lines = [held("save", 0, 0, "a", stream="r0"), held("save", 1, 0, "a", stream="r1")]
    lines += [held("load", rank, 1, "a", stream="new") for rank in (0, 1)]
    lines += [held("begin", rank, 1, model, stream=stream) for rank, (model, stream) in enumerate(begun)]

    assert changed(lines) == found


@pytest.mark.parametrize(
    ("before", "behind", "number"),
    [
        (("own 0", "own 1"), ("r0", "r0"), 1),
        (("own 0", "own 1"), ("r0", "own 1"), 0),
        (("own 0", "own 1"), ("r0", "drawn again"), 0),
        (("one seed", "one seed"), ("r0", "r0"), 0),  # whoever seeds all ranks alike means it
        (("own 0", ""), ("r0", "r0"), 0),  # nobody looked
    ],
)
def test_a_newcomer_that_had_random_numbers_of_its_own_keeps_them(
    before: tuple[str, str], behind: tuple[str, str], number: int
) -> None:
    timeline = Timeline()
    timeline.generation(0, [0], first=11.0, steps=10, saved=[6])
    timeline.generation(1, [0, 1], first=31.0, steps=6, resumed=6)
    fresh = [{RANDOM_PART: stream} if stream else {} for stream in before]
    timeline.lines += [
        held("save", 0, 0, "a", stream="r0"),
        *(but(held("load", rank, 1, "a", stream=behind[rank]), fresh=fresh[rank]) for rank in (0, 1)),
        *(held("begin", rank, 1, "a", stream=behind[rank]) for rank in (0, 1)),
    ]

    assert count(mismatches(timeline.history), RANDOM)[0] == number


@pytest.mark.parametrize(
    ("state", "position", "number"),
    [
        ("fresh", 6, 1),
        ("of the next epoch", 6, 0),  # a sampler that was told its epoch
        ("fresh", 0, 0),  # what is counted per epoch
        ("saved", 6, 0),
    ],
)
def test_a_part_that_came_back_and_is_as_before_the_load_in_the_middle_of_an_epoch_was_reset(
    state: str, position: int, number: int
) -> None:
    lines = [
        but(held(at, 0, generation, "a"), states={"stopper": digest}, position=position, fresh={"stopper": "fresh"})
        for at, generation, digest in (("save", 0, "saved"), ("load", 1, "saved"), ("begin", 1, state))
    ]

    assert changed(lines).get(STATE, 0) == number


def test_ranks_that_differ_at_a_checkpoint_lose_what_only_one_of_them_writes() -> None:
    assert changed([held("save", 0, 0, "a"), held("save", 1, 0, "b")]) == {ledger.REPLICAS: 1}


@pytest.mark.parametrize(
    ("slot", "steps", "rate", "number"),
    [
        (1, [7], 0.05, 1),  # the newcomer's is another one than rank 0's
        (None, [7, 8, 9, 10, 11, 12], 0.05, 2),  # both took step 7 with 0.2 before
        (None, [11, 12], 0.05, 0),  # a schedule
    ],
)
def test_a_learning_rate_of_one_rank_alone_or_of_a_redone_step_is_wrong(
    slot: int | None, steps: list[int], rate: float, number: int
) -> None:
    timeline = went_on(0, 1)
    timeline.lines = [
        but(line, lr=rate)
        if line.what == "stepped" and line.generation and line.step in steps and slot in (None, line.slot)
        else line
        for line in timeline.lines
    ]

    assert count(mismatches(timeline.history), ledger.RATE)[0] == number


def test_a_rate_is_wrong_where_a_schedule_or_a_number_of_nodes_does_not_explain_it() -> None:
    lines = [but(held("step", rank, 1, "a"), rates={"that steps": [rate]}) for rank, rate in ((0, 0.2), (1, 0.3))]

    assert changed(lines) == {ledger.RATE: 1}
    assert changed([lines[0], but(lines[1], rates={"that steps": [0.2]})]) == {}
    assert mismatches(went_on(0).history) == []


@pytest.mark.parametrize(
    ("inputs", "number"),
    [
        ({0: "ab", 1: "cd"}, 0),
        ({0: "ab", 1: "ab"}, 1),
        ({0: "ab", 1: "ab", 2: "ab"}, 2),
        ({0: "ab", 1: "ac"}, 0),  # by chance, in one step
        ({0: "aa", 1: "aa"}, 0),  # made-up data
        ({0: "a", 1: "a"}, 0),  # one step says nothing
    ],
)
def test_ranks_whose_models_were_given_the_same_in_every_step_that_was_seen_share_batches(
    inputs: dict[int, str], number: int
) -> None:
    timeline = Timeline()
    timeline.lines += [
        event("fed", t=float(step), slot=slot, generation=0, step=step, digest=digest)
        for slot, digests in inputs.items()
        for step, digest in enumerate(digests)
    ]

    assert len(ledger.shared_batches(timeline.history)) == number


@pytest.mark.parametrize(
    ("before", "behind", "batch", "number"),
    [
        ([6, 6], [3, 3], 6, 1),
        ([6, 6], [6, 6], 6, 0),
        ([6, 6], [6, 3], 6, 0),  # in one step
        ([6, 6], [5, 5], 6, 0),  # a few samples were left out
        ([6, 6], [4, 4], 4, 0),  # the batch follows the number of nodes
        ([12, 12], [6, 6], 6, 0),  # fed twice per step before: nobody knows why
        ([6, 5], [3, 3], 6, 0),  # rows are not samples
    ],
)
def test_a_worker_whose_model_gets_half_of_its_batches_after_a_load_is_reported(
    before: list[int], behind: list[int], batch: int, number: int
) -> None:
    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=2, batch=6, saved=[2])
    timeline.generation(1, [0], first=21.0, steps=2, resumed=2, batch=batch)
    timeline.lines += [
        event("fed", t=50.0, slot=0, generation=generation, step=step, digest="", rows={"model": rows})
        for generation, first, given in ((0, 1, before), (1, 3, behind))
        for step, rows in enumerate(given, first)
    ]

    assert len(ledger.cut_batches(timeline.history)) == number


def test_a_checkpoint_that_was_written_twice_counts_as_the_newest_generation_wrote_it() -> None:
    timeline = Timeline()
    for generation, first in ((0, 1.0), (1, 21.0)):
        timeline.generation(generation, [0], first=first, steps=8)
    timeline.generation(2, [0], first=41.0, steps=3, resumed=6)
    timeline.lines += [held("save", 0, 0, "a"), held("save", 0, 1, "b"), held("begin", 0, 2, "b")]

    assert mismatches(timeline.history) == []

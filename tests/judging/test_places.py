"""Which lines of the code explain a slowdown. No launch is made."""

from __future__ import annotations

import random

import pytest

from pytest_distbench.judging.places import changed_text, compare_peaks, compare_places, map_lines
from pytest_distbench.records.places import (
    BACKWARD,
    DATA,
    WAITING,
    CasePlaces,
    LoopPlaces,
    Place,
    RankPlaces,
    Spot,
)

MS, MIB = 1e-3, 2**20
MODEL = [f"line {number}" for number in range(1, 21)]
NORM, STEP, READ = ("layers.py", 9, "norm"), ("train.py", 5, "step"), ("data.py", 3, "read")
SOURCES = dict.fromkeys(("layers.py", "train.py", "data.py"), MODEL)

Done = dict[tuple[Place, str], tuple[float, float]]  # calls and milliseconds, by place and what is done there
USUAL: Done = {(NORM, "aten::mm"): (12, 3), (STEP, "Python"): (0, 1), (READ, "aten::copy_"): (2, 2)}


def rank(*done: Done, sources: dict[str, list[str]] = SOURCES, callers: tuple[Place, ...] = ()) -> RankPlaces:
    spots = [
        Spot(stack=[place, *callers], what=what, calls=calls, amount=ms * MS)
        for each in done
        for (place, what), (calls, ms) in each.items()
    ]
    total_s = sum(spot.amount for spot in spots)
    loop = LoopPlaces(loop="step", iterations=20, iteration_s=total_s, wall_s=1.5 * total_s, spots=spots)
    return RankPlaces(loops=[loop], sources=sources)


def compared(now: RankPlaces, then: Done = USUAL, again: Done | None = None) -> CasePlaces:
    return compare_places([now], [rank(then)], [rank(again or then)], "step")


def test_an_operator_that_is_called_more_often_at_a_line_is_named_with_its_share() -> None:
    found = compared(rank(USUAL | {(NORM, "aten::mm"): (24, 6), (STEP, "Python"): (0, 1.2)}))

    assert found.sentence == "94 % of the added 3.2 ms: layers.py:9 in norm, aten::mm 12 -> 24 calls"
    assert found.rows[0].amounts == pytest.approx((3 * MS, 6 * MS))
    assert found.overhead == pytest.approx(1.5)


def test_shares_are_of_what_was_judged_where_that_is_known_and_calls_need_no_more() -> None:
    slower, usual = rank(USUAL | {(NORM, "aten::mm"): (24, 6)}), [rank(USUAL)]
    disturbed = [rank(USUAL | {(READ, "aten::copy_"): (2, 9)})]

    judged = compare_places([slower], usual, usual, "step", added_s=4 * MS)
    assert judged.sentence.startswith("75 % of the added 4 ms: layers.py:9")
    assert compare_places([slower], usual, usual, "other", added_s=4 * MS).sentence.startswith(
        "100 % of the added 3 ms"
    )
    assert [row.place for row in compare_places([slower], usual, disturbed, "step", added_s=3 * MS).rows] == [NORM]


def test_calls_that_differ_stand_before_a_place_that_takes_more_time() -> None:
    found = compared(rank(USUAL | {(NORM, "aten::mm"): (13, 4), (STEP, "Python"): (0, 4)}))

    assert [row.place for row in found.rows] == [NORM, STEP]
    assert "25 % of the added 4 ms" in found.sentence


def test_shares_of_places_that_add_more_than_was_judged_are_of_their_sum() -> None:
    both = USUAL | {(NORM, "aten::mm"): (24, 6), (READ, "aten::copy_"): (4, 5)}
    found = compare_places([rank(both)], [rank(USUAL)], [rank(USUAL)], "step", added_s=2 * MS)

    assert [(row.place, row.share) for row in found.rows] == [(NORM, 0.5), (READ, 0.5)]
    assert found.sentence.startswith("50 % of the added 2 ms: layers.py:9 in norm"), "the recorder took 6 ms for it"


def test_where_other_lines_take_less_shares_are_of_what_lines_add() -> None:
    now: Done = {(NORM, "aten::mm"): (24, 6), (READ, "aten::copy_"): (4, 5)}
    found = compared(rank(now))

    assert [(row.place, row.share) for row in found.rows] == [(NORM, 0.5), (READ, 0.5)]
    assert found.sentence.startswith("50 % of the 6 ms that lines add (5 ms in all): layers.py:9 in norm")


def test_the_share_of_rows_that_are_not_shown_is_in_the_sentence() -> None:
    many: Done = {(("a.py", line, "f"), "aten::mm"): (1, 1) for line in range(1, 9)}
    twice: Done = dict.fromkeys(many, (2, 2))
    found = compare_places([rank(twice)], [rank(many)], [rank(many)], "step", added_s=10 * MS)

    assert len(found.rows) == 5
    assert found.sentence.endswith("; 30 % is in 3 other places; 20 % is in no single place")


def test_calls_that_differ_on_a_changed_line_are_named_whatever_share_they_explain() -> None:
    more = USUAL | {(STEP, "aten::_to_copy"): (4, 0.1)}
    changed = rank(more, sources={**SOURCES, "train.py": [*MODEL[:4], "line 5 in float64"]})

    for now, named in ((rank(more), []), (changed, [STEP])):
        found = compare_places([now], [rank(USUAL)], [rank(USUAL)], "step", added_s=5 * MS)
        assert [row.place for row in found.rows] == named


def test_calls_that_differ_between_two_launches_of_the_baseline_are_no_difference() -> None:
    found = compared(rank(USUAL | {(NORM, "aten::mm"): (13, 3.1)}), again=USUAL | {(NORM, "aten::mm"): (14, 3.3)})

    assert found.rows == []


def test_a_place_by_time_alone_has_to_exceed_the_noise() -> None:
    slow = USUAL | {(STEP, "Python"): (0, 3)}

    assert [row.place for row in compared(rank(slow)).rows] == [STEP]
    assert compared(rank(slow), again=USUAL | {(READ, "aten::copy_"): (2, 4.5)}).rows == []
    assert compare_places([rank(slow)], [rank(USUAL)], None, "step").sentence == "no place stands out"


@pytest.mark.parametrize(("added_ms", "is_named"), [(1.8, False), (2.5, True)])
def test_an_unchanged_place_exceeds_twice_what_any_place_differed_by(added_ms: float, is_named: bool) -> None:
    """One stall of 1 ms at one place may be one of 2 ms at another place in another launch."""
    usual: Done = {(("a.py", line, "f"), "aten::mm"): (1, 20) for line in range(1, 31)}
    stalled: Done = {(("a.py", 1, "f"), "aten::mm"): (1, 21)}
    found = compared(rank(usual | {(("a.py", 2, "f"), "aten::mm"): (1, 20 + added_ms)}), usual, usual | stalled)

    assert [row.place[1] for row in found.rows] == [2] * is_named


def test_a_new_line_needs_no_noise_and_a_changed_one_its_own_alone() -> None:
    slept, noisy = (("train.py", 6, "step"), "Python"), [rank(USUAL | {(READ, "aten::copy_"): (2, 9)})]
    new = rank(USUAL | {slept: (0, 2)}, sources={**SOURCES, "train.py": [*MODEL[:5], "sleep()", *MODEL[5:]]})
    changed = rank(USUAL | {(STEP, "Python"): (0, 3)}, sources={**SOURCES, "train.py": [*MODEL[:4], "line 5 + 1"]})

    for now, place in ((new, slept[0]), (changed, STEP)):
        assert [row.place for row in compare_places([now], [rank(USUAL)], noisy, "step", added_s=2 * MS).rows] == [
            place
        ]
    assert compare_places([new], [rank(USUAL)], None, "step").rows[0].place == slept[0]
    assert compare_places([changed], [rank(USUAL)], None, "step").rows == []
    unchanged = rank(USUAL | {slept: (0, 2)})
    assert compare_places([unchanged], [rank(USUAL)], noisy, "step", added_s=2 * MS).rows == []


def test_where_every_place_is_slower_none_is_named() -> None:
    found = compared(rank({what: (calls, 1.08 * ms) for what, (calls, ms) in USUAL.items()}))

    assert (found.sentence, found.rows) == ("every place slower by about 8 %", [])


@pytest.mark.parametrize("seed", range(20))
def test_launches_of_the_same_code_have_no_place_that_stands_out(seed: int) -> None:
    drawn = random.Random(seed)
    spots = {(("a.py", line, "f"), what): line for line in range(1, 12) for what in ("aten::mm", BACKWARD)}
    launches = [rank({key: (2, line * drawn.lognormvariate(0, 0.1)) for key, line in spots.items()}) for _ in range(3)]
    now, then, again = ([launch] for launch in sorted(launches, key=lambda r: -r.loops[0].iteration_s))

    assert compare_places(now, then, again, "step").rows == []


def test_one_noisy_wait_does_not_show_how_much_longer_it_takes_in_another_launch() -> None:
    drawn, named = random.Random(1), 0
    for _ in range(200):
        sides = []
        for _ in range(3):
            ms = 4 * drawn.lognormvariate(0, 0.5)  # of both ranks: they wait for each other
            sides.append([rank(USUAL | {(STEP, f"{WAITING}all_reduce"): (0, ms)})] * 2)
        named += bool(compare_places(*sides, "step").rows)

    assert named <= 2


def test_the_late_rank_has_the_place_and_not_the_one_that_waits_for_it() -> None:
    wait = ((STEP, f"{WAITING}all_reduce"), (0.0, 1.0))
    usual = USUAL | dict([wait])
    waiting = rank(usual | {wait[0]: (0, 6)})
    late = rank(usual | {(READ, "Python"): (0, 5)})
    found = compare_places([waiting, late], [rank(usual)] * 2, [rank(usual)] * 2, "step")

    assert [(row.place, row.rank) for row in found.rows] == [(READ, 1)]
    assert found.sentence == "100 % of the added 5 ms: data.py:3 in read, in rank 1, Python"


def test_a_place_is_of_a_rank_unless_all_have_it() -> None:
    more = rank(USUAL | {(NORM, "aten::mm"): (24, 6)})
    disturbed = rank(USUAL | {(NORM, "aten::mm"): (24, 30)})
    usual = [rank(USUAL)] * 2

    assert compare_places([more, disturbed], usual, usual, "step").rows[0].rank is None
    assert compare_places([rank(USUAL), more], usual, usual, "step").rows[0].rank == 1


def test_a_line_at_another_position_is_no_change_and_a_new_one_is() -> None:
    longer = {**SOURCES, "layers.py": ["# more", "", *MODEL[:8], "new", *MODEL[8:]]}
    at = {(("layers.py", 12, "norm"), "aten::mm"): (12.0, 3.0), (("layers.py", 11, "norm"), "aten::mul"): (4.0, 2.0)}
    rest = {key: value for key, value in USUAL.items() if key[0] != NORM}
    found = compared(rank(rest | at, sources=longer))

    assert [(row.place, row.calls) for row in found.rows] == [(("layers.py", 11, "norm"), (0, 4))]
    assert found.rows[0].changed_at == ("layers.py", 11)
    assert changed_text(found.rows[0]) == "here"


def test_what_an_unchanged_line_does_more_often_is_changed_where_it_is_called() -> None:
    changed = {**SOURCES, "train.py": [*MODEL[:14], "twice", *MODEL[15:]]}
    more = USUAL | {(NORM, "aten::mm"): (24, 6)}
    called = rank(more, sources=changed, callers=(("layers.py", 2, "block"), ("train.py", 15, "forward")))
    elsewhere = rank(more, sources=changed)
    twice = rank(more, sources={**changed, "data.py": ["other", *MODEL[1:]]})

    assert compared(called).rows[0].changed_at == ("train.py", 15)
    assert compared(elsewhere).rows[0].changed_at == ("train.py", 15)
    assert compared(twice).rows[0].changed_at == ("", 0)
    assert compared(called).sentence.endswith("12 -> 24 calls (changed at train.py:15)")


def test_lines_are_matched_through_renames_and_replaced_ones_by_what_they_look_like() -> None:
    then = {"old.py": ["a = 1", "b = a @ c"], "same.py": ["x", "y = x + 1", "z"]}
    now = {"new.py": ["import os", "a = 1", "b = a @ c"], "same.py": ["x", "n = 3", "y = x + 2", "z"]}
    lines = map_lines(then, now)

    assert [lines.of("old.py", line) for line in (1, 2)] == [("new.py", 2), ("new.py", 3)]
    assert lines.of("same.py", 2) == ("same.py", 3)
    assert lines.changed == {("new.py", 1), ("same.py", 2), ("same.py", 3)}


def test_what_no_place_explains_is_said() -> None:
    lost = {((f"m{number}.py", 1, "f"), "Python"): (0.0, 0.1) for number in range(40)}
    then = dict.fromkeys(lost, (0.0, 0.05))
    found = compared(rank(USUAL | {(NORM, "aten::mm"): (24, 6)} | lost), then=USUAL | then)

    assert found.sentence.endswith("; 40 % is in no single place")


def peak(*done: Done, sources: dict[str, list[str]] = SOURCES) -> RankPlaces:
    """What is alive at the peak, in tensors and MiB."""
    spots = [
        Spot(stack=[place], what=what, calls=calls, amount=mib * MIB)
        for each in done
        for (place, what), (calls, mib) in each.items()
    ]
    return RankPlaces(loops=[], peaks={"peak_memory": spots}, sources=sources)


def test_the_line_that_holds_the_most_more_is_first_and_what_no_tensor_holds_is_shown() -> None:
    more = peak(USUAL | {(NORM, "aten::mm"): (12, 63.0), (STEP, "Python"): (1, 31.0)})
    found = compare_peaks([peak(USUAL), more], [peak(USUAL)] * 2, "peak_memory", added_bytes=100 * MIB)

    assert [(row.place, row.rank, row.share) for row in found.rows] == [(NORM, 1, 0.6), (STEP, 1, 0.3)]
    assert found.rows[0].amounts == (3 * MIB, 63 * MIB)
    assert found.unit == "B"
    assert found.sentence == (
        "60 % of the added 100 MiB: layers.py:9 in norm, in rank 1, aten::mm; not by tensors: 10 MiB"
    )
    assert compare_peaks([more] * 2, [peak(USUAL)] * 2, "peak_memory", added_bytes=90 * MIB).sentence == (
        "67 % of the added 90 MiB: layers.py:9 in norm, aten::mm"
    )


def test_memory_that_no_tensor_holds_names_no_line() -> None:
    found = compare_peaks([peak(USUAL)], [peak(USUAL)], "peak_memory", added_bytes=340 * MIB)

    assert (found.sentence, found.rows) == ("no line holds more; not by tensors: 340 MiB", [])


def test_sides_without_a_loop_in_common_are_not_compared() -> None:
    assert compare_places([RankPlaces(loops=[])], [rank(USUAL)], None, "step").why_not
    assert compare_places([rank(USUAL)], [rank(USUAL)], None, "other").metric == "step"


def test_a_rank_whose_worker_decodes_longer_is_the_late_one() -> None:
    decode = (READ, DATA)
    usual, waits = {(STEP, "Python"): (0, 5), decode: (0, 1)}, (STEP, f"{WAITING}all_reduce")
    then, now = [rank(usual), rank(usual)], [rank(usual | {decode: (0, 4)}), rank(usual | {waits: (0, 3)})]

    sentence = "100 % of the added 3 ms: data.py:3 in read, in rank 0, waiting for data"
    assert compare_places(now, then, then, "step").sentence == sentence

"""What a baseline holds, and a run measures no more, or less of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.metrics import metric, timed
from support.stores import SOFTWARE, entry, result

from pytest_distbench.judging.case import compare
from pytest_distbench.judging.entry import stored_samples
from pytest_distbench.judging.terms import Terms, lost_part
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.records.wire import Event


def series(count: int, better: Better = "lower", **changes: Any) -> Sample:
    values = [1.0] * count
    spread = Spread(n=count, minimum=1.0, p25=1.0, median=1.0, p95=1.0, p99=1.0, mean=1.0, stdev=0.0)
    made = Sample(name="t", unit="s", better=better, value=1.0, values=values, spread=spread, ranks=2)
    return replace(made, **changes)


OTHER = ": another number under the same name"


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (series(5), series(5), ""),
        (series(5), series(1), "1 value in a launch; the baseline has 5"),
        (series(5), series(3), ""),
        (series(3, "curve"), series(1, "curve"), "1 value of the series; the baseline has 3"),
        (series(3, "exact"), series(2, "exact"), "2 values of the series; the baseline has 3"),
        (series(5), series(5, ranks=1), "recorded by 1 rank, by 2 in the baseline"),
        (series(5, ranks=1), series(5), ""),
        (series(5), series(5, "info"), "recorded as 'info' now, which is not judged; the baseline has 'lower'"),
        (series(5), series(5, reduce="min"), f"reduced over the ranks by 'min', by 'max' in the baseline{OTHER}"),
        (series(5), series(5, unit="ms"), f"recorded as 'lower' in ms now, as 'lower' in s in the baseline{OTHER}"),
        (series(5), series(5, "higher"), f"recorded as 'higher' in s now, as 'lower' in s in the baseline{OTHER}"),
        (series(5, reduce="mean"), series(5, reduce="mean"), ""),
        (series(50, companions={"cpu_s": 1.0}), series(5, companions={"cpu_s": 1.0}), ""),
    ],
    ids=str,
)
def test_a_lost_part_of_a_metric_is_described_in_words(then: Sample, now: Sample, words: str) -> None:
    assert lost_part(stored_samples([then, then]), [now]) == words


def test_a_metric_that_is_gone_or_only_shown_is_lost_where_the_baseline_has_it() -> None:
    stored = [replace(m, spread=None) for m in stored_samples([timed(1.0), timed(1.0)])]
    assert lost_part(stored, [replace(timed(1.0), ranks=1, reduce="min")]) == ""

    verdict = judged([metric(1.0), replace(metric(7.0, "exact"), name="sum")], [metric(1.0)])["sum"]
    assert (verdict.kind, verdict.is_failure, verdict.baseline) == ("missing", True, 7.0)
    assert verdict.reason == "the baseline has it, and this run did not measure it"

    now = metric(1.0, "info")
    assert judged([metric(1.0)], [now])["latency"].kind == "missing"
    assert judged([metric(1.0)], [now], metrics=("other",))["latency"].kind == "unchanged"


def judged(
    stored: list[Sample], *launches: list[Sample], events: Sequence[Event] = (), **terms: Any
) -> dict[str, Finding]:
    """Verdicts on launches that measured these, against a baseline of others."""
    case, [launch] = result(1.0).case, result(1.0).launches
    made = [replace(launch, measurements=found, software=SOFTWARE, events=[*events]) for found in launches]
    kept = replace(entry(1.0), workload=case.workload, metrics={m.key: stored_samples([m, m]) for m in stored})
    given = Terms(**({"default_tolerance": 0.1, "max_launches": 10, "cores": 2} | terms))
    found = compare(given, case, made, kept, comparisons=1)
    assert not any(j.is_open for j in found if j.kind == "missing")
    return {j.metric: j for j in found}


def of_size(size: int, name: str = "latency") -> Sample:
    return replace(metric(1.0), name=name, at={"message_bytes": size})


def test_an_improvement_of_a_series_that_became_much_longer_is_none() -> None:
    fast = Spread(n=43, minimum=0.2, p25=0.2, median=0.2, p95=0.2, p99=0.2, mean=0.2, stdev=0.0)
    verdict = judged([series(19)], *[[series(19, value=0.2, spread=fast)]] * 3)["t"]

    assert verdict.kind == "inconclusive"
    assert verdict.reason == "better, but made of 43 values in a launch; the baseline has 19: is it the same number?"


def test_sizes_that_were_left_out_or_had_no_memory_are_not_lost() -> None:
    stored = [of_size(4), of_size(4096)]
    found = judged(stored, [of_size(4)], largest_message=1024)
    assert {v.kind for v in found.values() if v.current is None} == {"inconclusive"}
    assert found["latency[message_bytes=4096]"].reason == "left out by --distbench-max-message"
    assert judged(stored, [of_size(4)])["latency[message_bytes=4096]"].kind == "missing"

    largest = Sample(name="largest_message", unit="B", better="info", value=1024)
    found = judged([of_size(4), of_size(4096)], [of_size(4), largest])
    assert found["latency[message_bytes=4096]"].kind == "inconclusive"


def test_of_a_goal_that_was_missed_the_steps_are_red_and_the_time_is_not_lost() -> None:
    steps = Sample(name="steps_to_accuracy", unit="steps", better="steps", value=50)
    time = Sample(name="time_to_accuracy", unit="s", better="lower", value=1.0)
    found = judged([steps, time], [replace(steps, value=None)])

    assert (found["steps_to_accuracy"].kind, found["time_to_accuracy"].kind) == ("changed", "inconclusive")
    assert judged([steps, time], [steps])["time_to_accuracy"].kind == "missing"


def test_a_timing_of_a_change_that_did_not_happen_is_not_missing_and_a_count_is() -> None:
    stall = Sample(name="stall", unit="s", better="lower", value=1.0, at={"change": "kill 2 to 1"})
    skipped = Sample(name="samples_skipped", unit="", better="exact", value=0)
    judgements = judged([stall, skipped], [metric(1.0)], events=[Event(t=0.0, what="job")]).values()
    found = {j.name: j.kind for j in judgements}

    assert (found["stall"], found["samples_skipped"]) == ("inconclusive", "missing")

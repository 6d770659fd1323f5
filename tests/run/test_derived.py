"""Numbers that a test derives, launch by launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.metrics import metric
from support.stores import result

from pytest_distbench.errors import DerivationError
from pytest_distbench.records.record import replace
from pytest_distbench.run.derived import DerivedNumbers, GivenNumbers, Values
from pytest_distbench.run.samples import Samples


class Made(Samples):
    """Launches with these values, one after the other."""

    def __init__(self, *values: float, foreign_cores: float | None = None) -> None:
        super().__init__()
        self.coming = [replace(launch, foreign_cores=foreign_cores) for launch in result(*values).launches]

    def add(self, *, only: Sequence[str] = ()) -> None:
        self.launches.append(self.coming[len(self)])


def derived(derive: Callable[..., Any], *sources: Samples) -> DerivedNumbers:
    made = DerivedNumbers(metric(None), derive, sources)
    made.add()
    return made


def values(samples: Samples) -> list[float | None]:
    return [launch.measurements[0].value for launch in samples.launches]


def test_given_numbers_are_one_to_a_sample_and_no_more() -> None:
    made = GivenNumbers(metric(None), [1.0, 2.0], {"torch": "2"})
    made.add()
    made.add()

    assert (values(made), made.most) == ([1.0, 2.0], 2)
    assert made.launches[0].software == {"torch": "2"}


def test_a_number_is_made_of_one_launch_of_each_run() -> None:
    made = derived(lambda a, b: a["step"] / b["step"], Made(1.0, 9.0), Made(2.0, 3.0))
    made.add()

    assert values(made) == [0.5, 3.0]


def test_launches_that_are_there_already_are_not_made_again() -> None:
    source = Made(4.0)
    source.add()

    assert values(derived(lambda a: a["step"], source)) == [4.0]
    assert len(source) == 1


def test_a_baseline_of_it_is_worth_no_more_launches_than_one_of_its_sources() -> None:
    dear, cheap = Made(1.0), Made(1.0)
    dear.most_stored, dear.most_open = 3, 5
    made = derived(lambda a, b: 1.0, dear, cheap)

    assert (made.most_stored, made.most_open) == (3, 5)


def test_the_busiest_of_its_launches_is_how_busy_the_machine_was() -> None:
    made = derived(lambda a, b: 1.0, Made(1.0, foreign_cores=0.25), Made(1.0, foreign_cores=1.5))

    assert made.launches[0].foreign_cores == 1.5


def test_a_function_that_gives_none_has_no_value() -> None:
    assert values(derived(lambda a: None, Made(1.0))) == [None]


@pytest.mark.parametrize("returned", [True, "3", b"3", math.nan, math.inf, 1e308, [1.0]])
def test_what_is_no_number_is_refused(returned: object) -> None:
    with pytest.raises(DerivationError, match=r"judge\('latency'\): its function returned .*; wanted a finite number"):
        derived(lambda a: returned, Made(1.0))


def test_a_time_below_zero_is_refused() -> None:
    with pytest.raises(DerivationError, match=r"its function returned -5.0: -5 s is no time that anything takes"):
        derived(lambda a: -5.0, Made(1.0))


def test_an_error_of_the_function_names_its_line_and_the_metrics_there_are() -> None:
    with pytest.raises(DerivationError, match=r"KeyError: 'gone' was not measured; there are step \(.*derived.py:\d+"):
        derived(lambda a: a["gone"], Made(1.0))


def test_values_without_any_metric_say_so() -> None:
    with pytest.raises(KeyError, match="there are none"):
        Values()["step"]

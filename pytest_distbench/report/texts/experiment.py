"""What was stated of an experiment and is of nothing in its run, a line each: a name is spelled wrong, or has moved."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_distbench.errors import show
from pytest_distbench.records.experiment import Experiment
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.launches import names_of_facts
from pytest_distbench.report.texts.layout import Line


def idle_lines(experiment: Experiment, results: Sequence[CaseResult], tests: Collection[str]) -> list[Line]:
    """What the table of the record, and that of the environment, will not show.

    Args:
        experiment: what was stated.
        results: the cases of the run.
        tests: its tests by path and function, those that were skipped among them.
    """
    known = names_of_facts(results)
    example = min(tests, default="")
    wanted = f"wanted a name or pattern such as {example.rpartition('::')[2]} or {example}"
    return [
        *(
            Line(f"? distbench_experiment: [test.{show(of)}] is of no test of this run; {wanted}", "doubt")
            for of in experiment.of_no_test(tests)
        ),
        *(
            Line(
                f"? distbench_experiment: [planned] {name}: the environment of this run has nothing of that name; "
                f"wanted one of {', '.join(known)}",
                "doubt",
            )
            for name in experiment.planned
            if name not in known
        ),
    ]

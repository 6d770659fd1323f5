"""One run judged against another: verdicts for what both have, and the names of the rest."""

from __future__ import annotations

import pytest
from support.stores import HUNG, KEY, PLATFORM, TEST, named, result

from pytest_distbench.judging.case import compare_runs
from pytest_distbench.records.case import BaselineName
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, OtherSideRecord, RunRecord

NAME = BaselineName(platform=PLATFORM, test=TEST, key=KEY)
QUIET = (1.00, 1.01, 0.99, 1.02, 0.98)


def run(*results: CaseResult) -> RunRecord:
    return RunRecord(
        schema=2, distbench="0", started="", duration_s=1.0, world_sizes=[2], gpu=False, results=list(results)
    )


def kinds(old: CaseResult, new: CaseResult, *, tolerance: float = 0.1) -> list[str]:
    return [v.kind for v in compare_runs(run(old), run(new), tolerance=tolerance).verdicts[NAME]]


def test_the_older_run_takes_the_baselines_place_for_the_cases_of_both() -> None:
    slower = result(*[1.5 * v for v in QUIET])
    assert kinds(result(*QUIET), slower) == ["regressed"]
    assert kinds(slower, result(*QUIET)) == ["improved"]
    assert kinds(result(*QUIET), result(3.0)) == ["regressed"], "no answer stays open"
    assert kinds(result(*QUIET), slower, tolerance=1.0) == ["unchanged"]

    found = compare_runs(run(result(*QUIET)), run(result(*QUIET, case=named("ws4"))), tolerance=0.1)
    assert (found.lost, [name.key for name in found.added]) == ([NAME], ["ws4.gloo.warm"])
    assert found.verdicts == {}

    assert compare_runs(run(result(*QUIET[:4])), run(result(*QUIET)), tolerance=0.1).few == 1
    assert compare_runs(run(result(*QUIET)), run(result(*QUIET[:4])), tolerance=0.1).few == 0

    paired = result(*QUIET, reference=OtherSideRecord(kind="paired"))
    assert compare_runs(run(paired), run(paired), tolerance=0.1).verdicts == {}


def test_a_case_that_failed_is_named_and_not_judged() -> None:
    broken = replace(result(*QUIET), launches=[*result(*QUIET).launches, HUNG])
    found = compare_runs(run(result(*QUIET)), run(broken), tolerance=0.1)
    assert (found.failed, found.verdicts) == ([NAME], {})

    found = compare_runs(run(broken), run(result(*QUIET)), tolerance=0.1)
    assert (found.added, found.lost) == ([NAME], [])

    found = compare_runs(run(broken), run(broken), tolerance=0.1)
    assert (found.failed, found.added, found.lost) == ([NAME], [], [])


@pytest.mark.parametrize(("cores", "kind"), [(2, "inconclusive"), (64, "regressed")])
def test_a_busier_machine_is_one_of_the_cores_that_measured_not_of_those_at_the_desk(cores: int, kind: str) -> None:
    """Two cores of other work are much on a machine of two, and nothing on one of 64."""

    def on_the_machine(made: CaseResult, foreign: float) -> CaseResult:
        launches = [replace(launch, foreign_cores=foreign) for launch in made.launches]
        return replace(made, launches=launches, environment=replace(made.environment, cores=cores))

    slower = result(*[1.5 * v for v in QUIET])

    assert kinds(on_the_machine(result(*QUIET), 0.0), on_the_machine(slower, 2.0)) == [kind]

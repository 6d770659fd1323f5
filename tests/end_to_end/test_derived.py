"""Numbers derived from several runs of a test, as a user sees them, with simulated ranks."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from support.projects import Project, run

TEST = """
    def body(rank):
        pass

    def test_efficiency(distbench):
        one = distbench.measure(body, world_size=1, name="one", params={"stand_in": {"step": ONE}})
        two = distbench.measure(body, world_size=2, name="two", params={"stand_in": {"step": TWO}})
        distbench.judge("efficiency", lambda a, b: a["step"] / b["step"], of=[one, two], better="higher")
"""
STEADY = [0.0200, 0.0201, 0.0199, 0.0202, 0.0198, 0.0200, 0.0201, 0.0199, 0.0202, 0.0198]


def make(project: Project, *, one: object = STEADY, two: object = STEADY, test: str = TEST) -> pytest.Pytester:
    return project(test.replace("ONE", repr(one)).replace("TWO", repr(two)))


def record(project: pytest.Pytester, *arguments: str) -> dict[str, dict[str, object]]:
    """The cases of a run by the name of their run."""
    run(project, "--distbench-json=run.json", *arguments)
    results = json.loads((project.path / "run.json").read_text())["results"]
    return {result["case"]["run"]: result for result in results}


def entry(project: pytest.Pytester) -> dict[str, object]:
    files: list[Path] = sorted((project.path / "baselines").rglob("*.json"))
    assert len(files) == 1
    found: dict[str, object] = json.loads(files[0].read_text())["entry"]
    return found


def test_an_update_stores_as_many_launches_as_of_other_metrics_and_the_software(project: Project) -> None:
    made = make(project)
    assert run(made, "--distbench-update").ret == 0
    stored = entry(made)

    assert stored["metrics"]["efficiency"]["launches"] == [1.0] * 5  # type: ignore[index]
    assert stored["software"]["torch"] == "2.13.0"  # type: ignore[index]


def test_a_derived_number_that_falls_is_a_regression(project: Project) -> None:
    made = make(project)
    run(made, "--distbench-update")
    make(project, two=[2 * v for v in STEADY])
    result = run(made)

    result.stdout.fnmatch_lines(["efficiency -50.0 % (threshold -9%)", "*FAILED*efficiency -50.0 %*"])
    assert result.ret == 1


def test_launches_alternate_and_more_are_made_only_while_a_metric_is_undecided(project: Project) -> None:
    made = make(project)
    run(made, "--distbench-update")
    quiet = {case: len(result["launches"]) for case, result in record(made).items()}  # type: ignore[arg-type]
    slower = make(project, two=[2 * v for v in STEADY])
    launches = {case: len(result["launches"]) for case, result in record(slower).items()}  # type: ignore[arg-type]

    assert quiet == {"one": 1, "two": 1, "efficiency": 1}
    assert launches == {"one": 3, "two": 3, "efficiency": 3}


def test_a_derived_regression_against_another_revision_fails(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(
        """
        def body(rank):
            pass

        def test_total(distbench):
            runs = [distbench.measure(body, name=n, params={"stand_in": {"step": 0.1}}) for n in ("a", "b")]
            distbench.judge("total", lambda a, b: a["step"] + b["step"], of=runs, unit="s")
        """
    )
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        assert made.run("git", *command).ret == 0
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")
    result = run(made, "--distbench-against=HEAD")

    result.stdout.fnmatch_lines(["*total +50.0 % against HEAD (*) (threshold +5%)*"])
    assert result.ret == 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            "lambda a, b: a['speed']",
            "*its function raised KeyError: 'speed' was not measured; there are step (*test_it.py:*)",
        ),
        (
            "lambda a, b: 10**400",
            "*its function returned 1000*; wanted a finite number, or None for no value (*test_it.py:*)",
        ),
        ("lambda a: 1.0", "*its function raised TypeError: *takes 1 positional argument but 2 were given*"),
    ],
)
def test_a_function_that_returns_no_number_is_an_error(project: Project, function: str, text: str) -> None:
    made = make(project, test=TEST.replace('lambda a, b: a["step"] / b["step"]', function))
    result = run(made)

    result.stdout.fnmatch_lines([text])
    assert result.ret == 1


def test_what_was_only_measured_is_shown_with_v(project: Project) -> None:
    result = run(make(project), "-v")

    result.stdout.fnmatch_lines(
        ["test_efficiency?ws2:one@ws1?  1 rank started by stand-in, gloo, 1 launch", "*step*20 ms*1 *mean launch"]
    )


COOLING = """
    import contextlib, os
    from pytest_distbench.run.kinds import AROUND

    class Cooling:
        def __init__(self, setup):
            pass

        @contextlib.contextmanager
        def during(self, plan, hosting):
            yield lambda record: record

        def conditions(self, request):
            cooling = os.environ.get("COOLING")
            return {"cooling": cooling, "size": str(request.world_size)} if cooling else {}

        def close(self):
            pass

    AROUND["cooling"] = Cooling
"""


@pytest.mark.parametrize(("values", "of"), [('lambda a, b: a["step"]', "of=[one, two]"), ("[1.0, 1.0, 1.0]", "of=()")])
def test_a_derived_number_carries_what_happened_around_the_launches_it_is_made_of(
    project: Project, monkeypatch: pytest.MonkeyPatch, values: str, of: str
) -> None:
    made = make(project, test=TEST.replace('lambda a, b: a["step"] / b["step"]', values).replace("of=[one, two]", of))
    with (made.path / "conftest.py").open("a") as file:
        file.write(textwrap.dedent(COOLING))
    run(made, "--distbench-update")
    monkeypatch.setenv("COOLING", "low")
    cooled = record(made, "--distbench-no-baseline=fail")

    assert cooled["efficiency"]["case"]["conditions"]["around"] == {"cooling": "low", "size": "1+2"}  # type: ignore[index]
    assert [verdict["kind"] for verdict in cooled["efficiency"]["verdicts"]] == ["new"]  # type: ignore[attr-defined]


def test_launches_of_several_runs_alternate(project: Project, tmp_path: Path) -> None:
    log = tmp_path / "order.txt"
    made = project(
        f"""
        from pytest_distbench.testing import StandInLauncher

        def body(rank):
            pass

        def noted(start):
            def wrapper(self, plan):
                with open({str(log)!r}, "a") as file:
                    file.write(f"{{plan.work.params['who']}}{{plan.index}} ")
                return start(self, plan)
            return wrapper

        def test_order(distbench, monkeypatch):
            monkeypatch.setattr(StandInLauncher, "start", noted(StandInLauncher.start))
            a = distbench.measure(body, name="a", launches=3, params={{"who": "a", "stand_in": {{"step": 0.1}}}})
            b = distbench.measure(body, name="b", launches=2, params={{"who": "b", "stand_in": {{"step": 0.1}}}})
            assert len(a.values("step")) == 3
            assert len(b.values("step")) == 2
        """
    )

    assert run(made).ret == 0
    assert log.read_text().split() == ["a0", "b0", "a1", "b1", "a2"]


def test_an_exact_number_that_changed_with_the_software_is_incomparable(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = TEST.replace('better="higher"', 'better="exact"')
    made = make(project, one=1, two=1, test=test)
    run(made, "--distbench-update")
    make(project, one=2, two=1, test=test)
    same_software = run(made)
    monkeypatch.setenv("DISTBENCH_STAND_IN_SOFTWARE", "torch=2.14.0")
    other_software = run(made)

    assert same_software.ret == 1
    assert other_software.ret == 0
    other_software.stdout.fnmatch_lines(["*x *efficiency*the number changed, and so did the software versions*"])


def test_one_noisy_number_is_not_stored_because_nothing_could_be_judged_by_it(project: Project) -> None:
    made = project("def test_one(distbench):\n    distbench.judge('v', 3.0)\n")
    result = run(made, "--distbench-update")

    result.stdout.fnmatch_lines(["*not stored: v has one value*"])
    assert result.ret == 1
    assert list((made.path / "baselines").rglob("*.json")) == []


def test_values_of_measured_runs_have_an_updates_launches(project: Project) -> None:
    made = project(
        """
        def body(rank):
            pass

        def test_half(distbench):
            one = distbench.measure(body, params={"stand_in": {"step": [0.02, 0.0201]}})
            distbench.judge("half", [v / 2 for v in one.values("step")], unit="s")
        """
    )
    run(made, "--distbench-update")

    assert len(entry(made)["metrics"]["half"]["launches"]) == 10  # type: ignore[index]


def test_a_point_is_part_of_a_derived_metrics_name(project: Project) -> None:
    made = make(project, test=TEST.replace("of=[one, two]", 'at={"nodes": 2}, of=[one, two]'))
    run(made, "--distbench-update")

    assert list(entry(made)["metrics"]) == ["efficiency[nodes=2]"]  # type: ignore[call-overload]

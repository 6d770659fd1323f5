"""The fixture distbench: what a test gets of it, what it finds, and what it refuses."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from support.fixtures import made_up_distbench
from support.projects import TEST, Project, run, stored
from support.results import verdict
from support.stores import CASE, result

from pytest_distbench.errors import BackendUnavailable
from pytest_distbench.judging.terms import Terms
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import Source

UNJUDGED = "nothing was measured that can be judged"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("distbench.run(lambda rank: None)", "*is defined inside a function*move it to module level*"),
        ("distbench.run('nowhere.py::body')", "*there is no file*nowhere.py*"),
        ("distbench.run('test_it.py::')", "*no function named after*"),
        ("distbench.run(42)", "*body 42 is a int*"),
        ("distbench.run(body, params={'x': object()})", "*params?'x'? is not JSON-able*"),
        ("distbench.run(body, params={'x': float('nan')})", "*params?'x'? is not JSON-able: Out of range float*"),
        ("distbench.run(body, params={'x': {1, 2}})", "*params?'x'? is not JSON-able*set*"),
        ("distbench.judge('v', [])", "*judge('v'): no value to judge*"),
        ("distbench.run(body, params={'stand_in': {'a!info': 1}})", f"*{UNJUDGED}: the body recorded a; *"),
        (
            "[distbench.run(body, params={'stand_in': {'a': 1}}) for _ in range(2)]",
            "*already has a run without a name*",
        ),
    ],
)
def test_misuse_in_a_test_is_a_failure_without_our_traceback(project: Project, line: str, message: str) -> None:
    made = project(f"""
        def body(rank):
            pass

        def test_step(distbench):
            {line}
    """)
    result = run(made)

    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*fixtures.py*")
    assert result.ret == 1
    assert stored(made) == []


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("0.90 0.91 0.89 0.90 0.91", "0.5 0.51 0.5 0.5 0.5", "efficiency -44.* % (threshold -*%)"),
        ("0.90 0.91", "0.72 0.728", "FAILED *- Regression: efficiency -20.* %*"),  # no launch can be added
    ],
)
def test_derived_metrics_are_judged_at_once_against_their_own_baseline(
    project: Project, monkeypatch: pytest.MonkeyPatch, before: str, after: str, text: str
) -> None:
    made = project("""
        import os

        def test_efficiency(distbench):
            distbench.judge("efficiency", [float(x) for x in os.environ["EFF"].split()], better="higher")
    """)
    monkeypatch.setenv("EFF", before)
    assert run(made, "--distbench-update").ret == 0
    assert run(made).ret == 0
    monkeypatch.setenv("EFF", after)
    result = run(made)

    result.stdout.fnmatch_lines([text])
    assert result.ret == 1


def test_a_working_directory_that_is_gone_is_an_error(project: Project) -> None:
    made = project("""
        def body(rank):
            pass

        def test_it(distbench, tmp_path, monkeypatch):
            monkeypatch.chdir(tmp_path)
            tmp_path.rmdir()
            distbench.run(body)
    """)
    result = run(made)

    result.stdout.fnmatch_lines(["cannot start ranks: * working directory, in which they run, is gone: No such file*"])
    assert result.ret == 1


NOT_HERE = "backend 'mpi' is not available here"


@pytest.mark.parametrize(
    ("backends", "ends", "text"),
    [
        (("mpi",), pytest.exit.Exception, f"--distbench-backend: {NOT_HERE}"),
        (("mpi", "ucc"), pytest.exit.Exception, f"--distbench-backend: {NOT_HERE}"),
        (("gloo", "mpi"), pytest.skip.Exception, f"not available: {NOT_HERE}: this"),
    ],
)
def test_a_backend_that_torch_has_not_skips_its_tests_and_ends_a_run_that_has_no_other(
    tmp_path: Path, backends: tuple[str, ...], ends: type[BaseException], text: str
) -> None:
    def call() -> None:
        raise BackendUnavailable("mpi", "this build of torch has gloo, fake", ["gloo", "fake"])

    with pytest.raises(ends, match=text):
        made_up_distbench(Path(__file__), tmp_path, backend=backends).path.do(call)


def test_no_space_for_the_run_directory_is_an_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk full, TMPDIR gone: no traceback of ours."""

    def fail(**options: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp")

    made = project(TEST)
    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    result = run(made)

    text = "cannot start ranks: No space left on device: /tmp. The run directory is below TMPDIR*"
    result.stdout.fnmatch_lines([text])
    assert result.ret == 1


class NoSamples(Source):
    """None are made."""

    def add(self, *, only: object = ()) -> None:
        """Adds none."""


REQUEST = CaseRequest(nodeid="n", case=CASE, terms=Terms(default_tolerance=0.1, max_launches=9, cores=2), launches=1)
RUN = Run(REQUEST, NoSamples())
RUN.found = result(1.0, None, 3.0, verdicts=[verdict("beyond-threshold", metric="step")])


def test_a_run_has_its_values_by_launch_and_its_verdicts_by_metric() -> None:
    assert RUN.values("step") == [1.0, None, 3.0]
    assert len(RUN.launches) == 3

    with pytest.raises(KeyError, match="'gone' was not measured; there are step"):
        RUN.values("gone")

    assert RUN.verdicts["step"].kind == "regressed"

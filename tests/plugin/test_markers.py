"""Markers: what they say of a test, and what they may not say."""

from __future__ import annotations

import pytest
from support.projects import EXIT_USAGE, Project, run


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (
            "distbench(tolerence=0.1)",
            "*test_step*unknown keyword tolerence; known are: timeout, *, metrics, bounds, xfail_perf*",
        ),
        ("distbench(tolerance='big')", "*tolerance='big'; wanted a fraction*"),
        ("distbench(launches=0)", "*launches=0; wanted a whole number from 1 to 1000*"),
        ("distbench(launches=2.9)", "*launches=2.9; wanted a whole number from 1 to 1000*"),
        ("distbench(timeout=1e300)", "*timeout=1e+300; wanted seconds, above 0 and at most 604800*"),
        ("distbench(tolerance={})", "*tolerance={}; wanted a fraction such as 0.05, or one per metric name*"),
        ("distbench(bounds=['step'])", "*bounds=?'step'?; wanted a dict such as *"),
        ("distbench(bounds={'step': 'fast'})", "*bounds?'step'?: 'fast' is no bound: wanted a number, or a text*"),
        ("distbench(0.1)", "*takes keywords only*"),
        ("world_size(2, mx=4)", "*world_size: unknown keyword mx; known are: min, max*"),
        ("world_size('two')", "*world_size: wants numbers of ranks*"),
        ("world_size(min=4, max=2)", "*min=4 is more than max=2*"),
        ("world_size(2, min=3)", "*world_size: none of 2 lies within min and max*"),
        ("gpu(1)", "*@pytest.mark.gpu takes no arguments, found (1,)*"),
    ],
)
def test_a_bad_marker_is_a_usage_error(project: Project, marker: str, message: str) -> None:
    made = project(f"""
        import pytest

        @pytest.mark.{marker}
        def test_step(distbench):
            raise AssertionError("must not run")
    """)
    result = run(made)

    result.stderr.fnmatch_lines([message])
    assert result.ret == EXIT_USAGE

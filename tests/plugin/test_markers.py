"""Markers: what they say of a test, and what they may not say."""

from __future__ import annotations

import pytest
from support.projects import EXIT_USAGE, Project, run


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (
            "distbench(tolerence=0.1)",
            "*unknown keyword tolerence; known are: timeout, *, metrics, bounds, xfail_perf*",
        ),
        ("distbench(tolerance='big')", "*tolerance='big'; wanted a fraction*"),
        ("distbench(launches=0)", "*launches=0; wanted a whole number of at least 1 and at most 1000*"),
        ("distbench(timeout=1e300)", "*timeout=1e+300; wanted seconds, above 0 and at most 604800*"),
        ("distbench(bounds=['step'])", "*bounds=?'step'?; wanted a dict such as *"),
        ("distbench(bounds={'step': 'fast'})", "*bounds?'step'?: 'fast' is no bound: wanted a number, or a text*"),
        ("distbench(takes='soon')", "*takes='soon'; wanted how long the test takes: '2 min', '40 s' or a number of *"),
        ("distbench(takes='2 GiB')", "*takes='2 GiB'; wanted how long*"),
        ("distbench(takes=0)", "*takes=0; wanted how long*above 0 and at most a week*"),
        ("distbench(takes='300 h')", "*takes='300 h'; wanted how long*"),
        ("distbench(0.1)", "*takes keywords only*"),
        ("world_size(2, mx=4)", "*world_size: unknown keyword mx; known are: min, max*"),
        ("world_size('two')", "*world_size: wants numbers of ranks*"),
        ("world_size(min=4, max=2)", "*min=4 is more than max=2*"),
        ("world_size(2, min=3)", "*world_size: none of 2 lies within min and max*"),
        ("gpu(1)", "*@pytest.mark.gpu takes keywords only, found (1,)*"),
        ("gpu(memory=1)", "*gpu: unknown keyword memory; known are: min_memory, capability, link*"),
        ("gpu(min_memory='much')", "*gpu: min_memory='much'; wanted a size such as '40GiB', or *"),
        ("gpu(capability=9)", "*gpu: capability=9; wanted a text such as '9.0'*"),
        ("gpu(link='fast')", "*gpu: link='fast'; wanted one of nvlink, p2p*"),
        ("cpu(1)", "*@pytest.mark.cpu takes keywords only, found (1,)*"),
        ("gpu\n        @pytest.mark.cpu", "*gpu and @pytest.mark.cpu: a test is on the one or on the other*"),
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

    result.stderr.fnmatch_lines([f"*test_it.py::test_step (test_it.py:3): {message}"])
    assert result.ret == EXIT_USAGE


CLASSES = """
    import pytest

    P = {"stand_in": {"count!exact": 7}}

    def body(rank):
        pass

    class Base:
        world_size = WORLD_SIZE

    class TestUnfit(Base):
        @pytest.mark.parametrize("x", ["a"])
        def test_it(self, distbench, x):
            raise AssertionError("must not run")

        def test_plain(self, distbench):
            raise AssertionError("must not run")

        @pytest.mark.world_size(3)
        def test_marked(self, distbench):
            assert distbench.world_size == 3

        def test_of_its_own(self, world_size):
            assert world_size

    class TestFit:
        def test_it(self, distbench):
            distbench.run(body, params=P)
"""


@pytest.mark.parametrize("value", ["'two'", "0", "[]", "[2, 'x']", "True", "2.0"])
def test_a_class_whose_world_size_is_none_is_the_error_of_its_tests_alone(project: Project, value: str) -> None:
    made = project(CLASSES.replace("WORLD_SIZE", value))
    result = run(made, "--world-size", "3")

    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(
        [f"Base.world_size={value.replace('[', '[[]')} (*/test_it.py); wanted a number of ranks, or a list of such"]
    )


def test_a_world_size_that_a_class_computes_is_another_thing(project: Project) -> None:
    made = project("""
        class TestIt:
            @property
            def world_size(self):
                return 7

            def test_it(self, distbench):
                assert (distbench.world_size, self.world_size) == (2, 7)
    """)

    run(made, "--world-size", "2").assert_outcomes(passed=1)


def test_misspelt_names_of_metrics_are_told(project: Project) -> None:
    """A misspelt tolerance is no tolerance, and a misspelt metric is not judged: neither passes in silence."""
    made = project("""
        import pytest

        pytestmark = pytest.mark.distbench(tolerance={"step": 0.2, "loss": 0.3})

        def body(rank):
            pass

        P = {"stand_in": {"latency": 0.02}}

        @pytest.mark.distbench(tolerance={"latncy": 0.1})
        def test_marker(distbench):
            distbench.run(body, params=P)

        def test_argument(distbench):
            distbench.run(body, params=P, tolerance={"latency": 0.1, "latency_": 0.1, "latencies": 0.1})

        @pytest.mark.distbench(metrics=["latenzy"])
        def test_metrics(distbench):
            distbench.run(body, params=P)

        def test_others(distbench):
            distbench.run(body, params=P)
    """)
    result = run(made, "-W", "default")

    result.stdout.fnmatch_lines(
        [
            "*nothing that was measured is among the metrics= of the test's marker; there are latency",
            "*test_it.py::test_marker*",
            "*nothing called 'latncy' was judged; is 'latency' meant?",
        ]
    )
    result.stdout.fnmatch_lines(["*nothing called 'latenzy' was judged; is 'latency' meant?"])
    result.assert_outcomes(failed=1, passed=3, warnings=2)


def test_a_tolerance_without_effect_is_told(project: Project) -> None:
    made = project("""
        def body(rank):
            pass

        def test_argument(distbench):
            P = {"stand_in": {"step": 0.02, "count!exact": 7}}
            distbench.run(body, params=P, tolerance={"step": 0.1, "count": 0.1})
    """)
    result = run(made, "-W", "default")

    result.stdout.fnmatch_lines(["*the tolerance for 'count' has no effect: the metric is exact"])
    result.assert_outcomes(passed=1, warnings=1)


def test_numpy_s_numbers_are_numbers(project: Project) -> None:
    made = project("""
        import numpy as np
        import pytest

        def body(rank):
            pass

        @pytest.mark.world_size(np.int64(2))
        @pytest.mark.distbench(timeout=np.int64(60), launches=np.int8(2), tolerance=np.float32(0.5))
        def test_marker(distbench):
            assert len(distbench.run(body, params={"stand_in": {"step": 0.02}}).launches) == 2
    """)

    run(made).assert_outcomes(passed=1)

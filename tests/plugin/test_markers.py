"""The markers of a test, read into its world sizes and one requirement."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.nvml import HOSTS, Card, Host, h100s, simulated
from support.projects import EXIT_USAGE, Project, run, stored

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.machine.gpus import read_gpus
from pytest_distbench.plugin.markers import gpu_obstacle, options_of

TEST = """
    import pytest

    P = {"stand_in": {"count!exact": 7}}

    def body(rank):
        pass

    @pytest.mark.gpu(MARKER)
    def test_on_gpu(distbench):
        assert (distbench.device, distbench.backend) == ("cuda", "nccl")
        distbench.run(body, params=P)

    @pytest.mark.cpu
    def test_on_cpu(distbench):
        assert (distbench.device, distbench.backend) == ("cpu", "gloo")
        distbench.run(body, params=P)
"""


GB10S = Host(cards=[Card(name="GB10", uuid=f"GPU-{i}", bus=i, memory_bytes=None) for i in range(2)])


@pytest.mark.parametrize(
    ("host", "marker", "reason"),
    [
        (Host(cards=h100s(2)), "min_memory='80GiB'", ""),
        (Host(cards=h100s(2)), "min_memory='90GiB'", "*needs GPUs with 90 GiB; GPU 0 has 79.65 GiB*"),
        (Host(cards=h100s(2)), "capability='9.0', link='nvlink'", ""),
        (Host(cards=h100s(2)), "capability='10.0'", "*needs compute capability 10.0; GPU 0 has 9.0*"),
        (HOSTS["8xMI300X"], "capability='9.4', link='xgmi'", ""),
        (HOSTS["8xMI300X"], "link='p2p'", ""),
        (HOSTS["8xMI300X"], "link='nvlink'", "*needs NVLink between its GPUs; GPU 0 and GPU 1 have xgmix1*"),
        (HOSTS["4xL40S"], "link='nvlink'", "*needs NVLink between its GPUs; GPU 0 and GPU 1 have pcie*"),
        (GB10S, "min_memory='1GiB'", "*needs GPUs with 1 GiB; GPU 0 reports none*"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "distbench_"])
def test_a_test_runs_on_the_gpus_that_it_needs(
    project: Project, driver: Callable[[Host], None], host: Host, marker: str, reason: str, prefix: str
) -> None:
    made = project(TEST.replace("MARKER", marker).replace("mark.gpu", f"mark.{prefix}gpu"))
    driver(host)
    result = run(made, "--gpu", "--world-size=2", "-rs", "-k", "on_gpu")

    result.assert_outcomes(passed=int(not reason), skipped=int(bool(reason)))
    if reason:
        result.stdout.fnmatch_lines([reason])


@pytest.mark.parametrize("prefix", ["", "distbench_"])
def test_a_test_on_the_cpu_stays_there_and_is_stored_under_its_class(
    project: Project, driver: Callable[[Host], None], prefix: str
) -> None:
    made = project(TEST.replace("MARKER", "").replace("mark.cpu", f"mark.{prefix}cpu"))
    driver(Host(cards=h100s(2)))
    run(made, "--gpu", "--world-size=2", "--distbench-update").assert_outcomes(passed=2)

    paths = (made.path / "baselines").rglob("*.json")
    stored = sorted(path.relative_to(made.path / "baselines").parts for path in paths)
    cpu, gpu = (True, "test_on_cpu", "ws2.gloo.stand-in.json"), (False, "test_on_gpu", "ws2.nccl.stand-in.json")
    assert [(parts[0].startswith("cpu-"), parts[-2], parts[-1]) for parts in stored] == [cpu, gpu]
    again = run(made, "--gpu", "--world-size=2", "--distbench-prune")
    again.assert_outcomes(passed=2)
    assert "2 metrics" in again.stdout.str()
    assert len(list((made.path / "baselines").rglob("*.json"))) == 2
    run(made, "-k", "on_cpu").assert_outcomes(passed=1)  # without --gpu it is the same case


OTHERS = """
    import pytest

    P = {"stand_in": {"count!exact": 7}}

    def body(rank):
        pass

    @pytest.mark.gpu(4)
    @pytest.mark.distbench_world_size(1, 2)
    def test_theirs(distbench):
        distbench.run(body, params=P)

    @pytest.mark.world_size(1)
    class TestBoth:
        @pytest.mark.distbench_world_size(2)
        def test_closest(self, distbench):
            distbench.run(body, params=P)
"""


def test_the_long_spelling_is_ours_whoever_has_the_short_one(project: Project) -> None:
    made = project(OTHERS)
    text = "*takes keywords only, found (4,). If the marker is not ours: distbench_short_options = false *"
    run(made, "--strict-markers").stderr.fnmatch_lines([text])
    result = run(made, "--strict-markers", "-o", "distbench_short_options=false", "-v")

    result.stdout.fnmatch_lines([
        "*::test_theirs?ws1? N*", "*::test_theirs?ws2? N*", "*::test_closest?ws2? N*", "*= 3 passed*",
    ])  # fmt: skip
    assert "test_closest[ws1]" not in result.stdout.str()
    ours = [
        "@pytest.mark.gpu(min_memory=, *",
        "@pytest.mark.distbench_gpu(min_memory=, *",
        "@pytest.mark.distbench_full: *",
    ]
    run(made, "--markers").stdout.fnmatch_lines(ours)


CLASS = """
    import unittest

    import pytest

    P = {"stand_in": {"count!exact": 7}}

    def body(rank):
        pass

    class TestIt(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def _distbench(self, distbench):
            self.distbench = distbench

        def test_it(self):
            self.assertEqual(self.distbench.run(body, params=P).launches[0].outcome, "passed")

        @pytest.mark.world_size(2, 3)
        def test_sizes(self):
            self.distbench.run(body, params=P)

        @pytest.mark.world_size(8)
        def test_eight(self):
            self.distbench.run(body, params=P)
"""

WARN = ("-W", "default")
"""Warnings are errors around these runs."""


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("distbench(tolerence=0.1)", "*unknown keyword tolerence; known are: timeout, *, metrics, bounds, xfail_perf*"),
        ("distbench(tolerance='big')", "*tolerance='big'; wanted a fraction*"),
        ("distbench(launches=0)", "*launches=0; wanted a whole number of at least 1 and at most 1000*"),
        ("distbench(timeout=1e300)", "*timeout=1e+300; wanted seconds, above 0 and at most 604800*"),
        ("distbench(bounds={'step': 'fast'})", "*bounds?'step'?: 'fast' is no bound: wanted a number, or a text*"),
        ("distbench(0.1)", "*takes keywords only*"),
        ("world_size(2, mx=4)", "*world_size: unknown keyword mx; known are: min, max*"),
        ("world_size('two')", "*world_size: wants numbers of ranks*"),
        ("world_size(min=4, max=2)", "*min=4 is more than max=2*"),
        ("world_size(2, min=3)", "*world_size: none of 2 lies within min and max*"),
        ("gpu(1)", "*@pytest.mark.gpu takes keywords only, found (1,)*"),
        ("gpu(capability=9)", "*gpu: capability=9; wanted a text such as '9.0'*"),
        ("gpu(link='fast')", "*gpu: link='fast'; wanted one of nvlink, xgmi, p2p*"),
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


@pytest.mark.parametrize("value", ["'two'", "[2, 'x']", "True"])
def test_a_class_whose_world_size_is_none_is_the_error_of_its_tests_alone(project: Project, value: str) -> None:
    made = project(CLASSES.replace("WORLD_SIZE", value))
    result = run(made, "--world-size", "3")

    result.assert_outcomes(passed=3, errors=2)
    text = f"Base.world_size={value.replace('[', '[[]')} (*/test_it.py); wanted a number of ranks, or a list of such"
    result.stdout.fnmatch_lines([text])


def test_misspelt_names_of_metrics_are_warned_of(project: Project) -> None:
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

        def test_direction(distbench):
            distbench.run(body, params={"stand_in": {"accuracy!lower": 0.9}})
    """)
    result = run(made, "-W", "default")

    nothing = "*nothing that was measured is among the metrics= of the test's marker; there are latency"
    misspelt = "*no metric 'latncy' was judged; did you mean 'latency'?"
    result.stdout.fnmatch_lines([nothing, "*test_it.py::test_marker*", misspelt])
    result.stdout.fnmatch_lines(["*no metric 'latenzy' was judged; did you mean 'latency'?"])
    result.stdout.fnmatch_lines(["*'accuracy' is recorded with better='lower': an accuracy that falls would*"])
    result.assert_outcomes(failed=1, passed=3, warnings=3)


def test_each_size_has_a_baseline_of_its_own(project: Project) -> None:
    made = project(CLASS)
    for size in ("2", "4"):
        run(made, *WARN, "--distbench-update", "--world-size", size).assert_outcomes(passed=2, skipped=1)
    result = run(made, *WARN, "--world-size", "4", "-rs")

    assert [(path.parent.name, path.name) for path in stored(made)] == [
        ("TestIt.test_it", "ws2.gloo.stand-in.json"),
        ("TestIt.test_it", "ws4.gloo.stand-in.json"),
        ("TestIt.test_sizes", "ws2.gloo.stand-in.json"),
        ("TestIt.test_sizes", "ws3.gloo.stand-in.json"),
    ]
    result.stdout.fnmatch_lines(["* metric* (* unchanged), 2 launch* in *", "*needs 8 ranks, 4 given"])


def test_what_it_does_not_run_at_is_said(project: Project) -> None:
    result = run(
        project(CLASS), *WARN, "--world-size", "2,4", "--distbench-backend", "gloo,mpi", "-k", "not sizes and not eight"
    )

    result.assert_outcomes(passed=1, warnings=1)
    text = "*of unittest.TestCase: it runs on 4 ranks with gloo, and not on 2 ranks, not with mpi. A function*"
    result.stdout.fnmatch_lines([text])


@pytest.mark.parametrize(
    ("sold", "visible_mib"),
    [("80GiB", 81559), ("40GiB", 40536), ("48GiB", 46068), ("24GiB", 23028), ("16GiB", 15360), ("141GiB", 143771)],
)
def test_a_product_has_the_memory_that_it_is_sold_with(sold: str, visible_mib: int) -> None:
    """H100, A100, L40S, A10, T4 and H200 as the driver reports them."""
    card = Card(name="", uuid="GPU-1", bus=1, memory_bytes=visible_mib * 2**20)
    with simulated(Host(cards=[card])):
        found = read_gpus({})

    assert gpu_obstacle(found, 1, **options_of([pytest.mark.gpu(min_memory=sold).mark], "gpu")) == ""
    more = f"{int(sold.removesuffix('GiB')) * 5 // 4}GiB"
    assert "needs GPUs with" in gpu_obstacle(found, 1, **options_of([pytest.mark.gpu(min_memory=more).mark], "gpu"))


@pytest.mark.parametrize("value", [40, "40", "0", "4KiB"])
def test_a_number_without_its_unit_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"wanted a size such as '40GiB', or at least 1048576 bytes"):
        options_of([pytest.mark.gpu(min_memory=value).mark], "gpu")


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


def test_its_markers_are_checked(project: Project) -> None:
    result = run(project(CLASS.replace("world_size(8)", "world_size(mx=8)")))

    assert result.ret == EXIT_USAGE
    result.stderr.fnmatch_lines(["*TestIt::test_eight (test_it.py:22): @pytest.mark.world_size: unknown keyword mx*"])


def test_a_testcase_whose_world_size_is_none_is_the_error_of_its_tests_alone(project: Project) -> None:
    unfit = "        world_size = 'two'\n\n        @pytest.fixture(auto"
    result = run(project(CLASS.replace("        @pytest.fixture(auto", unfit)), *WARN)

    result.assert_outcomes(errors=1, passed=1, skipped=1)
    result.stdout.fnmatch_lines(["TestIt.world_size='two' (*/test_it.py); wanted a number of ranks*"])


def test_a_test_that_requests_the_fixture_as_it_runs_has_a_baseline_per_size_too(project: Project) -> None:
    made = project("""
        import pytest

        def body(rank):
            pass

        @pytest.mark.parametrize("x", ["a"])
        def test_it(request, x):
            request.getfixturevalue("distbench").run(body, params={"stand_in": {"count!exact": 7}})
    """)
    for size in ("2", "4"):
        run(made, "--distbench-update", "--world-size", size).assert_outcomes(passed=1)
    assert run(made, "--world-size", "4", "--distbench-prune").ret == 0
    assert [path.name for path in stored(made)] == ["a-ws2.gloo.stand-in.json", "a-ws4.gloo.stand-in.json"]

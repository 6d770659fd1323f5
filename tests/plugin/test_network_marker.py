"""What the marker network may say, and that a test that says it wrongly stops the run before anything is measured."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.plugin.network_marker import network_of
from pytest_distbench.records.network import Network

mark = pytest.mark


@pytest.mark.parametrize(
    ("marker", "network"),
    [
        (mark.network("1gbit"), Network(rate=1e9)),
        (mark.network("1gbit,delay=1ms"), Network(rate=1e9, delay_s=0.001)),
        (
            mark.network("1gbit", delay="1ms", overlay=True, hosts=2),
            Network(rate=1e9, delay_s=0.001, overlay=True, hosts=2),
        ),
        (mark.network(label="roce"), Network(label="roce")),
    ],
)
def test_a_network_in_one_text_or_in_keywords(marker: pytest.MarkDecorator, network: Network) -> None:
    assert network_of([marker.mark]) == network


def test_the_closest_marker_says_all_of_it() -> None:
    assert network_of(
        [mark.full.mark, mark.network("1gbit").mark, mark.network("100mbit", delay="1ms").mark]
    ) == Network(rate=1e9)
    assert network_of([mark.full.mark]) is None


@pytest.mark.parametrize(
    ("marker", "problem"),
    [
        (mark.network(), "rate=''"),
        (mark.network("1gbit", "2gbit"), r"rate=\('1gbit', '2gbit'\)"),
        (mark.network(10**9), "rate=1000000000"),
        (mark.network("1gbit", delay=0.001), "delay=0.001"),
        (mark.network("1gbit", overlay=1), "overlay=1"),
        (mark.network("1gbit", label="roce"), "a label names what is there"),
        (mark.network("1gbit,delay=1ms", loss="1%"), "rate='1gbit,delay=1ms'"),
    ],
)
def test_what_is_none_is_refused(marker: pytest.MarkDecorator, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"@pytest.mark.network: network .*{problem}"):
        network_of([marker.mark])


def test_a_run_ends_before_anything_is_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.network("1gbit", dealy="1ms")
        def test_a(distbench):
            pass

        @pytest.mark.network("fast")
        def test_b(distbench):
            pass
        """
    )
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "*@pytest.mark.network: unknown keyword dealy; known are: delay, loss, overlay, hosts, label",
            "*@pytest.mark.network: network 'fast': rate='fast'; wanted a rate of 10mbit to 1000gbit or 'unlimited'*",
        ]
    )


def test_an_empty_option_ends_the_run(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--distbench-network=")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--distbench-network * is empty: is the variable it comes from set?"])


def test_an_option_that_is_none_ends_the_run(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--distbench-network=1gbit,dely=1ms")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--distbench-network (ini: distbench_network): network '1gbit,dely=1ms': there is no 'dely'; wanted *"]
    )

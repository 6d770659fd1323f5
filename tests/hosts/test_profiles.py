"""What a network is written as, and which host each rank is of."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.network import Network, host_address, make_network, parse_network, rank_hosts

WRITTEN = {
    "unlimited": Network(),
    "1gbit": Network(rate=1e9),
    "2.5gbit": Network(rate=2.5e9),
    "1000gbit": Network(rate=1e12),
    "100.00004mbit": Network(rate=100_000_040),
    "100mbit,delay=5ms": Network(rate=1e8, delay_s=0.005),
    "10mbit,delay=0.25ms,loss=0.1%,overlay,hosts=2": Network(
        rate=1e7, delay_s=0.00025, loss=0.001, overlay=True, hosts=2
    ),
    "unlimited,overlay": Network(overlay=True),
    "label=infiniband": Network(label="infiniband"),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_network_is_read_and_written(text: str) -> None:
    assert parse_network(text) == WRITTEN[text]
    assert WRITTEN[text].text == text


def test_a_network_is_written_in_several_ways_and_shared_by_its_hosts() -> None:
    assert parse_network(" 1000mbit , delay=1000us ").text == "1gbit,delay=1ms"
    assert make_network(
        "1gbit", {"delay": "1ms", "overlay": True, "loss": None, "hosts": 2}, told="x"
    ) == parse_network("1gbit,delay=1ms,overlay,hosts=2")
    assert parse_network("1gbit,delay=0s").text == "1gbit"

    with pytest.raises(ConfigurationError, match="'1gbit,delay=1ms,delay=2ms': delay stands there twice"):
        parse_network("1gbit,delay=1ms,delay=2ms")

    assert rank_hosts(Network(), 3) == [0, 1, 2]
    assert rank_hosts(Network(hosts=2), 4) == [0, 0, 1, 1]
    assert rank_hosts(Network(hosts=2), 1) == [0]
    with pytest.raises(ConfigurationError, match="3 ranks cannot be shared evenly by 2 hosts"):
        rank_hosts(Network(hosts=2), 3)

    found = [host_address(host) for host in range(600)]
    assert len(set(found)) == 600
    assert found[:2] == ["10.78.0.10", "10.78.0.11"]
    assert all(int(part) < 256 for address in found for part in address.split("."))


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "": "rate=''",
        "fast": "rate='fast'",
        "1 Gbit": "rate='1 Gbit'",
        "9mbit": "rate='9mbit'",
        "1001gbit": "rate='1001gbit'",
        "1gbit,delay=1": "delay='1'",
        "1gbit,delay=-1ms": "delay='-1ms'",
        "1gbit,delay=2s": "delay='2s'",
        "1gbit,delay": "delay=True",
        "1gbit,loss=30%": "loss='30%'",
        "1gbit,overlay=yes": "overlay='yes'",
        "1gbit,hosts=1": "hosts='1'",
        "1gbit,hosts=two": "hosts='two'",
        "1gbit,dealy=1ms": "there is no 'dealy'",
        "label=": "label=''",
        "label=a b": "label='a b'",
        "label=roce,overlay": "a label names what is there",
    }.items(),
)
def test_what_is_no_network_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match="wanted a rate of 10mbit to 1000gbit or 'unlimited'") as raised:
        parse_network(text)
    assert problem in str(raised.value)

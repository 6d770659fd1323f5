"""The links between the ranks of a case that became slower: a launch more, that is neither judged nor stored."""

from __future__ import annotations

import shutil
from pathlib import Path

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.links import by_link, link_at, outliers, typical_time
from pytest_distbench.judging.screening import is_clock
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.link_check import LinkCheck, SlowLink
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.work import BodyReference, Ranks
from pytest_distbench.run.loop import Session

_BODY = Path(__file__).parents[1] / "workloads" / "links.py"
_MESSAGE_BYTES = 64 * 2**10
"""Sixteen of them one after the other: 84 ms at 100 Mbit/s."""
_MOST_RANKS = 32
"""Of which there are 992 links."""


def wants_link_check(result: CaseResult) -> bool:
    """Whether a case became slower whose ranks live on several hosts, and are enough to compare links of."""
    launch = result.launches[-1]
    if launch.outcome != "passed" or result.xfail_perf or by_link(result.verdicts):
        return False
    is_slower = any(v.kind == "regressed" and is_clock(v, v.unit) for v in result.verdicts)
    return is_slower and len(set(launch.hosts)) > 1 and len(launch.hosts) > 2


def check_links(session: Session, launched: LaunchRequest, index: int) -> LinkCheck:
    """Look at every link between the ranks of a case, one at a time; whatever goes wrong is told in the answer.

    Args:
        session: the run.
        launched: of the case.
        index: of the launch.
    """
    if launched.world_size > _MOST_RANKS:
        return LinkCheck(why_not=f"there are {launched.world_size} ranks, and more than {_MOST_RANKS} have too many")
    params = {
        "pattern": "one-way",
        "latency_bytes": 8,
        "bandwidth_bytes": _MESSAGE_BYTES,
        "iterations": 3,
        "warmup": 1,
        "max_imbalance": None,
    }
    body = BodyReference(file=str(_BODY), function="link_matrix")
    request = replace(launched, title="links", work=Ranks(body=body, params=params), read={})
    first = _look(session, request, index)
    return in_both(first, _look(session, request, index + 1)) if first.slow else first


def _look(session: Session, request: LaunchRequest, index: int) -> LinkCheck:
    try:
        with session.alone(request.world_size, takes_host=True):
            record = session.launching.launch(request, index)
    except DistbenchError as error:
        return LinkCheck(why_not=str(error))
    if record.outcome != "passed":
        session.launching.forget(record)
        return LinkCheck(why_not=record.reason.partition("\n")[0])
    shutil.rmtree(record.logs, ignore_errors=True)
    return compare_links(record)


def in_both(first: LinkCheck, second: LinkCheck) -> LinkCheck:
    """What stands out each time: other work of a host makes a link slow for a moment."""
    if second.why_not:
        return first
    again = {(each.source, each.target) for each in second.slow}
    slow = [each for each in first.slow if (each.source, each.target) in again]
    return replace(first, most=min(first.most, second.most), slow=slow)


def compare_links(record: LaunchRecord) -> LinkCheck:
    """Which links stand out in a launch that has measured all of them."""
    rates = {
        link: m.value for m in record.measurements if (link := link_at(m.at)) and m.name == "bandwidth" and m.value
    }
    times = {link: 1 / rate for link, rate in rates.items()}
    if not (typical := typical_time(times)):
        return LinkCheck(why_not="its launch measured too few of them")
    return LinkCheck(
        measured=len(times),
        most=max(times.values()) / typical,
        slow=[
            SlowLink(source=link.source, target=link.target, times=times[link] / typical)
            for link in sorted(outliers(times))
        ],
    )

"""The links between the ranks of a case that became slower: launches more, that are neither judged nor stored."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_distbench.errors import DistbenchError, LauncherError
from pytest_distbench.judging.links import STANDS_OUT, Link, by_link, link_at, outliers, typical_time
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
_MOST_LOOKS = 5
"""So many in which a link stands out are enough."""
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
    try:
        looks = [_look(session, request, index)]
        found = compare_links(looks)
        while found.slow and len(looks) < _MOST_LOOKS:  # other work of a host makes a link slow for a moment
            looks.append(_look(session, request, index + len(looks)))
            found = compare_links(looks)
    except DistbenchError as error:
        return LinkCheck(why_not=str(error))
    return found


def _look(session: Session, request: LaunchRequest, index: int) -> dict[Link, float]:
    """Seconds that a byte takes on each link.

    Raises:
        DistbenchError: the launch did not pass, or could not be made.
    """
    with session.alone(request.world_size, takes_host=True):
        record = session.launching.launch(request, index)
    if record.outcome != "passed":
        session.launching.forget(record)
        raise LauncherError(record.reason.partition("\n")[0])
    shutil.rmtree(record.logs, ignore_errors=True)
    return times_in(record)


def times_in(record: LaunchRecord) -> dict[Link, float]:
    """Seconds that a byte takes on each link, in a launch that has measured all of them; in a unit of its own."""
    return {
        link: 1 / m.value for m in record.measurements if (link := link_at(m.at)) and m.name == "bandwidth" and m.value
    }


def compare_links(looks: Sequence[Mapping[Link, float]]) -> LinkCheck:
    """Which links stand out in the quickest of some looks, by more than the looks differ."""
    links = [link for link in looks[0] if all(link in look for look in looks)]
    ordered = {link: sorted(look[link] for look in looks) for link in links}
    quickest = {link: times[0] for link, times in ordered.items()}
    if not (typical := typical_time(quickest)):
        return LinkCheck(why_not="its launch measured too few of them")
    spread = statistics.median(times[:2][-1] / times[0] for times in ordered.values())
    return LinkCheck(
        measured=len(links),
        most=max(quickest.values()) / typical,
        spread=spread,
        slow=[
            SlowLink(source=link.source, target=link.target, times=quickest[link] / typical)
            for link in sorted(outliers(quickest, STANDS_OUT * spread))
        ],
    )

"""What each file of tests costs, from JUnit files of pytest: ``make durations``.

    python tests/durations.py [--record] REPORT.xml...

CPU seconds count all that a test has started (``support/costs.py``). They are compared with ``durations.csv`` as shares
of one run, so a busy machine changes little: a file whose share has more than doubled is an error. ``--record`` writes
that file instead; pytest begins the longest tests first by it.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from support.costs import PROPERTY

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).with_name("durations.csv")
GROWTH = 2.0
LEAST_SHARE = 0.01
"""Share of the CPU seconds of all tests; files below it do not matter."""
CACHED = "tests/test_lint.py"
"""Not judged: mypy and ruff keep what they found, so the first run in a clone costs five times the next."""
SHOWN = 15


class Cost(NamedTuple):
    """What the tests of a file took in all, with their fixtures."""

    tests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


def read_reports(reports: Sequence[str]) -> dict[str, Cost]:
    """Reports by test file, the most costly first."""
    found: dict[str, Cost] = {}
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            cpu_s = sum(float(p.attrib["value"]) for p in case.iter("property") if p.attrib["name"] == PROPERTY)
            before = found.get(file := case.attrib["file"], Cost())
            found[file] = Cost(before.tests + 1, before.cpu_s + cpu_s, before.wall_s + float(case.attrib["time"]))
    return dict(sorted(found.items(), key=lambda item: item[1].cpu_s, reverse=True))


def read_recorded() -> dict[str, Cost]:
    with RECORDED.open() as file:
        return {
            row["file"]: Cost(int(row["tests"]), float(row["cpu_s"]), float(row["wall_s"]))
            for row in csv.DictReader(file)
        }


def grown(costs: Mapping[str, Cost], recorded: Mapping[str, Cost]) -> list[str]:
    """A line for each file whose share of the CPU seconds has more than doubled since it was recorded.

    Tests may have been left out, so a share is one of the files that both have.
    """
    costs = {file: cost for file, cost in costs.items() if file != CACHED}
    files = costs.keys() & recorded.keys()
    now, then = (sum(side[file].cpu_s for file in files) for side in (costs, recorded))
    lines = []
    for file, cost in costs.items():
        share = cost.cpu_s / now if now else 0.0
        before = recorded[file].cpu_s / then if file in files else 0.0
        if share > max(GROWTH * before, LEAST_SHARE):
            lines.append(f"{file}: {cost.cpu_s:.0f} CPU seconds, {share:.1%} of all; {before:.1%} when recorded")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print the most costly files; record all, or print those that have grown: 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("reports", nargs="+")
    given = parser.parse_args(arguments)
    costs = read_reports(given.reports)
    if not costs:
        sys.exit(f"no test in {', '.join(given.reports)}")
    print("  CPU s   wall s  tests  file")
    for file, (tests, cpu_s, wall_s) in [*costs.items()][:SHOWN]:
        print(f"{cpu_s:7.1f}  {wall_s:7.1f}  {tests:5}  {file}")
    tests, cpu_s, wall_s = map(sum, zip(*costs.values(), strict=True))
    print(f"{cpu_s:7.1f}  {wall_s:7.1f}  {tests:5}  all {len(costs)} files")
    if given.record:
        with RECORDED.open("w", newline="") as out:
            table = csv.writer(out, lineterminator="\n")
            table.writerow(["file", *Cost._fields])
            table.writerows([file, c.tests, f"{c.cpu_s:.1f}", f"{c.wall_s:.1f}"] for file, c in costs.items())
        return 0
    if lines := grown(costs, read_recorded()):
        lines.append("Make them cheaper, or record what they cost: make durations RECORD=--record")
        print(*lines, sep="\n", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

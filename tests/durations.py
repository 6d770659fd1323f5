"""Seconds by file of tests, from JUnit files of pytest; one above its budget is an error: ``make durations``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
SHARE = 0.06
"""Of the time of all files, that one may take: a busy machine makes all of them slower."""
SHARES = {
    "tests/end_to_end/test_confirm.py": 0.12,  # three sides of each test, interleaved
    "tests/end_to_end/test_conformance.py": 0.12,  # waits: each hang, and whoever does not leave
    "tests/elastic/end_to_end/test_elastic.py": 0.08,  # nodes that are lost and join, under the agents of torchrun
    "tests/end_to_end/test_interruptions.py": 0.09,  # whole runs that are ended, and what does not end at once
    "tests/end_to_end/test_pages.py": 0.12,  # whole pages, typed in
}
"""Of files that may take more, and why."""
LEAST_S = 60.0
"""What takes no longer is no matter, however little the others take."""
SHOWN = 15


def seconds_by_file(reports: Sequence[str]) -> Counter[str]:
    """What the tests of each file took in all, with their fixtures."""
    found: Counter[str] = Counter()
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            found[case.attrib["file"]] += float(case.attrib["time"])
    return found


def above_budget(seconds: Mapping[str, float]) -> list[str]:
    """A line for each file that takes more than its share."""
    total = sum(seconds.values())
    return [
        f"{file}: {taken:.0f} s, {taken / total:.1%} of all, and may take {share:.0%}"
        for file, taken in sorted(seconds.items())
        if taken > max(LEAST_S, total * (share := SHARES.get(file, SHARE)))
    ]


def main(reports: Sequence[str]) -> int:
    """Print the files that take longest, then those above their budgets; 1 if there is one."""
    seconds = seconds_by_file(reports)
    if not seconds:
        sys.exit(f"no test in {', '.join(reports) or 'no file'}")
    for file, taken in seconds.most_common(SHOWN):
        print(f"{taken:7.1f} s  {file}")
    print(f"{seconds.total():7.1f} s  all {len(seconds)} files")
    lines = above_budget(seconds)
    print(*lines, sep="\n", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

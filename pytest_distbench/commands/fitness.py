"""``distbench doctor``: is this machine fit to measure?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pytest_distbench.commands.contract import Adder, NegativeError


def add(add_parser: Adder) -> None:
    """Add the command."""
    doctor = add_parser("doctor", help="is this machine fit to measure? each finding with what to do")
    doctor.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> Iterator[str]:
    del options
    from pytest_distbench.commands.doctor.examination import examine
    from pytest_distbench.commands.doctor.finding import Finding, report

    failed = False

    def watch() -> Iterator[Finding]:
        nonlocal failed
        for finding in examine():
            failed = failed or finding.level == "fail"
            yield finding

    yield from report(watch())
    if failed:
        raise NegativeError

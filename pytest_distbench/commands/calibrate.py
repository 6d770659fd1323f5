"""``distbench calibrate``: launches unchanged code in several pytest runs and says what this machine can detect."""

from __future__ import annotations

import argparse
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_distbench.commands.contract import Adder
from pytest_distbench.errors import DistbenchError
from pytest_distbench.installation import __version__
from pytest_distbench.judging import noise
from pytest_distbench.judging.stats import baseline_error_rate
from pytest_distbench.judging.update_policy import FEWEST_LAUNCHES
from pytest_distbench.records.calibration import Calibration
from pytest_distbench.records.choices import DEFAULT_TOLERANCE, MOST_TOLERANCE, TOLERANCE_WANTED
from pytest_distbench.records.options import OPTIONS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.texts.calibration import calibration_lines
from pytest_distbench.store.run_record import CALIBRATIONS, read_run_record

LAUNCHES = 20
"""As many as the recommended baseline; their standard deviation is known to about 16 %."""

ROUND_LAUNCHES = 5
FEWEST_ROUNDS = 2

_SETTLE_S = 10.0
_TAIL_LINES = 15


def add(add_parser: Adder) -> None:
    """Add the command. What its parser does not know is for pytest."""
    parser = add_parser(
        "calibrate",
        help="what can this machine detect? launches unchanged code and proposes tolerances",
        usage="%(prog)s [--launches N | --seconds S] [--tolerance X] [--json FILE] [--all] [PYTEST ARGUMENT ...]",
        allow_abbrev=False,
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--launches",
        metavar="N",
        type=_launches,
        default=LAUNCHES,
        help=f"of every case, in rounds (default: {LAUNCHES})",
    )
    amount.add_argument(
        "--seconds", metavar="S", type=_seconds, help=f"begin rounds of {ROUND_LAUNCHES} launches for as long"
    )
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=_tolerance,
        default=DEFAULT_TOLERANCE,
        help=f"that you would like to promise, as a fraction (default: {DEFAULT_TOLERANCE})",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the findings")
    parser.add_argument("--all", action="store_true", help="show every metric, not the noisiest of each case")
    parser.set_defaults(command=calibrate, pytest_arguments=[])


def calibrate(options: argparse.Namespace) -> Iterator[str]:
    """Measure, then tell."""
    _refuse_ours(options.pytest_arguments)
    if options.json is not None and options.json.is_dir():
        raise DistbenchError(f"--json: {options.json} is a folder; give a file")
    started = time.monotonic()
    rounds: list[list[CaseResult]] = []
    with tempfile.TemporaryDirectory(prefix="distbench-calibrate-") as folder:
        shares = _share_out(options.launches)
        total = f" of {len(shares)}" if options.seconds is None else ""
        for launches in shares if options.seconds is None else _until(started + options.seconds):
            yield f"round {len(rounds) + 1}{total}: {launches} launches of every case ..."
            results, failed = _measure(Path(folder), options.pytest_arguments, launches)
            yield from (f"  {line}" for line in failed)
            rounds.append(results)
            if not any(result.verdicts for result in results):
                break  # the next round would measure nothing either
    found = analyse(rounds, tolerance=options.tolerance, duration_s=time.monotonic() - started)
    if options.json is not None:
        CALIBRATIONS.write(options.json, found)
    yield ""
    yield from calibration_lines(found, show_all=options.all)
    if options.json is not None:
        yield f"written: {options.json}"


def analyse(rounds: Sequence[Sequence[CaseResult]], *, tolerance: float, duration_s: float) -> Calibration:
    """What the cases of several runs of the same code say together."""
    cases: dict[tuple[str, str], list[CaseResult]] = {}
    for result in (result for results in rounds for result in results if result.verdicts):
        cases.setdefault((result.case.test, result.case.key), []).append(result)
    noisy = {key: results for key, results in cases.items() if noise.noisy_metrics(results)}
    if not noisy:
        measured = ", ".join(test for test, _ in cases) or "nothing"
        in_rounds = f"{len(rounds)} round{'s' * (len(rounds) != 1)}"
        raise DistbenchError(
            f"no judged time or throughput has {FEWEST_LAUNCHES} launches; measured in {in_rounds}: {measured}. "
            f"Give tests that measure one, and at least --launches {FEWEST_LAUNCHES}"
        )
    comparisons = sum(len(noise.noisy_metrics(results)) for results in noisy.values())
    alpha = baseline_error_rate(comparisons)
    environment = next(iter(noisy.values()))[0].environment
    return Calibration(
        schema=CALIBRATIONS.schema,
        distbench=__version__,
        platform=environment.platform,
        software=environment.software,
        duration_s=duration_s,
        alpha=alpha,
        wanted_tolerance=tolerance,
        cases=[
            noise.noise_of_case(results, alpha=alpha, tolerance=tolerance, comparisons=comparisons)
            for results in noisy.values()
        ],
    )


def _share_out(launches: int) -> list[int]:
    """So many launches as evenly as can be over rounds of about five, two rounds at least."""
    count = max(FEWEST_ROUNDS, round(launches / ROUND_LAUNCHES))
    return [launches // count + (i < launches % count) for i in range(count)]


def _until(end: float) -> Iterator[int]:
    """Rounds of five launches until this time of the monotonic clock, two at least."""
    done = 0
    while done < FEWEST_ROUNDS or time.monotonic() < end:
        yield ROUND_LAUNCHES
        done += 1


def _measure(folder: Path, arguments: Sequence[str], launches: int) -> tuple[list[CaseResult], list[str]]:
    """One pytest run that judges and stores nothing; its cases, and lines about tests that failed."""
    record, log, empty = folder / "run.json", folder / "log.txt", folder / "baselines"
    record.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", *arguments, f"--distbench-launches={launches}",
        f"--distbench-max-launches={launches}", f"--distbench-baselines={empty}", "--distbench-missing=warn",
        f"--distbench-json={record}", *_clear_options(), "--color=no",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SETTLE_S)  # Ctrl-C reached pytest too: it ends its ranks
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SETTLE_S)
        raise DistbenchError("interrupted: nothing was calibrated") from None
    lines = log.read_text(errors="replace").splitlines()
    if code not in (0, 1) or not record.exists():
        said = "\n".join(lines[-_TAIL_LINES:])
        raise DistbenchError(
            f"pytest {shlex.join(arguments)} ended with exit code {code} and measured nothing. It said last:\n{said}"
        )
    return read_run_record(record).results, [line for line in lines if line.startswith(("FAILED ", "ERROR "))]


def _clear_options() -> Iterator[str]:
    """Given last: that goes before ini files, ``addopts`` and PYTEST_ADDOPTS."""
    for name, option in OPTIONS.items():
        if option.calibration == "cleared":
            yield f"--distbench-{name}={option.cleared}"


def _refuse_ours(arguments: Sequence[str]) -> None:
    for argument in arguments:
        option = argument.partition("=")[0]
        ours = OPTIONS.get(option.removeprefix("--distbench-")) if option.startswith("--distbench-") else None
        if ours is not None and ours.calibration != "free":
            raise DistbenchError(
                f"{option}: calibrate measures without baselines, in rounds of its own; leave it out. "
                "The number of launches is --launches N"
            )


def _launches(text: str) -> int:
    most = 10 * noise.MOST_NEEDED
    if not text.isdecimal() or not FEWEST_LAUNCHES <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {FEWEST_LAUNCHES} to {most}")
    return int(text)


def _seconds(text: str) -> float:
    return _positive(text, "number of seconds")


def _tolerance(text: str) -> float:
    value = _positive(text, "fraction such as 0.1")
    if value > MOST_TOLERANCE:
        raise argparse.ArgumentTypeError(f"{text!r} is not {TOLERANCE_WANTED}")
    return value


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return value

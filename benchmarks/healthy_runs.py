"""How often unchanged code is red: full runs of the suites, one after the other, against one recorded baseline.

    python benchmarks/healthy_runs.py [--runs 20] [--record] [SUITES ...]

Printed per run: seconds, launches per case, how many metrics got which verdict, and every test that failed. The
baseline is the repository's own for this hardware class; ``--record`` measures one first, into a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.store.run_record import read_run_record

ROOT = Path(__file__).parent.parent


def run(suites: Sequence[str], folder: Path, *options: str) -> tuple[list[CaseResult], int, float]:
    """Run the suites once; returns their cases, pytest's exit code and the seconds it took."""
    record = folder / "run.json"
    command = [sys.executable, "-m", "pytest", *suites, "-q", "-p", "no:cacheprovider", f"--distbench-json={record}"]
    start = time.monotonic()
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return read_run_record(record).results, done.returncode, seconds


def described(results: Sequence[CaseResult]) -> str:
    """Launches per case, and the verdicts on all judged metrics."""
    kinds = Counter(v.kind for r in results for v in r.verdicts if v.is_judged)
    launches = sum(len(r.launches) for r in results) / len(results)
    return f"{launches:8.2f}" + "".join(f"{kinds[kind]:13}" for kind in VERDICT_KINDS)


def failures(results: Sequence[CaseResult]) -> Iterator[str]:
    """What failed, and why."""
    for result in results:
        for verdict in result.verdicts:
            if verdict.is_failure:
                yield f"    {result.nodeid} {verdict.metric}: {verdict.kind} {verdict.ratio} {verdict.reason}"
        if result.launches[-1].outcome != "passed":
            yield f"    {result.nodeid}: {result.launches[-1].reason}"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("suites", nargs="*", default=["suites"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="healthy-") as name, contextlib.suppress(KeyboardInterrupt):
        folder = Path(name)
        given = []
        if options.record:
            given = [f"--distbench-baselines={folder / 'baselines'}"]
            run(options.suites, folder, *given, "--distbench-update=all")
        print(f"run  red  seconds{'launches':>9}" + "".join(f"{kind:>13}" for kind in VERDICT_KINDS))
        red = 0
        for number in range(1, options.runs + 1):
            results, code, seconds = run(options.suites, folder, *given)
            red += code != 0
            print(f"{number:>3}  {'yes' if code else 'no':<3} {seconds:>8.0f} {described(results)}", flush=True)
            for line in failures(results):
                print(line, flush=True)
        print(f"{red} of {options.runs} runs red")


if __name__ == "__main__":
    main()

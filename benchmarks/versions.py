"""What works under the torch and the Python that run this: one row of the table in docs/dev/versions.md.

    python benchmarks/versions.py [--parts warm,torchrun,...] [-n 2] [--header]

Run it in an environment with the version in question (`tox run -e oldest` and `-e newest` have one). Each column is a
part of the tests, or the suites: how many passed, of how many; what was skipped is not counted. What failed is told on
stderr.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent

PARTS = {
    "warm": ("tests/end_to_end/test_conformance.py", "tests/launch/starters/test_contract.py", "-k=warm"),
    "torchrun": ("tests/launch/starters/test_contract.py", "-k=torchrun"),
    "rank": ("tests/worker", "tests/workloads"),
    "fingerprint": ("tests/end_to_end/test_fingerprints.py",),
    "A/B": ("tests/end_to_end/test_against.py", "-k=blocks_alternate or its_own_tree or another_python"),
    "suites": (
        "suites",
        "--world-size=2",
        "--distbench-no-baseline=warn",
        "--override-ini=pythonpath=suites/training suites/structure",
    ),
}
"""Column of the table -> arguments of pytest."""
ELASTIC = {
    "fast": (
        "tests/jobs",
        "tests/elastic/end_to_end/test_elastic_engines.py",
        "tests/end_to_end/test_suites.py::test_an_exhibit_is_named_by_its_row_and_a_clean_change_by_none",
        "tests/elastic/end_to_end/test_pool.py",
        "-k=not stock",
    ),
}
"""The same, of the page's table of the fast engine of elastic jobs: asked for with ``--parts fast``."""


def run(arguments: Sequence[str], workers: int, folder: Path) -> tuple[int, int, list[str]]:
    """Run pytest; returns how many passed, of how many, and the names of the others."""
    report = folder / "junit.xml"
    command = [sys.executable, "-m", "pytest", *arguments, f"--junitxml={report}", "-q", "--tb=short"]
    side_by_side = ["-n", str(workers), "--dist=loadgroup"] if arguments[0] != "suites" else ["-p", "no:xdist"]
    done = subprocess.run([*command, *side_by_side], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return 0, 0, [f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"]
    passed, failed = 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" not in outcomes:
            passed += 1
    if failed:
        failed.append(done.stdout[-6000:])
    return passed, passed + len(failed[:-1]), failed


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("-n", type=int, default=2, help="tests side by side")
    parser.add_argument("--header", action="store_true")
    options = parser.parse_args()
    chosen = options.parts.split(",")
    if options.header:
        print("| torch | Python | " + " | ".join(chosen) + " |\n|---|---|" + "---|" * len(chosen))
    cells = []
    with tempfile.TemporaryDirectory(prefix="versions-") as name:
        for part in chosen:
            passed, total, failed = run((PARTS | ELASTIC)[part], options.n, Path(name))
            cells.append(f"{passed} of {total}")
            print(f"{part}: {passed} of {total}", *failed, sep="\n", file=sys.stderr, flush=True)
    print(f"| {metadata.version('torch')} | {platform.python_version()} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

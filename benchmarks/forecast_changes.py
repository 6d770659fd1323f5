"""Which changes does ``forecast`` find at 1,024 ranks? Plants twelve that cost something, and twelve that do not.

    python benchmarks/forecast_changes.py [NAME ...]

The training is ``benchmarks/forecasting/changing.py``, in three layouts, on the cluster ``h100-ib400``. Its forecast is
stored as a baseline; then each change runs once. Printed per change: whether it is red, the change of the step at 1,024
ranks, what else failed, and the seconds of its run. Exit code 1 unless each planted change is red, and no healthy one.
Four minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record
from pytest_distbench.units import format_change

CHANGING = Path(__file__).parent / "forecasting" / "changing.py"
RANKS = 1024
TEST = f"""
import pytest

@pytest.mark.parametrize("layout", ["ddp", "fsdp", "tp"])
def test_step(forecast, layout):
    forecast({f"{CHANGING}::train"!r}, worlds=[64, {RANKS}], cluster="h100-ib400", params={{"layout": layout}})
"""


def changes(table: str) -> dict[str, str]:
    """The layout of each change."""
    for node in ast.parse(CHANGING.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table:
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise SystemExit(f"{CHANGING} has no table {table}")


def run(folder: Path, change: str, *options: str) -> list[CaseResult]:
    """The cases of a run with a change."""
    record = folder / "run.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--distbench-json={record}", *options]
    subprocess.run(command, cwd=folder, env={**os.environ, "CHANGE": change}, check=False, capture_output=True)
    return read_run_record(record).results


def row(result: CaseResult) -> list[str]:
    """The change of the step, and what failed."""
    step = next((v for v in result.verdicts if v.metric == f"step_forecast[ranks={RANKS}]"), None)
    failed = {v.name or "communication" for v in result.verdicts if v.is_failure}
    cause = next((line for each in result.causes for line in each.differences), "")
    change = "-" if step is None or step.ratio is None else format_change(step.ratio)
    return [result.outcome, change, ", ".join(sorted(failed)), cause]


def main() -> int:
    """Measure, print, and say by the exit code whether all were found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a change; all if none is given")
    only = parser.parse_args().names
    rows = []
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_step.py").write_text(TEST)
        run(folder, "", "--distbench-update=new")
        for table, is_planted in (("PLANTED", True), ("HEALTHY", False)):
            for change, of in changes(table).items():
                if only and change not in only:
                    continue
                start = time.perf_counter()
                [result] = run(folder, change, "-k", of)
                found = row(result)
                wrong += (found[0] == "failed") != is_planted
                rows.append([change, *found, f"{time.perf_counter() - start:.1f}"])
                print(*rows[-1], sep="  ", file=sys.stderr)
    print("\n".join(layout(("change", "", f"step at {RANKS:,}", "failed", "cause", "s"), rows, left=5)))
    print(f"{len(rows) - wrong} of {len(rows)} as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Which faults does a training show by what it leaves behind, and which healthy trainings are red?

    python benchmarks/left_behind.py [--times 10] [--json FILE]

``left/train.py`` is an unchanged script on two ranks. Each of its settings is recorded with three launches, and then
run again so many times with equal code: none may be red. Then its plain setting is run with each healthy change, and
with each fault; most of these leave the ten losses that are read as they were. Printed per change: whether it is red,
by which metric, and the words. Exit code 1 if a healthy run is red or a fault is not. Four minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_distbench.records.reasons import REASONS
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record

SCRIPT = Path(__file__).parent / "left" / "train.py"
TEST = """
import pytest
from pytest_distbench.read import NUMBER, stdout

@pytest.mark.parametrize("setting", {settings!r})
def test_setting(distbench, setting):
    losses = stdout("loss " + NUMBER, better="curve", first=3 if "every" in setting else 10)
    distbench.run({script!r}, args=[setting], read={{"loss_curve": losses}})
"""


def run(folder: Path, *arguments: str, change: str = "") -> dict[str, list[tuple[str, str, str]]]:
    """Setting -> what was red: metric, code and words."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(folder)]
    command += ["--world-size=2", "--distbench-confirm=off", "--distbench-json=run.json", *arguments]
    environment = {**os.environ, "LEFT_CHANGE": change}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    if done.returncode > 1:
        raise SystemExit(done.stdout + done.stderr)
    found = {}
    for result in read_run_record(folder / "run.json").results:
        red = [(v.metric, v.code, v.reason) for v in result.verdicts if REASONS[v.code].fails and v.is_judged]
        if any(launch.outcome != "passed" for launch in result.launches):
            red.append(("launch", "failed", result.launches[-1].reason))
        found[str(result.case.params["args"][0])] = red
    return found


def main() -> int:
    """Record, run, print, and say by the exit code whether all came as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="runs with equal code")
    parser.add_argument("--json", type=Path, help="write what was red, by change")
    options = parser.parse_args()
    train = runpy.run_path(str(SCRIPT), run_name="train")

    cells, wrong, written = [], 0, {}
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_left.py").write_text(TEST.format(settings=train["SETTINGS"], script=str(SCRIPT)))
        run(folder, "--distbench-update=all", "--distbench-launches=3:3")
        red = dict.fromkeys(train["SETTINGS"], 0)
        for _ in range(options.times):
            for setting, found in run(folder, "--distbench-launches=1:1").items():
                red[setting] += bool(found)
                cells += [(setting, "equal code", *found[0])] if found else []
        for setting, number in red.items():
            cells.append((setting, "equal code", f"{number} of {options.times} red", "", ""))
        plain = (*train["HEALTHY"], *train["FAULTS"])
        for change in plain:
            found = run(folder, "--distbench-launches=1:1", "-k", "plain", change=change)["plain"]
            expected = train["FAULTS"].get(change, "")
            names = {metric for metric, *_ in found} | {code for _, code, _ in found}
            wrong += bool(found) != bool(expected) or (bool(expected) and expected not in names)
            first = next((one for one in found if expected in one[:2]), found[0] if found else ("-", "", ""))
            cells.append(("plain", change, *first))
            written[change] = found
    shown = [(*cell[:4], cell[4].partition("; likely")[0][:110]) for cell in cells]
    print("\n".join(layout(("setting", "change", "red", "code", "words"), shown)))
    print(f"equal code: {sum(red.values())} of {options.times * len(red)} runs red")
    print(f"changes: {wrong} of {len(plain)} otherwise than expected")
    if options.json:
        options.json.write_text(json.dumps(written, indent=1))
    return 1 if wrong or any(red.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Which faults of a layout does ``equivalent`` find? Plants them one by one, with changes that are none.

    python benchmarks/layout_faults.py [--world-size 2] [--json FILE] [NAME ...]

Each is a training loop of ``benchmarks/equivalence/faulty.py`` around a small GPT with dropout, masked tokens, clipping
and a schedule. It runs once, without a baseline, after the layouts that ship. Printed per fault: whether it is
red, what deviates first and by how many times its bound, the seconds of the launch, and the words; and which faults of
a module are not told with the words of that file's table ``MODULES``. Exit code 1 unless each fault is red, and no
healthy change. Two minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_distbench.records.metric import SAID
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record

FAULTY = Path(__file__).parent / "equivalence" / "faulty.py"
SHIPPED = ["ddp", "accumulation", "checkpointing", "compiled", "fsdp2", "tensor_parallel", "pipeline", "resume"]
SHIPPED += ["reshard_to_one", "reshard_from_one"]
NAMES_A_MODULE = (", forward", ", backward", "modules are right")
TEST = """
import pytest

@pytest.mark.parametrize("name", {names!r})
def test_layout(equivalent, name):
    row = "tied" if "tied" in name else "two_losses" if "auxiliary" in name else "gpt"
    equivalent(f"{file}::{{row}}", name)
"""


def names_of(table: str) -> list[str]:
    """Keys of a table of that file, which need not be imported: torch is."""
    for node in ast.parse(FAULTY.read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table and isinstance(node.value, ast.Dict):
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise SystemExit(f"{FAULTY} has no table {table}")


def expected_words() -> dict[str, str]:
    """What is to be said of the module, by fault."""
    for node in ast.parse(FAULTY.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODULES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise SystemExit(f"{FAULTY} has no table MODULES")


def row(result: CaseResult) -> tuple[str, str, str]:
    """What was red, by how many times its bound, and in which words."""
    for launch in result.launches:
        for sample in launch.measurements:
            told = sample.facts.get(SAID)
            if told is not None:
                limit = next((bound.value for bound in sample.bounds), 0.0)
                times = f"{sample.value / limit:.0e}" if sample.value is not None and limit else "-"
                return sample.name, times, str(told)
    return ("-", "-", result.headline if result.outcome == "failed" else "")


def main() -> int:
    """Measure, print, and say by the exit code whether all were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    faults = [*names_of("FAULTS"), *names_of("PUBLISHED")]
    every = [*SHIPPED, *names_of("HEALTHY"), *faults]
    if unknown := set(options.names) - set(every):
        parser.error(f"unknown {', '.join(sorted(unknown))}: known are {', '.join(every)}")
    names = options.names or every
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name)
        (folder / "test_planted.py").write_text(TEST.format(names=names, file=FAULTY))
        (folder / "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", str(folder), "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
        command += [f"--world-size={options.world_size}", "--distbench-json=run.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout + done.stderr)
        results = {result.case.params["layout"]: result for result in read_run_record(folder / "run.json").results}
    rows, wrong, kept, words = [], [], [], expected_words()
    unnamed = []
    for name in names:
        result = results[name]
        is_red = result.outcome == "failed"
        metric, times, told = row(result)
        seconds = sum(launch.wall_s for launch in result.launches)
        rows.append((name, "red" if is_red else "green", metric, times, f"{seconds:.1f} s"))
        kept.append({"name": name, "is_red": is_red, "metric": metric, "told": told, "seconds": seconds})
        if is_red != (name in faults):
            wrong.append(name)
        if words[name] not in told if name in words else any(part in told for part in NAMES_A_MODULE):
            unnamed.append(name)
    print("\n".join(layout(("", "", "first", "x bound", "launch"), rows, left=3)))
    print("", *(f"{each['name']}: {each['told']}" for each in kept if each["told"]), sep="\n")
    print(f"\n{len(names)} layouts; wrong: {', '.join(wrong) or 'none'}")
    print(f"{len(words.keys() & {*names})} faults of modules; named otherwise: {', '.join(unnamed) or 'none'}")
    if options.json is not None:
        options.json.write_text(json.dumps(kept, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

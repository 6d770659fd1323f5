"""Does what regressed turn red, and stays green what is healthy? Faults that people found who did not write the plugin.

    python benchmarks/strangers.py [--healthy 20] [--json FILE] [CASE ...]

Each folder of ``benchmarks/strangers`` is a small project. In a fresh copy of it the steps of its ``case.json`` run: a
baseline is recorded, the fault is planted (``PLANTED=1`` in the environment), and exit code and words must be as
written there. Then the healthy sibling runs so many times, and must be green each time. Printed per case: what was
planted, the exit codes, the seconds of the planted run, how many healthy runs were green, and the words. Exit code 1
unless all is as it should be. Without ``--healthy`` three healthy runs each: some ten minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "strangers"
LIMIT_S = 600.0

_OF_PYTEST = ("-p", "no:cacheprovider", "--color=no")


@dataclass
class Found:
    """What became of one case.

    Attributes:
        name: its folder.
        planted: in words.
        expected: what the planted steps are to end with.
        exits: what they ended with.
        seconds: that the last planted step took.
        words: the line of its output that was asked for.
        green: healthy runs that were green.
        healthy: healthy runs.
        trouble: what is not as it should be; empty: all is.
    """

    name: str
    planted: str
    expected: str = ""
    exits: list[int] = field(default_factory=list)
    seconds: float = 0.0
    words: str = ""
    green: int = 0
    healthy: int = 0
    trouble: list[str] = field(default_factory=list)


def run(command: Sequence[str], folder: Path, *, planted: bool) -> tuple[int, str, float]:
    """Run a step; returns its exit code, what it printed and the seconds it took."""
    tool, *options = command
    if tool == "pytest":
        given = any(option.partition("=")[0].endswith("world-size") for option in options)
        argv = [sys.executable, "-m", "pytest", *_OF_PYTEST, *([] if given else ["--world-size=2"]), *options]
    elif tool == "distbench":
        argv = [sys.executable, "-m", "pytest_distbench.commands.cli", *options]
    else:
        argv = list(command)
    variables = {name: value for name, value in os.environ.items() if name != "PLANTED"}
    start = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=folder,
        env=variables | ({"PLANTED": "1"} if planted else {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


def try_case(name: str, *, healthy: int) -> Found:
    """Run the steps of a case, and its healthy sibling."""
    case: dict[str, Any] = json.loads((FOLDER / name / "case.json").read_text())
    found = Found(name, case["planted"])
    with tempfile.TemporaryDirectory(prefix="distbench-strangers-") as temporary:
        folder = Path(temporary) / name
        shutil.copytree(FOLDER / name, folder, ignore=shutil.ignore_patterns("case.json", "__pycache__"))
        (folder / "pytest.ini").touch()
        for step in case["steps"]:
            planted = bool(step.get("planted"))
            code, output, seconds = run(step["run"], folder, planted=planted)
            wanted = step["exit"] if isinstance(step["exit"], list) else [step["exit"]]
            if planted:
                found.exits.append(code)
                found.expected, found.seconds = " or ".join(map(str, wanted)), seconds
            problems = [] if code in wanted else [f"exit {code}, wanted {found.expected or wanted[0]}"]
            for pattern in step.get("says", ()):
                match = re.search(pattern, output)
                problems += [] if match else [f"does not say /{pattern}/"]
                if match and planted and not found.words:
                    found.words = _line_around(output, match)
            problems += [f"says /{pattern}/" for pattern in step.get("never", ()) if re.search(pattern, output)]
            if problems:
                found.trouble.append(f"{shlex.join(step['run'])}: {'; '.join(problems)}\n{_tail(output)}")
                return found
        for _ in range(healthy if "healthy" in case else 0):
            code, output, _ = run(case["healthy"], folder, planted=False)
            found.healthy += 1
            found.green += code == 0
            if code != 0:
                found.trouble.append(f"healthy run {found.healthy}: exit {code}\n{_tail(output)}")
    return found


def _line_around(text: str, match: re.Match[str]) -> str:
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
    return " ".join(text[start : end if end >= 0 else None].split())


def _tail(output: str, lines: int = 40) -> str:
    return "\n".join(f"    | {line}" for line in output.splitlines()[-lines:])


def main() -> int:
    """Try, print, and say by the exit code whether all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="folders of benchmarks/strangers; none: all")
    parser.add_argument("--healthy", type=int, default=3, metavar="N", help="healthy runs of each case (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    options = parser.parse_args()
    known = sorted(path.parent.name for path in FOLDER.glob("*/case.json"))
    if unknown := [name for name in options.cases if name not in known]:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(known)}")
    rows = []
    for name in options.cases or known:
        found = try_case(name, healthy=options.healthy)
        rows.append(found)
        verdict = "ok" if not found.trouble else "WRONG"
        exits = ",".join(map(str, found.exits)) or "-"
        print(f"{verdict:5} {name:32} exit {exits:4} {found.seconds:6.1f} s  healthy {found.green}/{found.healthy}")
        print(f"      planted: {found.planted}")
        print(f"      words:   {found.words}")
        for trouble in found.trouble:
            print(f"      {trouble}", flush=True)
    wrong = [found.name for found in rows if found.trouble]
    green, healthy = sum(found.green for found in rows), sum(found.healthy for found in rows)
    print(f"\n{len(rows) - len(wrong)} of {len(rows)} cases as they should be; {green} of {healthy} healthy runs green")
    print(f"wrong: {', '.join(wrong) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps([asdict(found) for found in rows], indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

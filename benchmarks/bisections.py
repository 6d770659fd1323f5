"""Does ``distbench bisect`` find a planted commit, and in how many visits?

    python benchmarks/bisections.py [--commits 60] [--place 37] [--runs 1] [slowdown] [fingerprint]

Makes a repository of so many commits, each of which changes the file that is measured, and plants one change at that
place: a step that takes 20 % longer by the same work on each rank, or one more all_reduce in it. The commits before and
after differ in comments alone. Then it runs ``distbench bisect`` there with two gloo ranks, shows what that prints, and
at the end a row per run: visits (those of GOOD and BAD at the ends not counted), seconds, and whether it was right.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP = '''\
"""Commit {number}."""

import torch
import torch.distributed as dist

MULTIPLICATIONS = {multiplications}


def step(x, y):
    for _ in range(MULTIPLICATIONS):
        x @ x
    dist.all_reduce(y)
{more}'''

TEST = """
def body(rank):
    import torch

    from step import step

    x, y = torch.randn(192, 192), torch.zeros(1024)
    for _ in rank.timed("step", warmup=10, iterations=200):
        step(x, y)


def test_step(distbench):
    distbench.run(body)
"""
USUAL: dict[str, object] = {"multiplications": 20, "more": ""}
FAULTS: dict[str, dict[str, object]] = {
    "slowdown": {"multiplications": 24},
    "fingerprint": {"more": "    dist.all_reduce(y[:1])\n"},
}


def make(folder: Path, fault: str, *, commits: int, place: int) -> None:
    """A repository whose first commit, and then so many more, hold a test; the one at the place has the fault."""

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost", "-c", "commit.gpgSign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)

    git("init", "-q")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (folder / "test_step.py").write_text(TEST)
    for number in range(commits + 1):
        content = USUAL | (FAULTS[fault] if number >= place else {})
        (folder / "step.py").write_text(STEP.format(number=number, **content))
        git("add", "-A")
        git("commit", "-q", "-m", f"Commit {number}")


def run(fault: str, *, commits: int, place: int) -> str:
    """One search; the row that tells of it."""
    with tempfile.TemporaryDirectory(prefix="bisections-") as name:
        folder = Path(name)
        make(folder, fault, commits=commits, place=place)
        command = [
            sys.executable, "-m", "pytest_distbench.commands.cli", "bisect", f"HEAD~{commits}", "HEAD",
            "--", "test_step.py", "--world-size", "2",
        ]  # fmt: skip
        begun = time.monotonic()
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                print(line, end="", flush=True)
                printed.append(line)
        seconds = time.monotonic() - begun
        text = "".join(printed)
        worktrees = subprocess.run(["git", "worktree", "list"], cwd=folder, check=True, capture_output=True, text=True)
    visits = len(re.findall(r"^ *\d+  [0-9a-f]{10}  ", text, re.MULTILINE))
    found = re.search(r"^found .*\n.*: Commit (\d+)$", text, re.MULTILINE)
    result = "nothing" if found is None else "right" if int(found[1]) == place else f"wrong: {found[1]}"
    left = len(worktrees.stdout.splitlines()) - 1
    return f"{fault:<12}{place:>6} of {commits:<6}{visits:>6}{seconds:>9.0f}{process.returncode:>6}{left:>6}  {result}"


def main() -> None:
    """Plant, search and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", default=list(FAULTS))
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--place", type=int, default=37)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"
    rows = [
        run(fault, commits=options.commits, place=options.place)
        for _ in range(options.runs)
        for fault in options.faults
    ]
    print(f"\n{'planted':<12}{'at':>6}{'':<10}{'visits':>6}{'seconds':>9}{'exit':>6}{'left':>6}  found")
    print("\n".join(rows))


if __name__ == "__main__":
    main()

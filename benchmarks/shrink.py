"""What ``distbench shrink`` finds: diffs of 5 to 40 hunks, of which one or two make a test red.

    python benchmarks/shrink.py [--repeat 10] [NAME ...]

Makes a small git repository for each diff, with a package of ten modules that a step on two gloo ranks uses, and runs
``distbench shrink HEAD`` in it. Most hunks change nothing that is measured. A slower step takes 15 % longer: on
a line, which the failure names, or on every line. Printed per diff: its hunks, how many the patch has, launches, those
unresolved, and seconds of the whole command; under ``--repeat`` their median. The exit code is 1 if a patch is not
exactly what was planted, or if anything is left behind: a worktree, a branch, a file below TMPDIR, or a change of the
working tree or its index.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES, FUNCTIONS = 10, 8
TEST = """
from pkg.step import step


def test_step(distbench):
    distbench.run(step)
"""
STEP = """
import importlib
from pathlib import Path

from pkg import settings, sync


def scale(x):
    return x * settings.SCALE


def step(rank):
    import torch

    for number in range(10):
        module = importlib.import_module(f"pkg.part{number}")
        x = sum(getattr(module, name)(1) for name in dir(module) if name.startswith("add"))
    rank.record("parts", x, better="exact")
    rank.record("bytes", sum((Path(__file__).parent / "weights.bin").read_bytes()), better="exact")
    for _ in rank.timed("step", warmup=1, iterations=4):
        y = scale(torch.ones(64))
        sync.average(y)
        if settings.TWICE and settings.WORLD > 2:
            sync.average(y)
"""
TIMED = """
from pkg import layer, settings


def step(rank):
    import torch

    x, w = torch.rand(settings.ROWS, 320), torch.rand(320, 320)
    for _ in rank.timed("step", warmup=3, iterations=20):
        for _ in range(20):
            layer.forward(x, w)
"""
LAYER = """
def forward(x, w):
    y = x @ w
    return y.relu()


def part(x, w):
    return x[:48] @ w


kept = []
"""
SYNC = """
import torch.distributed as dist


def average(x):
    dist.all_reduce(x)


def spread(x):
    dist.broadcast(x, 0)


def both(x):
    average(x)
    spread(x)
"""


def part(*, changed: int = 0) -> str:
    """A module of functions, some of them written otherwise than before."""
    texts = [f"def add{n}(x):\n    return {f'{n} + x' if n < changed else f'x + {n}'}\n" for n in range(FUNCTIONS)]
    return "\n\n".join(texts)


SETTINGS = "SCALE = 1\n\n\nTWICE = False\n\n\nWORLD = 2\n\n\nROWS = 320\n"
BASE: Mapping[str, str | bytes] = {
    "test_step.py": TEST,
    ".gitignore": "__pycache__/\n.pytest_cache/\n.distbench/\n",
    "pkg/__init__.py": "",
    "pkg/step.py": STEP,
    "pkg/sync.py": SYNC,
    "pkg/settings.py": SETTINGS,
    "pkg/layer.py": LAYER,
    "pkg/weights.bin": bytes(range(256)) * 8,
    **{f"pkg/part{number}.py": part() for number in range(MODULES)},
}


@dataclass(frozen=True)
class Diff:
    """What is written over the base, some harmless hunks, and what the patch has to consist of: its added lines.

    Attributes:
        gone: files that are removed.
        timed: whether the step takes some milliseconds, which are judged.
        planted: lines that the patch adds; of binary and renamed files what git says of them.
    """

    harmless: int
    planted: Sequence[str]
    texts: Mapping[str, str | bytes] = field(default_factory=dict)
    gone: Sequence[str] = ()
    timed: bool = False


def step(old: str, new: str) -> dict[str, str]:
    return {"pkg/step.py": STEP.replace(old, new)}


def layer(added: str) -> dict[str, str]:
    return {"pkg/layer.py": LAYER.replace("    return y", f"{added}    return y")}


def sync(old: str, new: str) -> dict[str, str]:
    return {"pkg/sync.py": SYNC.replace(old, new)}


MORE_ROWS = {"pkg/settings.py": SETTINGS.replace("320", "368")}
AVERAGE = "    dist.all_reduce(x)\n"
TWICE = "        if settings"
FLUSH = "\n\ndef flush(x):\n    dist.all_reduce(x)\n"
EXTRA = "import torch.distributed as dist\n\n\ndef extra(x):\n    dist.barrier()\n"
DOUBLE = "    dist.all_reduce(x.double())"
DIFFS = {
    "a second all_reduce": Diff(
        4, ["    dist.all_reduce(x[:1])"], sync(AVERAGE, f"{AVERAGE}    dist.all_reduce(x[:1])\n")
    ),
    "another collective": Diff(9, ["    dist.broadcast(x, 1)"], sync(AVERAGE, "    dist.broadcast(x, 1)\n")),
    "another size": Diff(19, ["        y = scale(torch.ones(65))"], step("torch.ones(64)", "torch.ones(65)")),
    "another dtype": Diff(29, [DOUBLE], sync(AVERAGE, f"{DOUBLE}\n")),
    "an exact number": Diff(39, ["    return x + 9"], {"pkg/part9.py": part().replace("x + 7", "x + 9")}),
    "red only together": Diff(
        20,
        ["TWICE = True", "WORLD = 4"],
        {"pkg/settings.py": SETTINGS.replace("False", "True").replace("WORLD = 2", "WORLD = 4")},
    ),
    "a definition and its use": Diff(
        20,
        ["        sync.flush(y)", "", "", "def flush(x):", "    dist.all_reduce(x)"],
        sync("    spread(x)\n", f"    spread(x)\n{FLUSH}") | step(TWICE, f"        sync.flush(y)\n{TWICE}"),
    ),
    "a new file": Diff(
        20,
        [*EXTRA.splitlines(), "        importlib.import_module('pkg.extra').extra(y)"],
        {"pkg/extra.py": EXTRA} | step(TWICE, f"        importlib.import_module('pkg.extra').extra(y)\n{TWICE}"),
    ),
    "a renamed file": Diff(
        20,
        [DOUBLE],
        {"pkg/averages.py": SYNC.replace(AVERAGE, f"{DOUBLE}\n")}
        | step("settings, sync", "averages as sync, settings"),
        gone=["pkg/sync.py"],
    ),
    "a slower line": Diff(29, ["    part(x, w)"], layer("    part(x, w)\n"), timed=True),
    "all lines slower": Diff(29, ["ROWS = 368"], MORE_ROWS, timed=True),
    "two slower changes": Diff(28, ["    part(x, w)", "ROWS = 368"], layer("    part(x, w)\n") | MORE_ROWS, timed=True),
    "more memory": Diff(29, ["    kept.append(y.clone())"], layer("    kept.append(y.clone())\n"), timed=True),
    "a binary file": Diff(20, [], {"pkg/weights.bin": bytes(range(255)) * 8}),
}
ENOUGH = re.compile(
    r"(\d+) of (\d+) hunks? \w+ enough, and the others are green: (\d+) launch\w* in (.+), (\d+) unresolved"
)


def write(folder: Path, texts: Mapping[str, str | bytes]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def call(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    who = {f"GIT_{who}_{what}": "a@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _is_kept(path: Path) -> bool:
    """Whether every run leaves it below TMPDIR: the locks of this host, and a folder of torch's."""
    return path.suffix in (".lock", ".queue") or path.name.startswith("torchinductor_")


def state(folder: Path, temporary: Path) -> list[str]:
    """What a run may not change: what git knows of worktrees and branches, the working tree and its index, files."""
    git = (["worktree", "list"], ["branch", "-a"], ["diff", "HEAD"], ["diff", "--cached"], ["status", "--porcelain"])
    told = [call(folder, "git", *command).stdout for command in git]
    return [*told, *sorted(path.name for path in temporary.iterdir() if not _is_kept(path))]


def shrink(diff: Diff, made: Path) -> tuple[str, float, list[str]]:
    """A row of the table, seconds, and what is wrong."""
    folder, temporary = made / "project", made / "temporary"
    temporary.mkdir()
    write(folder, {**BASE, **({"pkg/step.py": TIMED} if diff.timed else {})})
    call(folder, "git", "init", "-q")
    call(folder, "git", "add", "-A")
    call(folder, "git", "commit", "-q", "-m", "base")
    write(folder, {f"pkg/part{n}.py": part(changed=min(FUNCTIONS, diff.harmless - n * FUNCTIONS)) for n in range(5)})
    write(folder, diff.texts)
    for name in diff.gone:
        (folder / name).unlink()
    before = state(folder, temporary)
    began_at = time.monotonic()
    words = ["-m", "pytest_distbench", "shrink", "HEAD", "--", "test_step.py", "-p", "no:cacheprovider"]
    done = call(folder, sys.executable, *words, TMPDIR=str(temporary))
    seconds = time.monotonic() - began_at
    if (found := ENOUGH.search(done.stderr)) is None:
        return f"exit code {done.returncode}", seconds, [done.stdout + done.stderr]
    added = [line[1:] for line in done.stdout.splitlines() if line.startswith("+") and not line.startswith("+++")]
    wrong = [f"the patch is\n{done.stdout}"] if sorted(added) != sorted(diff.planted) else []
    if not diff.planted and "GIT binary patch" not in done.stdout:
        wrong.append(f"the patch is\n{done.stdout}")
    if (after := state(folder, temporary)) != before:
        wrong.append(f"left behind: {set(after) - set(before)}")
    if call(folder, "git", "-c", "core.hooksPath=/dev/null", "stash", "-q", "-u").returncode == 0:
        (made / "patch").write_text(done.stdout)
        applied = call(folder, "git", "apply", str(made / "patch"))
        wrong += [f"git cannot apply it: {applied.stderr}"] if applied.returncode else []
    kept, hunks, launches, spent, unresolved = found.groups()
    return f"{hunks:>5} {kept:>5} {launches:>9} {unresolved:>11} {spent:>11} {seconds:>8.1f}", seconds, wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[[], *DIFFS], metavar="NAME")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    print(f"{'diff':<26} hunks patch  launches  unresolved    searched    s all", flush=True)
    is_wrong = False
    for name in options.names or DIFFS:
        took_s = []
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory() as made:
                row, seconds, wrong = shrink(DIFFS[name], Path(made))
            took_s.append(seconds)
            print(f"{name:<26} {row}", *wrong, sep="\n" if wrong else "", flush=True)
            is_wrong = is_wrong or bool(wrong)
        if options.repeat > 1:
            print(f"{name:<26} median {statistics.median(took_s):.1f} s, at most {max(took_s):.1f} s", flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())

"""What ``distbench shrink`` finds: diffs of 5 to 40 hunks, of which one or two make a test red.

    python benchmarks/shrink.py [NAME ...]

Makes a small git repository for each diff, with a package of ten modules that a step on two gloo ranks uses, and runs
``distbench shrink HEAD`` in it. Most hunks change nothing that is measured. Printed per diff: its hunks, how many the
patch has, launches, those unresolved, and seconds of the whole command. The exit code is 1 if a patch is not exactly
what was planted, or if anything is left behind: a worktree, a branch, a file below TMPDIR, or a change of the
working tree or its index.
"""

from __future__ import annotations

import os
import re
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
    rank.record("weights", sum((Path(__file__).parent / "weights.bin").read_bytes()), better="exact")
    for _ in rank.timed("step", warmup=1, iterations=4):
        y = scale(torch.ones(64))
        sync.average(y)
        if settings.TWICE and settings.WORLD > 2:
            sync.average(y)
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


BASE: Mapping[str, str | bytes] = {
    "test_step.py": TEST,
    ".gitignore": "__pycache__/\n.pytest_cache/\n.distbench/\n",
    "pkg/__init__.py": "",
    "pkg/step.py": STEP,
    "pkg/sync.py": SYNC,
    "pkg/settings.py": "SCALE = 1\n\n\nTWICE = False\n\n\nWORLD = 2\n",
    "pkg/weights.bin": bytes(range(256)) * 8,
    **{f"pkg/part{number}.py": part() for number in range(MODULES)},
}


@dataclass(frozen=True)
class Diff:
    """What is written over the base, some harmless hunks, and what the patch has to consist of: its added lines.

    Attributes:
        gone: files that are removed.
        planted: lines that the patch adds; of binary and renamed files what git says of them.
    """

    harmless: int
    planted: Sequence[str]
    texts: Mapping[str, str | bytes] = field(default_factory=dict)
    gone: Sequence[str] = ()


def step(old: str, new: str) -> dict[str, str]:
    return {"pkg/step.py": STEP.replace(old, new)}


def sync(old: str, new: str) -> dict[str, str]:
    return {"pkg/sync.py": SYNC.replace(old, new)}


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
        20, ["TWICE = True", "WORLD = 4"], {"pkg/settings.py": "SCALE = 1\n\n\nTWICE = True\n\n\nWORLD = 4\n"}
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
    "a binary file": Diff(20, [], {"pkg/weights.bin": bytes(range(255)) * 8}),
}
KEPT = {"distbench-0.lock", "distbench-0.queue", "torchinductor_root"}
"""What every run leaves below TMPDIR: the lock of this host, and a folder of torch's."""
ENOUGH = re.compile(
    r"(\d+) of (\d+) hunks? \w+ enough, and the others are green: (\d+) launch\w* in ([\d.]+) s, (\d+) unresolved"
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


def state(folder: Path, temporary: Path) -> list[str]:
    """What a run may not change: what git knows of worktrees and branches, the working tree and its index, files."""
    git = (["worktree", "list"], ["branch", "-a"], ["diff", "HEAD"], ["diff", "--cached"], ["status", "--porcelain"])
    told = [call(folder, "git", *command).stdout for command in git]
    return [*told, *sorted(path.name for path in temporary.iterdir() if path.name not in KEPT)]


def shrink(diff: Diff, made: Path) -> tuple[str, list[str]]:
    """A row of the table, and what is wrong."""
    folder, temporary = made / "project", made / "temporary"
    temporary.mkdir()
    write(folder, BASE)
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
        return f"exit code {done.returncode}", [done.stdout + done.stderr]
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
    return f"{hunks:>5} {kept:>5} {launches:>9} {unresolved:>11} {spent:>11} {seconds:>8.1f}", wrong


def main(names: Sequence[str]) -> int:
    print(f"{'diff':<26} hunks patch  launches  unresolved  s searched    s all", flush=True)
    is_wrong = False
    for name in names or DIFFS:
        with tempfile.TemporaryDirectory() as made:
            row, wrong = shrink(DIFFS[name], Path(made))
        print(f"{name:<26} {row}", *wrong, sep="\n" if wrong else "", flush=True)
        is_wrong = is_wrong or bool(wrong)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

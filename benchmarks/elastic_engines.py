"""What does a change of membership cost under each engine? One training, one plan, the engines in turns, one table.

    python benchmarks/elastic_engines.py [--folder FOLDER] [--most N] [ENGINE=ROUNDS ...]

A round loses a node five times, crashes a worker twice and asks a node to go twice; others join in between. Two nodes,
so that each has a core. Engines take turns, round by round. Median and maximum are over all changes of a kind; goodput
is what is left beside such changes, a second of training apart. With a folder the records of runs are kept, runs that
are there already are not made again, and ``--most`` ends it after so many; half a minute to two minutes each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from pytest_distbench.records.elastic import ChangeResult
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.report.texts.layout import layout
from pytest_distbench.store.run_record import read_run_record
from pytest_distbench.units import format_seconds

ROUNDS = {"stock": 1, "fast": 2, "torchft": 2}
"""Engine -> rounds, unless others are asked for: ten lost nodes, five where each change costs ten seconds."""

TEST = """
from pytest_distbench.elastic import crash, join, kill, leave

PLAN = [kill, join] * 5 + [crash, leave, join, crash, leave]


def train(rank, engine):
    import torch

    torch.manual_seed(0)
    x = torch.randn(8192, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = rank.training(model=model, optimizer=optimizer)
    if engine == "torchft":
        import torchft

        ddp = torchft.DistributedDataParallel(training.manager, model)
        optimizer = torchft.Optimizer(training.manager, optimizer)
    else:
        ddp = torch.nn.parallel.DistributedDataParallel(model)
    for batch in training.batches(samples=len(x), batch=32, epochs=10**6):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * rank.world_size
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(x[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        training.note(loss=loss)


def test_engine(elastic):
    plan = [change(at_s=index + 1) for index, change in enumerate(PLAN)]
    given = {"engine": ENGINE, "params": {"engine": ENGINE}, "timeout": 600}
    elastic(train, nodes=(1, 2), start=2, plan=plan, ends_after=10, **given)
"""


def run(engine: str, path: Path) -> None:
    """Run one round of an engine, and write its record."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_engine.py").write_text(f"ENGINE = {engine!r}\n{TEST}")
        command = [sys.executable, "-m", "pytest", folder, "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
        command += ["--world-size=2", f"--distbench-json={path}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            path.unlink(missing_ok=True)
            raise SystemExit(done.stdout + done.stderr)


def launches(paths: Sequence[Path]) -> Iterator[LaunchRecord]:
    """The launches of those records that there are."""
    for path in paths:
        if path.exists():
            for result in read_run_record(path).results:
                yield from result.launches


def rows(engine: str, found: Sequence[LaunchRecord]) -> Iterator[list[str]]:
    """One row for each kind of change."""
    kinds: dict[str, list[ChangeResult]] = defaultdict(list)
    goodput = median(m.value for launch in found for m in launch.measurements if m.name == "goodput" and m.value)
    for launch in found:
        assert launch.elastic is not None
        for change in launch.elastic.changes:
            kinds[f"{change.kind} {change.before} to {change.after}"].append(change)
    for kind, changes in kinds.items():
        ready = [c.joiner_ready_s for c in changes if c.joiner_ready_s is not None]
        yield [
            engine,
            kind,
            str(len(changes)),
            *both([c.stall_s for c in changes if c.stall_s is not None]),
            *both([c.recovery_s for c in changes if c.recovery_s is not None]),
            str(max(c.steps_redone for c in changes)),
            str(max(c.steps_discarded for c in changes)),
            format_seconds(median(ready)) if ready else "-",
            f"{goodput:.2f}",
        ]


def both(seconds: Sequence[float]) -> list[str]:
    """Median and maximum, as text."""
    return [format_seconds(median(seconds)), format_seconds(max(seconds))] if seconds else ["-", "-"]


HEADINGS = [
    "engine", "change", "n", "stall p50", "max", "recovery p50", "max", "redone", "discarded", "joiner ready",
    "goodput",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    usual = " ".join(f"{engine}={rounds}" for engine, rounds in ROUNDS.items())
    parser.add_argument("rounds", nargs="*", metavar="ENGINE=ROUNDS", help=f"default: {usual}")
    parser.add_argument("--folder", type=Path, help="keeps the records of runs, and has those of earlier ones")
    parser.add_argument("--most", type=int, help="new runs")
    given = parser.parse_args()
    rounds = {e: int(n) for e, _, n in (text.partition("=") for text in given.rounds)} or ROUNDS
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = (given.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        paths = {engine: [folder / f"{engine}{index}.json" for index in range(n)] for engine, n in rounds.items()}
        turns = [(e, paths[e][i]) for i in range(max(rounds.values())) for e in rounds if i < rounds[e]]
        for engine, path in [turn for turn in turns if not turn[1].exists()][: given.most]:
            print(f"{path.stem} ...", file=sys.stderr, flush=True)
            run(engine, path)
        found = {engine: list(launches(those)) for engine, those in paths.items()}
        table = [row for engine, those in found.items() if those for row in rows(engine, those)]
        print(*layout(HEADINGS, table, left=2), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

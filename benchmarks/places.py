"""Which lines are named where a timing regressed: slowdowns are planted in a small training, and in none of it.

    python benchmarks/places.py [--only WORD ...] [--same 5] [--json FILE]

Makes a git repository with a training of two gloo ranks. Each slowdown is planted alone, three pairs of
``pytest --distbench-against HEAD`` judge it, and places are recorded whether these few find it or not. The right lines
were written down with it: where the time is spent, or the line that changed.

Printed per slowdown: whether it was red, whether the first place is right, whether one of the first three is, the share
that the right ones explain, and the seconds of the launches that record. ``--same``: the unchanged training is compared
with itself so many times: how often a place is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from pytest_distbench.records.places import CasePlaces
from pytest_distbench.store.files import read_run_record

FILES = {
    "layers.py": """
        import torch


        class Norm(torch.nn.Module):
            def __init__(self, width):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(width))

            def forward(self, x):
                mean = x.square().mean(-1, keepdim=True)
                return x * torch.rsqrt(mean + 1e-5) * self.scale


        class Block(torch.nn.Module):
            def __init__(self, width):
                super().__init__()
                self.norm = Norm(width)
                self.up = torch.nn.Linear(width, 2 * width)
                self.down = torch.nn.Linear(2 * width, width)

            def forward(self, x):
                hidden = self.up(self.norm(x))
                hidden = hidden.relu()
                return x + self.down(hidden)
    """,
    "data.py": """
        import torch


        class Samples(torch.utils.data.Dataset):
            def __init__(self, width):
                self.rows = torch.randn(64, width)

            def __len__(self):
                return 100_000

            def __getitem__(self, index):
                return self.rows[index % 64]
    """,
    "train.py": """
        import logging
        import threading
        import time

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from data import Samples
        from layers import Block

        WIDTH = 128
        log = logging.getLogger("train")
        lock = threading.Lock()


        def make(depth=4):
            torch.manual_seed(0)
            net = torch.nn.Sequential(*[Block(WIDTH) for _ in range(depth)])
            model = DistributedDataParallel(net)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
            loader = torch.utils.data.DataLoader(Samples(WIDTH), batch_size=64)
            return model, optimizer, loader


        def clip(model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


        def reduce_loss(loss):
            dist.all_reduce(loss)


        def train_step(model, optimizer, x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            clip(model)
            optimizer.step()
            reduce_loss(loss.detach())
    """,
    "test_it.py": """
        from train import make, train_step


        def body(rank):
            model, optimizer, loader = make()
            batches = iter(loader)
            for _ in rank.timed("step", warmup=5, iterations=60):
                train_step(model, optimizer, next(batches))


        def test_step(distbench):
            distbench.run(body)
    """,
    "pytest.ini": "[pytest]",
    ".gitignore": "__pycache__/",
}


@dataclass(frozen=True)
class Planted:
    """A slowdown: a text of a file and what takes its place; parts of the lines that are right.

    ``workers``: how a worker of the data loader is started, in both sides; empty: there is none.
    """

    name: str
    file: str
    old: str
    new: str
    right: tuple[str, ...]
    workers: str = ""


DECODE = """\
        text = [str(value) for _ in range(3) for value in self.rows[index % 64].tolist()]
        return torch.tensor([float(part) for part in text[:128]])"""

PLANTED = [
    *(
        Planted(
            f"decode in a worker, {method}",
            "data.py",
            "        return self.rows[index % 64]",
            DECODE,
            ("text = ", "torch.tensor("),
            workers=method,
        )
        for method in ("fork", "spawn")
    ),
    Planted(
        "extra matmul",
        "layers.py",
        "        hidden = hidden.relu()",
        """\
        hidden = hidden.relu()
        gram = hidden @ hidden.T
        hidden = hidden + 1e-9 * (gram @ hidden)""",
        (
            "gram = ",
            "(gram @ hidden)",
        ),
    ),
    Planted(
        "copy to float64",
        "layers.py",
        "        mean = x.square().mean(-1, keepdim=True)",
        "        mean = x.double().square().mean(-1, keepdim=True).sqrt().square().exp().log().float()",
        ("x.double()",),
    ),
    Planted(
        "item of each parameter",
        "train.py",
        """\
    clip(model)
    opt""",
        """\
    clip(model)
    norms = [p.grad.norm().item() for p in model.parameters() for _ in range(20)]
    opt""",
        (".item()",),
    ),
    Planted(
        "sleep in rank 1",
        "train.py",
        """\
    clip(model)
    opt""",
        """\
    clip(model)
    if dist.get_rank() == 1:
        time.sleep(0.01)
    opt""",
        ("time.sleep",),
    ),
    Planted(
        "clipping by a loop",
        "train.py",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        """\
    total = 0.0
    for p in model.parameters():
        for row in p.grad:
            total += float(row.square().sum())""",
        (
            "for row in",
            "total += ",
        ),
    ),
    Planted(
        "barriers",
        "train.py",
        "    dist.all_reduce(loss)",
        """\
    dist.all_reduce(loss)
    for _ in range(20):
        dist.barrier()""",
        ("dist.barrier()",),
    ),
    Planted(
        "logging",
        "train.py",
        "    reduce_loss(loss.detach())",
        """\
    reduce_loss(loss.detach())
    for p in model.parameters():
        for row in range(8):
            log.warning("%s", p.grad[row].tolist())""",
        ("log.warning",),
    ),
    Planted(
        "extra all_gather",
        "train.py",
        "    dist.all_reduce(loss)",
        """\
    dist.all_reduce(loss)
    many = torch.zeros(400_000)
    dist.all_gather([torch.empty(400_000) for _ in range(2)], many)""",
        (
            "dist.all_gather",
            "torch.zeros(400_000)",
        ),
    ),
    Planted(
        "decode in the data set",
        "data.py",
        "        return self.rows[index % 64]",
        """\
        text = [str(value) for value in self.rows[index % 64].tolist()]
        return torch.tensor([float(part) for part in text])""",
        (
            "text = ",
            "torch.tensor(",
        ),
    ),
    Planted(
        "deeper",
        "train.py",
        "def make(depth=4)",
        "def make(depth=7)",
        (
            "depth=7",
            "self.up(",
            "self.down(",
            "self.norm(",
            "x * torch.rsqrt",
            "x.square()",
            "optimizer.step()",
        ),
    ),
    Planted(
        "unfused optimizer",
        "train.py",
        "foreach=True",
        "foreach=False",
        (
            "optimizer.step()",
            "foreach=False",
        ),
    ),
    Planted(
        "checkpointing",
        "layers.py",
        """\
        hidden = self.up(self.norm(x))
        hidden = hidden.relu()
        return x + self.down(hidden)""",
        """\
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.inner, x, use_reentrant=False)

    def inner(self, x):
        hidden = self.up(self.norm(x))
        hidden = hidden.relu()
        return x + self.down(hidden)""",
        (
            "return checkpoint(",
            "self.up(",
            "self.down(",
            "self.norm(",
            "x * torch.rsqrt",
        ),
    ),
    Planted(
        "a lock",
        "train.py",
        """\
    clip(model)
    opt""",
        """\
    held = threading.Timer(0.0, lambda: [lock.acquire(), time.sleep(0.01), lock.release()])
    held.start()
    time.sleep(0.001)
    with lock:
        clip(model)
    opt""",
        (
            "with lock",
            "held.start()",
            "time.sleep(0.001)",
        ),
    ),
    Planted(
        "contiguous copies",
        "layers.py",
        "        hidden = hidden.relu()",
        """\
        hidden = hidden.relu()
        for _ in range(12):
            hidden = hidden.T.contiguous().T.contiguous()""",
        ("contiguous()",),
    ),
]


@dataclass(frozen=True)
class Found:
    name: str
    is_red: bool
    is_first: bool
    is_among_three: bool
    share: float
    recorded_s: float
    took_s: float
    sentence: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--same", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for planted in PLANTED:
        if not options.only or any(word in planted.name for word in options.only):
            found.append(seen := follow(planted))
            marks = ["-" if not value else "yes" for value in (seen.is_red, seen.is_first, seen.is_among_three)]
            numbers = f"{seen.share:5.0%} {seen.recorded_s:5.1f} s of {seen.took_s:5.1f} s"
            print(f"{seen.name:24} {marks[0]:>4} {marks[1]:>4} {marks[2]:>4} {numbers}  {seen.sentence}", flush=True)
    if named := same(options.same) if options.same else []:
        print(f"unchanged: a place was named in {sum(bool(p.rows) for p in named)} of {len(named)}")
        for places in named:
            print(f"  {places.sentence or places.why_not}")
    if options.json:
        options.json.write_text(json.dumps([asdict(seen) for seen in found], indent=1))


def make(folder: Path, workers: str = "") -> None:
    option = f", num_workers=1, multiprocessing_context={workers!r})"
    for name, text in FILES.items():
        text = text.replace("batch_size=64)", f"batch_size=64{option}") if workers else text
        lines = text.strip("\n").splitlines()
        (folder / name).write_text("".join(f"{line.removeprefix(' ' * 8)}\n" for line in lines))
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def run(folder: Path, times: int = 1) -> tuple[CasePlaces | None, bool]:
    (folder / "conftest.py").write_text(OFTEN.replace("TIMES", str(times)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--world-size=2",
        "--distbench-against=HEAD",
        "--distbench-launches=3:3",
    ]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, "--distbench-json=r.json"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    cases = read_run_record(folder / "r.json").results if (folder / "r.json").exists() else []
    if not cases:
        sys.exit(done.stdout + done.stderr)
    [case] = cases
    return case.places, any(v.metric == "step" and v.kind == "regressed" for v in case.verdicts)


def follow(planted: Planted) -> Found:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, planted.workers)
        path = folder / planted.file
        text = path.read_text()
        assert planted.old in text, planted.name
        path.write_text(text.replace(planted.old, planted.new, 1))
        began = time.monotonic()
        places, is_red = run(folder)
        took_s = time.monotonic() - began
        rows = places.rows if places is not None else []

        def is_right(*at: tuple[str, int]) -> bool:
            texts = [
                (folder / file).read_text().splitlines()[line - 1] for file, line in at if (folder / file).is_file()
            ]
            return any(part in text for part in planted.right for text in texts)

        right = [is_right(row.place[:2], row.changed_at) for row in rows]
        return Found(
            name=planted.name,
            is_red=is_red,
            is_first=right[:1] == [True],
            is_among_three=any(right[:3]),
            share=min(1.0, sum(row.share for row, ok in zip(rows, right, strict=True) if ok)),
            recorded_s=places.took_s if places is not None else 0.0,
            took_s=took_s,
            sentence=(places.sentence or places.why_not) if places is not None else "",
        )


OFTEN = """
from pathlib import Path

import msgspec

from pytest_distbench.plugin import path
from pytest_distbench.run import control

control._slower_by_ab = lambda result: [v for v in result.verdicts if v.metric == "step"]


def often(*args):
    found = [control.explain_places(*args) for _ in range(TIMES)]
    Path("same.json").write_bytes(msgspec.json.encode([result.places for result in found]))
    return found[0]


path.explain_places = often
"""


def same(times: int) -> list[CasePlaces]:
    """What is recorded of the unchanged training, as if it had been found slower."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        run(folder, times)
        return msgspec.json.decode((folder / "same.json").read_bytes(), type=list[CasePlaces])


if __name__ == "__main__":
    main()

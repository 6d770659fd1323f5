"""Which models of transformers train under their plans as on one rank? Compares them under each layout.

    make models
    python benchmarks/models.py [--out models.csv] [--layouts ddp,fsdp2,...|all] [--seed 0] [--lot N] [NAME ...]

Without names each model of the installed transformers that has a tensor-parallel plan, or so many drawn by lot, always
the same. Every row is written when it is there, and what the file has is not measured again: killed, it goes on where
it was. Printed at the end: how many are equal, not equal and not run, those that are not, with the sentence, and the
seconds of a cell, by part of those of this run. Exit code 1 if one is not equal that the page docs/models.md does not
have. Two hours on two quiet cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pytest_distbench.layouts import LAYOUT_NAMES
from pytest_distbench.layouts.tables import verdict_on
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record

USUAL = ("ddp", "fsdp2", "tensor_parallel", "resume")
AT_ONCE = 6  # models of a run of pytest: its ranks import transformers once
PAGE = Path(__file__).parents[1] / "docs" / "models.md"
WITH_PLAN = """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
print(*(name for name in CONFIG_MAPPING_NAMES if getattr(CONFIG_MAPPING[name], "base_model_tp_plan", None)))
"""


class Row(NamedTuple):
    """One model under one layout."""

    model: str
    layout: str
    seed: int
    verdict: str
    seconds: float
    sentence: str


def read(file: Path) -> list[Row]:
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return [
            Row(r[0], r[1], int(r[2]), r[3], float(r[4]), r[5]) for r in csv.reader(lines) if len(r) == len(Row._fields)
        ]


def measure(names: Sequence[str], layouts: Sequence[str], seed: int, parts: Path) -> Iterator[Row]:
    """Compare some models. A run of pytest that fails as a whole has no row; ``parts`` gets seconds."""
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder, "test_models.py")
        test.write_text(
            "import pytest\n"
            f"@pytest.mark.parametrize('layout', {[*layouts]})\n"
            f"@pytest.mark.parametrize('name', {[*names]})\n"
            "def test_model(equivalent, name, layout):\n"
            f"    equivalent.model(f'transformers:{{name}}', layout, seed={seed})\n"
        )
        record = Path(folder, "run.json")
        preload = "distbench_preload=parts"
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        surroundings = {**os.environ, "PYTHONPATH": path, "DISTBENCH_PARTS": str(parts)}
        command = [sys.executable, "-m", "pytest", "-q", str(test), "--world-size=2", f"--distbench-json={record}"]
        command += ["-o", preload, "--rootdir", folder, "-p", "no:cacheprovider", "-p", "no:randomly"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=surroundings)
        if not record.exists():
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            return
        for result in read_run_record(record).results:
            params = result.case.params
            verdict, sentence = verdict_on(result)
            took_s = sum(launch.wall_s for launch in result.launches)
            name = str(params["model"]).partition(":")[2]
            yield Row(name, str(params["layout"]), seed, verdict, round(took_s, 1), sentence)


def shares(parts: Path) -> str:
    """Seconds of a cell on the first rank, and how much of them each part takes; the median over models."""
    by_layout: dict[str, list[dict[str, float]]] = {}
    for line in parts.read_text().splitlines() if parts.exists() else ():
        _, name, seconds = json.loads(line)
        by_layout.setdefault(name, []).append(seconds)
    names = ["model", "controls", "reference", "layout", "modules"]
    rows = []
    for name, cells in by_layout.items():
        totals = [sum(cell.values()) for cell in cells]
        of_all = [sum(cell.get(part, 0.0) for cell in cells) / sum(totals) for part in names]
        rows.append([name, str(len(cells)), f"{median(totals):.1f} s", *(f"{share:.0%}" for share in of_all)])
    return "\n".join(layout(["layout", "cells", "seconds", *names], rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("models.csv"))
    parser.add_argument("--layouts", default=",".join(USUAL))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lot", type=int)
    given = parser.parse_args()
    layouts = LAYOUT_NAMES if given.layouts == "all" else tuple(given.layouts.split(","))
    names = given.names
    if not names:
        found = subprocess.run([sys.executable, "-c", WITH_PLAN], capture_output=True, text=True, check=True)
        names = found.stdout.split()
    if given.lot:
        names = random.Random(0).sample(sorted(names), given.lot)
    done = {row[:3] for row in read(given.out)}
    left = [name for name in names if any((name, each, given.seed) not in done for each in layouts)]
    parts = given.out.with_suffix(".parts").absolute()
    parts.unlink(missing_ok=True)
    for i in range(0, len(left), AT_ONCE):
        rows = list(measure(left[i : i + AT_ONCE], layouts, given.seed, parts))
        with given.out.open("a", newline="") as file:
            csv.writer(file).writerows(row for row in rows if row[:3] not in done)
            os.fsync(file.fileno())
        print(f"{min(i + AT_ONCE, len(left))} of {len(left)} models", file=sys.stderr, flush=True)
    rows = [row for row in read(given.out) if row.model in names and row.layout in layouts and row.seed == given.seed]
    counts = Counter((row.layout, row.verdict) for row in rows)
    kinds = sorted({row.verdict for row in rows})
    print(
        "\n".join(
            layout(["layout", *kinds], [[each, *(str(counts[each, kind]) for kind in kinds)] for each in layouts])
        )
    )
    print()
    for row in rows:
        if row.verdict not in ("equal", "not run"):
            print(f"{row.model} under {row.layout}: {row.verdict}: {row.sentence}")
    reasons = Counter(row.sentence.partition(": ")[2] for row in rows if row.verdict == "not run")
    for reason, count in reasons.most_common():
        print(f"not run, {count}: {reason}")
    seconds = sorted(row.seconds for row in rows if row.verdict != "not run")
    if seconds:
        print(f"{len(seconds)} cells, median {seconds[len(seconds) // 2]:.1f} s, the longest {seconds[-1]:.1f} s")
    if left:
        print(shares(parts))
    page = PAGE.read_text(encoding="utf-8")
    unknown = [r for r in rows if r.verdict not in ("equal", "not run") and f"`{r.model}`" not in page]
    return 1 if unknown else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Which changes of a training's digits are red, and which faults are not? The rule for curves, on one set of records.

    python benchmarks/numerics.py [--records FILE] [--write FILE]

Without records it trains ``recipes.py``, each recipe with each change, on two ranks (two minutes on two quiet cores);
tests/judging/trainings.json holds what that wrote. Each is judged against the recipe as it was, as one seed under the
same software, by two rules: the first ten losses within 1e-3 of the loss, and numbers that follow any other digit in
doubt (what was the rule before); and that of today, with the curve as long as the loss takes to move. Printed are the
largest deviation of the curve, relative to the loss and to how far the curve moves, and the verdicts: of the curve, and
the gravest of the numbers and weights; and how far weights deviate, relative to how far they have moved. Exit code 1 if
a healthy change is red.

On these records the rule before called 3 of 48 healthy changes red, and 36 of 52 faults (11 of 26 under the two
warm-ups); that of today 0 of 48, and 51 of 52 (25 of 26). Healthy are bucket sizes and views, static graphs, threads,
another order of a sum, fused and looping optimizers, channels_last, aot_eager, bfloat16 gradients and other instruction
sets. Missed is a clip that never takes effect under the slow warm-up: it computes the same. In float32 a healthy change
moves no weight by more than 1e-4 of its change since the first update, and gradients in bfloat16 by 0.1; the faults by
0.02 and more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pytest_distbench.judging import golden_curve
from pytest_distbench.judging.case import judge_trainings
from pytest_distbench.judging.entry import stored_samples
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import BaselineEntry, Conditions
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import WEIGHTS, Sample
from pytest_distbench.records.reasons import REASONS, severity_order
from pytest_distbench.records.trained import TensorState
from pytest_distbench.report import layout
from pytest_distbench.store.files import read_run_record

KINDS = {"loss_curve": "curve", "final_loss": "same", "validation_loss": "same", "accuracy": "floor"}
CONDITIONS = Conditions(world_size=2, backend="gloo", launcher="warm")
RTOL, STEPS_BEFORE = 1e-3, 10
OTHER_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
"""Set before torch is imported; MKL then adds in the order of any CPU."""
HEADER = (
    "recipe",
    "change",
    "deviates by",
    "of its move",
    "weights",
    "before: curve",
    "numbers",
    "today: curve",
    "numbers",
)

Training = dict[str, Any]
"""Metric -> its values, one of a number; ``weights``: name -> how it is at the end; ``precision``: below float32."""

TEST = """
import sys
sys.path.insert(0, {folder!r})
import pytest, recipes

CHANGES = [c for c in (*recipes.HEALTHY, *recipes.FAULTS) if (c == recipes.ON_OTHER_CPU) == {other}]

@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_recipe(distbench, monkeypatch, recipe, change):
    monkeypatch.setenv(recipes.VARIABLE, f"{{recipe}}/{{change}}")
    distbench.run({folder!r} + "/recipes.py::train", params={{"recipe": recipe, "change": change}}, seeds=[0])
"""


def train() -> dict[str, dict[str, Training]]:
    """Recipe -> change -> what it computed."""
    found: dict[str, dict[str, Training]] = {}
    for other in (False, True):
        with tempfile.TemporaryDirectory(prefix="distbench-") as name:
            folder = Path(name)
            (folder / "test_recipes.py").write_text(TEST.format(folder=str(Path(__file__).parent), other=other))
            (folder / "pytest.ini").write_text("[pytest]\n")
            command = [sys.executable, "-m", "pytest", str(folder), "-q", f"--rootdir={folder}", "--world-size=2"]
            command += ["-p", "no:cacheprovider", "--distbench-launches=1:1"]
            command += ["-o", "distbench_preload=sklearn.datasets", "--distbench-json=run.json"]
            environment = {**os.environ, **(OTHER_CPU if other else {})}
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
            if done.returncode > 1:  # 1: a fault is red by itself, without a baseline
                raise SystemExit(done.stdout + done.stderr)
            for result in read_run_record(folder / "run.json").results:
                launch = result.launches[0]
                made = {m.name: m for m in launch.measurements if m.name in KINDS}
                weights = next(m for m in launch.measurements if m.name == WEIGHTS)
                found.setdefault(str(result.case.params["recipe"]), {})[str(result.case.params["change"])] = {
                    **{
                        n: [golden_curve.round_digits(v) for v in m.values or [m.value or 0.0]] for n, m in made.items()
                    },
                    "weights": msgspec.to_builtins(weights.tensors),
                    "precision": launch.software["lower_precision"],
                }
    return found


def measured(training: Training, steps: int) -> dict[str, list[Sample]]:
    """A launch of it, with a curve of so many steps."""
    found = {}
    for name, better in KINDS.items():
        values = training[name][:steps]
        series = values if better == "curve" else []
        whole = training[name] if better == "curve" else []
        found[name] = [
            Sample(
                name=name, unit="", better=better, value=values[-1], values=series, whole=whole, whole_length=len(whole)
            )
        ]
    tensors = msgspec.convert(training["weights"], dict[str, dict[str, TensorState]])
    found[WEIGHTS] = [Sample(name=WEIGHTS, unit="", better="weights", value=1.0, tensors=tensors)]
    return found


def judged(then: Training, now: Training, *, same_software: bool = True) -> dict[str, str]:
    """The verdicts of today's rule, by metric."""
    steps = golden_curve.steps_to_move(then["loss_curve"])
    stored = {name: stored_samples(m) for name, m in measured(then, steps).items()}
    terms = Terms(default_tolerance=0.1, max_launches=1, cores=2)
    launches = [LaunchRecord(index=0, outcome="passed", wall_s=1.0, software=software(side)) for side in (then, now)]
    entry = BaselineEntry(workload="", conditions=CONDITIONS, software=launches[0].software, metrics=stored)
    found = judge_trainings(
        terms, measured(now, steps), stored, launches=launches[1:], entry=entry, same_software=same_software
    )
    return {verdict.name: verdict.code for verdict in found}


def software(training: Training) -> dict[str, str]:
    """What a rank says of its arithmetic."""
    return {"autocast": "off", "lower_precision": training["precision"]}


def share_of_move(then: Training, now: Training) -> float:
    """The largest deviation of a weight of all ranks, relative to how far that has moved; infinite: ranks differ."""
    sides = [measured(one, STEPS_BEFORE)[WEIGHTS][0].tensors.get("all", {}) for one in (then, now)]
    if sides[0].keys() != sides[1].keys():
        return math.inf
    return max(state.distance(sides[1][name]) / state.change for name, state in sides[0].items() if state.change)


def judged_before(then: Training, now: Training) -> dict[str, str]:
    """Those of the rule before."""
    largest = max(golden_curve.deviations(then["loss_curve"][:STEPS_BEFORE], now["loss_curve"][:STEPS_BEFORE]))
    found = {"loss_curve": "equal" if not largest else "numerics" if largest <= RTOL else "losses"}
    for name in list(KINDS)[1:]:
        a, b = then[name][0], now[name][0]
        worse = b < a if KINDS[name] == "floor" else abs(b - a) > RTOL * abs(a)
        moved = "training-number" if not largest else "one-seed" if worse else "within-threshold"
        found[name] = "equal" if a == b else moved
    return found


def gravest(codes: Mapping[str, str]) -> str:
    """Of the numbers, without the curve."""
    return min((code for name, code in codes.items() if name != "loss_curve"), key=severity_order)


def is_red(codes: Mapping[str, str]) -> bool:
    """Whether it fails its test."""
    return any(REASONS[code].fails for code in codes.values())


def main() -> int:
    """Train or read, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, help="what a run of this program wrote")
    parser.add_argument("--write", type=Path, help="write what was trained, to be judged again")
    options = parser.parse_args()
    trainings = json.loads(options.records.read_text()) if options.records else train()
    if options.write:
        rows = [
            f"{json.dumps(r)}: {{\n" + ",\n".join(f" {json.dumps(c)}: {json.dumps(t)}" for c, t in of.items()) + "}"
            for r, of in trainings.items()
        ]
        options.write.write_text("{" + ",\n".join(rows) + "}\n")
    import recipes

    cells, red = [], {"before": [0, 0], "today": [0, 0]}
    for recipe, changes in trainings.items():
        then = changes[recipes.HEALTHY[0]]
        steps = golden_curve.steps_to_move(then["loss_curve"])
        for change, now in changes.items():
            curves = then["loss_curve"][:steps], now["loss_curve"][:steps]
            divergence = golden_curve.compare(*curves, rtol=None, rounding=0.0)
            before, today = judged_before(then, now), judged(then, now)
            for name, kinds in (("before", before), ("today", today)):
                red[name][change in recipes.FAULTS] += is_red(kinds)
            verdicts = (before["loss_curve"], gravest(before), today["loss_curve"], gravest(today))
            cells.append(
                (
                    recipe,
                    change,
                    f"{divergence.largest:.0e}",
                    f"{golden_curve.share_of_range(*curves):.1e}",
                    f"{share_of_move(then, now):.0e}",
                    *verdicts,
                )
            )
    print("\n".join(layout(HEADER, cells)))
    count = {name: len(trainings) * len(of) for name, of in (("healthy", recipes.HEALTHY), ("faults", recipes.FAULTS))}
    for name, (healthy, faults) in red.items():
        print(f"{name}: {healthy} of {count['healthy']} healthy red, {faults} of {count['faults']} faults red")
    return 1 if red["today"][0] else 0


if __name__ == "__main__":
    sys.exit(main())

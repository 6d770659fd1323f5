"""Checks of the repository itself; what tools check is in ``lint.py``."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_job_on_gpus_looks_at_the_machine_before_it_measures_and_keeps_what_it_finds() -> None:
    """The base of a pull request, the driver, a pinned torch, the doctor, the suites; what they leave is kept."""
    github = ROOT / ".github"
    texts = {path.parent.name: path.read_text() for path in (github / "actions").glob("*/action.yml")}
    job = (github / "workflows" / "measure.yml").read_text()
    for name in ("install", "measure"):
        job = job.replace(f"uses: $/.github/actions/{name}\n", texts[name].partition("steps:")[2], 1)
    steps = [
        "fetch-depth: 0",
        "nvidia-smi\n",
        '--torch-backend="$backend" "$TORCH"',
        "distbench doctor",
        '"--distbench-against=$AGAINST"',
        '"${measure[@]}" ',
        '--distbench-out="$OUT" ',
        "path: ${{ runner.temp }}/distbench-out/${{ inputs.artifact }}/\n",
    ]
    places = [job.index(step) for step in steps]

    assert places == sorted(places)
    assert "uses: $/.github/workflows/measure.yml\n" in (github / "workflows" / "perf.yml").read_text()
    everything = "".join([*texts.values(), job, (github / "workflows" / "baselines.yml").read_text()])
    [pin] = set(re.findall(r"default: (torch==.*)", everything))
    assert len(set(re.findall(r'default: "(3\..*)"', everything))) == 1
    assert f"    {pin}\n" in (ROOT / "tox.ini").read_text()


def test_a_number_of_the_rules_is_defined_once() -> None:
    """Two definitions of one constant, such as an error rate, diverge. Every kind of file counts its own schema."""
    homes = Counter(
        target.id
        for path in (ROOT / "pytest_distbench").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) is not str
        for target in node.targets
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    )

    assert {name for name, count in homes.items() if count > 1} <= {"SCHEMA"}

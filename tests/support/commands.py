"""The commands of actions and workflows, with what GitHub fills in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from pytest_distbench.tools.init import Repository

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
TEMPLATES = {"hosted.yml.txt": 0, "gpu.yml.txt": 2, "record.yml.txt": 2}
"""What ``distbench init`` makes workflows of, and the GPUs of its machine."""

GIVEN = {
    "github.token": "token",
    "github.event.pull_request.base.sha": "main",
    "github.event.pull_request.head.repo.full_name": "o/r",
    "github.event.pull_request.head.sha": "head",
    "matrix.versions": "oldest",
    "runner.temp": "{RUNNER_TEMP}",
    "steps.base.outputs.change": "HEAD",
}
"""What GitHub puts in the place of an expression; of an input it is the default."""


class Command(NamedTuple):
    """A ``run:`` block."""

    name: str
    text: str
    shell: str
    variables: dict[str, str]
    """Its ``env:`` and that of what it is part of, with what GitHub fills in."""


def written_by_init(template: str) -> str:
    """A workflow that ``distbench init`` writes."""
    return Repository(
        branch="main",
        baselines="baselines",
        ranks=TEMPLATES[template] or 2,
        on_gpus=TEMPLATES[template] > 0,
        is_here=True,
        requirement="pytest-distbench==0.1.0",
        install="-r requirements.txt -e .",
        is_committed_to=True,
        is_installable=True,
    ).fill(template)


def commands() -> dict[str, Command]:
    """All of them, by the file, the job and the step."""
    files = {str(path.relative_to(GITHUB)): path.read_text() for path in sorted(GITHUB.glob("*/**/*.yml"))}
    files |= {f"init/{name.removesuffix('.yml.txt')}": written_by_init(name) for name in TEMPLATES}
    found = [command for name, text in files.items() for command in _of_file(name, YAML(typ="safe").load(text))]
    named = {command.name: command for command in found}
    assert len(named) == sum(len(re.findall(r"^ *(?:- )?run: ", text, re.MULTILINE)) for text in files.values())
    return named


def _of_file(name: str, file: dict[str, Any]) -> Iterator[Command]:
    triggers = file.get("on", {})
    inputs = file.get("inputs") or next((t["inputs"] for t in triggers.values() if t and "inputs" in t), {})
    defaults = {f"inputs.{key}": _text(row.get("default", "")) for key, row in inputs.items()}
    jobs = file.get("jobs") or {"": file["runs"]}
    shell = file.get("defaults", {}).get("run", {}).get("shell", "")
    for job_name, job in jobs.items():
        for step in job.get("steps", ()):
            if "run" in step:
                place = "/".join(part for part in (name.removesuffix("/action.yml"), job_name, step["name"]) if part)
                given = {**file.get("env", {}), **job.get("env", {}), **step.get("env", {})}
                yield Command(
                    place,
                    step["run"],
                    step.get("shell", shell),
                    {key: _fill(_text(value), GIVEN | defaults) for key, value in given.items()},
                )


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], text)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""A rank of the warm launcher is a rank of torchrun, as far as a body can see; what differs is in docs/triage.md."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import surroundings
from support.launching import Launch, MadeLauncher

from pytest_distbench.records.plan import BodyReference

if TYPE_CHECKING:
    from pytest_distbench import RankContext

pytestmark = pytest.mark.spawn

DOCUMENT = Path(__file__).parents[2] / "docs" / "triage.md"
HEADING = "## What a rank of the warm launcher sees"
Seen = dict[str, Any]


def writes_what_it_sees(rank: RankContext) -> None:
    seen = {"facts": surroundings.facts(), "draws": surroundings.draws()}
    (rank.data_dir / f"{rank.params['name']}-{rank.rank}.json").write_text(json.dumps(seen))


def listed() -> set[str]:
    """What the table says is different."""
    section = DOCUMENT.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def look(launch: Launch, name: str, body: BodyReference | None = None) -> list[Seen]:
    """What each of two ranks sees."""
    record = launch("writes_what_it_sees", params={"name": name}, body=body)
    assert record.outcome == "passed", record.reason
    return [json.loads((launch.directory / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]


def different(these: Seen, those: Seen) -> set[str]:
    here, there = these["facts"], those["facts"]
    return {name for name in here | there if here.get(name) != there.get(name)}


def equal_draws(these: Seen, those: Seen) -> set[str]:
    here, there = these["draws"], those["draws"]
    return {name for name in here if here[name] == there.get(name)}


def test_a_rank_sees_the_same_under_both_launchers_but_for_what_is_listed(
    made_launcher: MadeLauncher, tmp_path: Path
) -> None:
    """And no draw is the same in two ranks, or in two launches, that would differ under torchrun."""
    warm, torchrun = (Launch(made_launcher(name), tmp_path, Path(__file__)) for name in ("warm", "torchrun"))
    forked = [*look(warm, "first"), *look(warm, "second")]
    started = look(torchrun, "torchrun")
    pairs = [(seen, other) for i, seen in enumerate(forked) for other in forked[:i]]
    shared = set().union(*(equal_draws(*pair) for pair in pairs)) - equal_draws(*started)
    ours = {"hash of a text"} if "PYTHONHASHSEED" in os.environ else set()  # tox sets it: then all have the same

    assert different(forked[0], started[0]) | shared == listed() - ours


@pytest.mark.nightly
def test_so_does_a_script(made_launcher: MadeLauncher, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    support = Path(surroundings.__file__).parents[1]
    script.write_text(f"""
import json, os, sys
sys.path.insert(1, {str(support)!r})
from support import surroundings
seen = {{"facts": surroundings.facts(), "draws": surroundings.draws()}}
with open({str(tmp_path)!r} + f"/it-{{os.environ['RANK']}}.json", "w") as file:
    json.dump(seen, file)
""")
    seen = []
    for name in ("warm", "torchrun"):
        body = BodyReference(file=str(script), makes_group=False)
        seen.append(look(Launch(made_launcher(name), tmp_path, script), "it", body)[0])

    assert different(*seen) < listed()

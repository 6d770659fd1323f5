"""The file that ``--distbench-json`` writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.run import RunRecord
from pytest_distbench.store.files import FileKind
from pytest_distbench.store.old_conditions import conditions_of_old

SCHEMA = 3
"""Version of the file format. 1: first. 2: key and reference of a case are records of their own; its outcome. 3: the
conditions of a case, the name of its run, and distributions of series that are not kept (earlier ones are gone)."""

_LABEL = re.compile(r"(?P<run>.*?)(?P<size>@ws\d+)?(?:@rank(?P<rank>\d+))?", re.DOTALL)
_WORLD_SIZE = re.compile(r"\bws\d+\b-?|-ws\d+\b")


def _with_references(document: dict[str, Any]) -> dict[str, Any]:
    """From schema 1 to 2. A test's outcome was not written then: it is what the verdicts and launches say."""
    return document | {"results": [_with_reference(result) for result in document["results"]]}


def _with_reference(result: dict[str, Any]) -> dict[str, Any]:
    case = dict(result["case"])
    key = {name: case.pop(name) for name in ("case_id", "backend", "launcher")}
    name, path = result.get("against", ""), result.get("baseline_path", "")
    reference = {
        "kind": "paired" if name else "stored" if path else "nothing",
        "name": name,
        "path": path,
        "software": result.get("baseline_software", {}),
        "peak_memory_bytes": result.get("baseline_peak_memory_bytes"),
        "phases": result.get("baseline_phases", {}),
        "launches": result.get("reference_launches", []),
    }
    replaced_by = {
        "against", "baseline_path", "baseline_software", "baseline_peak_memory_bytes", "baseline_phases",
        "reference_launches",
    }  # fmt: skip
    kept = {field: value for field, value in result.items() if field not in replaced_by}
    return kept | {"case": case | {"key": key}, "reference": reference, "outcome": _outcome(result)}


def _outcome(result: dict[str, Any]) -> str:
    last = result["launches"][-1]["outcome"]
    fails = any(VERDICT_KINDS[verdict["kind"]].fails for verdict in result["verdicts"])
    if last == "passed" and fails and result.get("update", "") == "":
        return "xfailed" if result.get("xfail_perf", "") else "failed"
    return "failed" if result.get("update", "") == "refused" else str(last)


def _with_conditions(document: dict[str, Any]) -> dict[str, Any]:
    """From schema 2 to 3. What was not noted then is read out of the key, here and nowhere else."""
    results = [result | {"case": _of_parts(result["case"], result["nodeid"])} for result in document["results"]]
    return document | {"results": results}


def _of_parts(case: dict[str, Any], nodeid: str) -> dict[str, Any]:
    kept = {name: value for name, value in case.items() if name not in ("key", "world_size")}
    key = case["key"]
    whole, backend = key["case_id"], key["backend"]
    ids = [whole[:i] for i, character in enumerate(whole) if character == ":"] + [whole]  # an id may hold colons, too
    ends = tuple(nodeid.endswith((f"[{test_id}]", f"[{test_id}-{backend}]")) for test_id in ids)
    test_id = ids[ends.index(True)] if True in ends else ids[0]
    label = _LABEL.fullmatch(whole.removeprefix(test_id).removeprefix(":"))
    assert label is not None
    conditions = conditions_of_old(key | {"world_size": case["world_size"]}, fake_rank=int(label["rank"] or 0))
    return kept | {
        "id": test_id,
        "family": _WORLD_SIZE.sub("", test_id).strip("-"),
        "run": label["run"],
        "names_size": label["size"] is not None,
        "conditions": conditions,
    }


RUN_RECORDS = FileKind(
    name="run record",
    record=RunRecord,
    schema=SCHEMA,
    max_bytes=512 * 2**20,
    next_step="Write one with pytest --distbench-json FILE",
    where="Give --distbench-json a writable place",
    migrations={1: _with_references, 2: _with_conditions},
)


def write_run_record(path: Path, record: RunRecord) -> None:
    """Write the record atomically."""
    RUN_RECORDS.write(path, record)


def read_run_record(path: Path) -> RunRecord:
    """Read a record back, strictly."""
    return RUN_RECORDS.read(path)

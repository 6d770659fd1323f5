"""Changes of baselines: the difference between two versions, folders or git revisions, and what a run proposes.

New fields of a baseline need no change here.
"""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, DistbenchError
from pytest_distbench.judging.bounds import judge_bounds
from pytest_distbench.judging.entry import (
    FEWEST_EXACT,
    FEWEST_LAUNCHES,
    is_wanted,
    judged_by_bounds_alone,
    make_baseline,
    why_not_storable,
)
from pytest_distbench.judging.fingerprint_rule import differences
from pytest_distbench.judging.terms import by_metric
from pytest_distbench.records.case import BaselineEntry, BaselineName
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS, median
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import Record, replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.store.baselines import BASELINE_FILES, BaselineFile, Baselines
from pytest_distbench.store.entries import Choice
from pytest_distbench.units import quantity

_LONGEST_VALUE = 60


def worse_by(change: Finding) -> float:
    """Logarithm of the ratio by which a number became worse, negative if better; infinite if there is no ratio."""
    if change.baseline == change.current:
        return 0.0
    kind = METRIC_KINDS[change.better]
    if kind.is_exact or change.ratio is None or change.ratio <= 0:
        return math.inf
    return math.log(change.ratio) * (kind.sign or 1)


class BaselineChange(Record, frozen=True, kw_only=True):
    name: BaselineName
    kind: Literal["new", "removed", "changed"]
    metrics: list[Finding]  # medians of those whose launches differ; of exact numbers, those whose values do
    notes: list[str]  # every other field that differs: ``software.torch 2.12.0 -> 2.13.0``


def baseline_change(name: BaselineName, old: BaselineEntry | None, new: BaselineEntry | None) -> BaselineChange | None:
    if old == new:
        return None
    metrics = []
    for key in sorted({*(old.metrics if old is not None else ()), *(new.metrics if new is not None else ())}):
        before, after = (entry.metrics.get(key, []) if entry is not None else [] for entry in (old, new))
        if _what_counts(before) != _what_counts(after):
            metrics.append(
                Finding(
                    metric=key,
                    code="note",
                    unit=(after or before)[0].unit,
                    better=(after or before)[0].better,
                    baseline=median(m.value for m in before),
                    current=median(m.value for m in after),
                    baseline_launches=len(before),
                    launches=len(after),
                )
            )
    return BaselineChange(
        name=name,
        kind="new" if old is None else "removed" if new is None else "changed",
        metrics=metrics,
        notes=list(_notes(old, new)) if old is not None and new is not None else [],
    )


def _what_counts(metric: Sequence[Sample]) -> object:
    values = [m.value for m in metric]
    return set(values) if metric and METRIC_KINDS[metric[0].better].is_exact else values


def _notes(old: BaselineEntry, new: BaselineEntry) -> Iterator[str]:
    for field in BaselineEntry.__struct_fields__:
        if field != "metrics":
            yield from _difference(field, getattr(old, field), getattr(new, field))
    for key in sorted({*old.metrics} & {*new.metrics}):
        sides = [_columns(side.metrics[key]) for side in (old, new)]
        for field in dict.fromkeys([*sides[0], *sides[1]]):
            yield from _difference(f"{key}.{field}", *(columns.get(field) for columns in sides))


def _columns(metric: Sequence[Sample]) -> dict[str, Any]:
    """Name -> value of each field of a metric's samples but ``value``; a list, one per launch, if launches differ."""
    rows = [
        {field: getattr(sample, field) for field in Sample.__struct_fields__ if field not in ("value", "spread")}
        | msgspec.to_builtins(sample.spread or {})
        for sample in metric
    ]
    columns = {field: [row.get(field) for row in rows] for row in rows for field in row}
    return {field: found[0] if all(value == found[0] for value in found) else found for field, found in columns.items()}


def _difference(field: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _difference(f"{field}.{key}", old.get(key), new.get(key))
    elif isinstance(old, Fingerprint) and isinstance(new, Fingerprint) and (lines := differences(old, new)):
        yield from (f"{field}: {line}" for line in lines)
    elif isinstance(old, Record) and isinstance(new, Record):
        yield from _difference(field, msgspec.structs.asdict(old), msgspec.structs.asdict(new))
    else:
        yield f"{field} {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    if value in (None, ""):
        return "none"
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


class FolderVersion:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self) -> set[str]:
        stores = [Baselines(self._folder, platform) for platform in Baselines(self._folder, "").platforms()]
        start = len(str(self._folder / "x")) - 1
        return {str(path)[start:] for store in stores for path in store.files()}

    def read(self, path: str) -> bytes:
        return BASELINE_FILES.read_bytes(self._folder / path)


class RevisionVersion:
    """The baseline files at a git revision, read by one ``git cat-file`` process."""

    def __init__(self, folder: Path, revision: str) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        commit = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if commit is None:
            raise DistbenchError(
                f"{revision!r} is neither a folder nor a git revision known in {folder}: give a branch, tag or commit "
                "(fetch it first?), or another baseline directory"
            )
        prefix = self._git("rev-parse", "--show-prefix") or ""
        tree = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}:{prefix.rstrip('/')}")
        listing = self._git("ls-tree", "-r", "-z", "--full-tree", tree) if tree else ""
        rows = [row.partition("\t") for row in (listing or "").split("\0") if row]
        self._objects = {path: facts.split()[2] for facts, _, path in rows if path.endswith(".json")}

    def paths(self) -> set[str]:
        return set(self._objects)

    def read(self, path: str) -> bytes:
        if self._process is None:
            command = git.command(self._folder, "cat-file", "--batch")
            self._process = subprocess.Popen(
                command, env=git.variables(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._objects[path]}\n".encode())
        self._process.stdin.flush()
        facts = self._process.stdout.readline().split()
        if len(facts) != 3:  # a partial clone that cannot fetch it
            raise DistbenchError(f"git has no content for {path} ({facts!r}): fetch the revision whole")
        return self._process.stdout.read(int(facts[2]) + 1)[:-1]

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def _git(self, *arguments: str) -> str | None:
        try:
            done = git.run(self._folder, *arguments)
        except OSError as error:
            raise DistbenchError(f"cannot run git: {error.strerror or error}; diff against a folder instead") from error
        return done.stdout.removesuffix("\n") if done.returncode == 0 else None


Version = FolderVersion | RevisionVersion  # baseline files at one point in time, by path below their directory


def changes_between(
    old: Version, new: Version, choice: Choice, *, platform: str = ""
) -> tuple[list[BaselineChange], int]:
    """What differs between two versions, and the number of baselines that are the same in both."""
    before, after = old.paths(), new.paths()
    changes, unchanged = [], 0
    for path in sorted(before | after):
        if platform and not path.startswith(f"{platform}/"):
            continue
        was = old.read(path) if path in before else None
        is_now = new.read(path) if path in after else None
        then = _parse(was, path)
        now = then if was == is_now else _parse(is_now, path)
        known = now or then
        if known is None or not choice(known.name):
            continue
        change = baseline_change(known.name, then.entry if then else None, now.entry if now else None)
        if change is None:
            unchanged += 1
        else:
            changes.append(change)
    return changes, unchanged


def _parse(data: bytes | None, path: str) -> BaselineFile | None:
    return None if data is None else BASELINE_FILES.parse(data, Path(path))


class NotABaseline(DistbenchError):
    """Numbers that must not be stored; the text says why and what to do."""


def why_test_did_not_pass(results: Iterable[CaseResult]) -> dict[str, str]:
    """Node id -> why no number of this test may be stored, for tests that failed by more than their verdicts.

    An update writes nothing of such a test either. A test that failed because a case regressed is what is accepted.
    """
    of_test: dict[str, list[CaseResult]] = {}
    for result in results:
        of_test.setdefault(result.nodeid, []).append(result)
    return {nodeid: why for nodeid, cases in of_test.items() if (why := _why_it_did_not_pass(cases))}


def _why_it_did_not_pass(cases: Sequence[CaseResult]) -> str:
    if stood_down := next((case for case in cases if case.outcome in ("skipped", "xfailed")), None):
        return f"its test was {stood_down.outcome}: {stood_down.headline}"
    if any(launch.outcome != "passed" for case in cases for launch in case.launches):
        return "a launch of its test did not pass"
    outcome = cases[0].test_outcome
    if outcome == "failed" and all(case.outcome in ("passed", "advisory") for case in cases):
        return "its test failed after it was measured, by an assertion of its own"
    return "its test was skipped after it was measured" if outcome == "skipped" else ""


def propose_baseline(
    result: CaseResult, stored: BaselineEntry | None, *, mode: str, force: bool, did_not_pass: str = ""
) -> BaselineEntry | None:
    """The baseline that replaces ``stored``, or None if the mode does not want this case.

    A run adds launches only for the metrics that are open, so some metrics of a case have five values and others one.
    Metrics that did not change keep what is stored, unless all are asked for. A changed one with noise is refused if it
    has too few launches to estimate that; an exact one, or one of a seeded training, has none.

    Raises:
        NotABaseline: the run's numbers must not be stored.
    """
    _check_origin(result)
    if did_not_pass:
        raise NotABaseline(f"{did_not_pass}; fix it, and measure again")
    is_new = stored is None or not stored.holds_numbers
    if result.reference.kind == "paired" and any(_changed_or_new(verdict) for verdict in result.verdicts):
        raise NotABaseline(
            f"it was compared with {result.reference.name} by interleaved A/B, and not with its baseline: measure it "
            "without --distbench-against, by --distbench-update"
        )
    if result.reference.kind != "stored" or judged_by_bounds_alone(result.verdicts):
        return None
    if not is_wanted(mode, result.verdicts, is_new=is_new) or (mode == "new" and not is_new):
        return None
    _check_bounds(result, stored)
    if stored is not None and not force and (newer := _newer(result, stored)):
        raise NotABaseline(f"{newer} since this run compared with it: measure again, or accept it with --force")
    if why := why_not_storable(result.launches, fewest=1):
        raise NotABaseline(why)
    made = make_baseline(result.case, result.launches, result.environment.software, before=stored)
    known = stored if stored is not None and stored.workload == made.workload else None
    if known is None or (force and mode == "all") or result.update in ("new", "changed", "rewritten"):
        return made if force or result.update else _checked(result, made, {}, {})
    few = len(result.launches) < FEWEST_LAUNCHES
    verdicts = {v.metric: v for v in result.verdicts}
    kept = {
        key: metric
        for key, metric in known.metrics.items()
        if key in made.metrics and _is_kept(verdicts.get(key), metric, made.metrics[key], few=few or mode != "all")
    }
    unsure = {}
    for key, f in known.fingerprints.items():
        now = made.fingerprints.get(key)
        # what is stored of the course came of more launches, and these show nothing else
        is_course_known = bool(f.course or f.course_missing) and now is not None and not now.missing
        if few and (f.missing or (is_course_known and now is not None and not differences(f, now))):
            unsure[key] = f
    checked = _checked(result, made, kept, known.metrics, force=force)
    if any(metric[0].is_noisy for metric in kept.values()):  # what explains their noise stays with them
        checked = replace(checked, **{name: getattr(known, name) for name in _OF_TIMINGS})
    return replace(checked, fingerprints=made.fingerprints | unsure)


def _newer(result: CaseResult, stored: BaselineEntry) -> str:
    then = result.reference.metrics
    if not then and stored.holds_numbers and all(v.kind == "new" for v in result.verdicts if v.is_judged):
        return "its baseline was recorded"
    found = by_metric(result.launches)
    changed = {verdict.metric for verdict in result.verdicts if _changed_or_new(verdict)}
    for key, metric in stored.metrics.items():
        if key not in changed:
            continue
        is_own = _what_counts(metric) == _what_counts(found.get(key, ()))
        if key in then and not is_own and _what_counts(then[key]) != _what_counts(metric):
            values = (quantity(median(m.value for m in side), metric[0].unit) for side in (then[key], metric))
            return f"the baseline of {key} became {' -> '.join(values)}"
    return ""


def _is_kept(verdict: Finding | None, known: Sequence[Sample], made: Sequence[Sample], *, few: bool) -> bool:
    """Whether an update keeps a metric's stored samples: it has not changed, or was not measured well enough.

    A training's number whose values differ is not kept, even without a verdict: it changed with the losses.
    """
    if not few or (verdict is not None and _changed_or_new(verdict)):
        return False
    is_known = verdict is not None and verdict.kind == "unchanged" and verdict.row.is_answer
    return (
        is_known
        or not METRIC_KINDS[made[0].better].is_of_training
        or ({m.value for m in made} <= {m.value for m in known})
    )


_OF_TIMINGS = ("foreign_cores", "foreign_wanted", "crowding", "phases", "gpu_norm", "launch_s")


def _checked(
    result: CaseResult,
    made: BaselineEntry,
    kept: Mapping[str, list[Sample]],
    known: Mapping[str, list[Sample]],
    *,
    force: bool = False,
) -> BaselineEntry:
    few = {
        key: fewest
        for key, metric in made.metrics.items()
        if key not in kept and len(metric) < (fewest := _fewest(metric, known.get(key, [])))
    }
    if few and not force:
        key, fewest = max(few.items(), key=lambda item: item[1])
        more = f" (and {len(few) - 1} more)" if len(few) > 1 else ""
        raise NotABaseline(
            f"{key}{more} is new or changed, and has {len(result.launches)} of the {fewest} launches that its noise "
            f"estimate needs: on the machine that measured it, pytest {shlex.quote(result.nodeid)} --distbench-update "
            "makes them; or give --force"
        )
    return replace(made, metrics={key: kept.get(key, metric) for key, metric in made.metrics.items()})


def _fewest(made: Sequence[Sample], known: Sequence[Sample]) -> int:
    """Fewest launches that an update needs to store a metric.

    A number of a seeded training repeats: one launch is enough if the stored ones show that, else two equal ones.
    """
    if METRIC_KINDS[made[0].better].needs_few_launches:
        return 1
    if made[0].is_noisy or not _repeats(made):
        return FEWEST_LAUNCHES
    return 1 if known and _repeats(known) else FEWEST_EXACT


def _repeats(metric: Sequence[Sample]) -> bool:
    return not metric[0].is_noisy and all((m.value, m.values) == (metric[0].value, metric[0].values) for m in metric)


def _changed_or_new(verdict: Finding) -> bool:
    return verdict.is_judged and verdict.row.updates


def _check_origin(result: CaseResult) -> None:
    if result.environment.shares_gpu:
        raise NotABaseline("ranks shared a GPU: measure with one GPU per rank")
    for launch in result.launches:
        if launch.outcome != "passed":
            reason = f": {launch.reason}" if launch.reason else ""
            raise NotABaseline(f"launch {launch.index + 1} {launch.outcome}{reason}; measure again once it passes")
    if not result.launches:
        raise NotABaseline("nothing was launched")
    if result.reference.kind == "stored" and not result.verdicts:
        raise NotABaseline("nothing was judged: --distbench-attach measures nothing")


def _check_bounds(result: CaseResult, stored: BaselineEntry | None) -> None:
    """Raise NotABaseline if a number violates a bound, of the run or of the baseline file as it is now."""
    asked = [(metric, value, "the baseline file") for metric, value in (stored.bounds if stored else {}).items()]
    try:
        judged = judge_bounds(result.verdicts, result.launches, asked)
    except ConfigurationError as error:
        raise NotABaseline(str(error)) from None
    for verdict in [*result.verdicts, *judged]:
        if verdict.code == "bound":
            raise NotABaseline(
                f"{verdict.metric} violates a bound: {verdict.reason}; fix what was measured, or change the bound"
            )

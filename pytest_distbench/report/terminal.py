"""What a terminal shows of a run, as lines: the header before the first test, and the section at its end.

The header says what is measured on what, against which baselines, and how long it will take, which is known by what
tests took before, or by the launches of their baselines. The section at the end has the summary table, counts, what
was written and what is missing.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_distbench.judging.entry import FEWEST_LAUNCHES
from pytest_distbench.judging.sensitivity import sensitivity_lines
from pytest_distbench.judging.words import metric_text
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.iteration import NOT_RECORDED
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.reasons import REASONS
from pytest_distbench.records.run import CaseResult, Finding, RunRecord
from pytest_distbench.records.summaries import grouped
from pytest_distbench.records.wanted import ELASTIC_BASELINE_LAUNCHES
from pytest_distbench.releases import own_version
from pytest_distbench.report import Line, layout, lines_of
from pytest_distbench.report.screens import (
    about,
    counts,
    inconclusive,
    next_steps,
    on_one_screen,
    rows,
)
from pytest_distbench.report.verdicts import case_table, control_table, telling_verdicts
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.units import counted, format_change, plural, quantity

_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?")
_SHOWN_NAMES = 10


class Awaited(NamedTuple):
    """How long a test will take, as far as anybody knows."""

    seconds: float | None
    """None: nothing is known."""
    is_elsewhere: bool = False
    """It is known from another class of machines alone."""
    again_s: float = 0.0
    """What confirming it took, the mean of its last runs."""
    has_baseline: bool = False
    """So it may have to be confirmed this time."""


def awaited(
    store: BaselineStore,
    ran: Mapping[str, Sequence[float]],
    *,
    name: str,
    confirming: str,
    test: str,
    case_id: str,
    conditions: tuple[str, str],
    launches: int | None = 1,
) -> Awaited:
    """What is known of a test: by its last runs here, by its baseline here, or by one of another class of machines.

    Args:
        name: of its runs, which a renamed test has not, and ``confirming`` of what confirming it took.
        conditions: backend and launcher.
        launches: of each of its cases; None: as many as an update needs.
    """

    def of_baseline(store: BaselineStore) -> float | None:
        found = store.entries(test, test_ids=[case_id]).values()
        entries = [e for e in found if (e.conditions.backend, e.conditions.launcher) == conditions]
        stored = max((len(metric) for entry in entries for metric in entry.metrics.values()), default=1)
        return sum(entry.launch_s or 0.0 for entry in entries) * (stored if launches is None else launches) or None

    here = of_baseline(store)
    seconds = statistics.median(ran[name]) if ran.get(name) else here
    again_s = statistics.fmean(ran[confirming]) if ran.get(confirming) else 0.0
    if seconds is not None:
        return Awaited(seconds, again_s=again_s, has_baseline=here is not None)
    others = (of_baseline(BaselineStore(store.folder, other)) for other in store.platforms() if other != store.platform)
    elsewhere = next((found for found in others if found is not None), None)
    return Awaited(elsewhere, is_elsewhere=elsewhere is not None, again_s=again_s)


def duration_text(tests: Sequence[Awaited], *, slow: Sequence[Awaited] = (), confirm_s: float = 0.0) -> str:
    """How long the tests take; ``confirm_s`` is the most that confirming suspicious ones adds, 0: nothing is.

    Those of which nothing is known take as long as the others.
    """
    told = []
    unknown, seconds = sum(test.seconds is None for test in tests), _total(tests)
    if seconds is not None:
        told = [f"{counted(len(tests), 'test')}, about {about(seconds)}"]
        if confirm_s and any(test.has_baseline for test in tests):
            told[0] += f", and up to {about(confirm_s)} to confirm suspicious timings"
        if any(test.is_elsewhere for test in tests):
            told[0] += ", as on other machines"
        if unknown:
            told[0] += f"; {unknown} of them never timed, and taken for as long as the others"
    elif unknown:
        told = [f"{counted(len(tests), 'test')}; the first run shows how long that takes"]
    if slow:
        told.append(slow_text(len(slow), None if any(test.seconds is None for test in slow) else _total(slow)))
    return "; ".join(told)


def _total(tests: Sequence[Awaited]) -> float | None:
    known = [test.seconds for test in tests if test.seconds is not None]
    unknown = len(tests) - len(known)
    again_s = sum(test.again_s for test in tests)
    return sum(known) + unknown * statistics.median(known) + again_s if known else None


def slow_text(tests: int, seconds: float | None = None) -> str:
    takes = f" in about {about(seconds)}" if seconds is not None else ""
    return f"{counted(tests, 'slow test')} deselected (--distbench-full runs them{takes})"


def header_lines(
    environment: Environment,
    store: BaselineStore,
    *,
    world_sizes: Sequence[int],
    gpus: Gpus,
    backend: str,
    launcher: str,
    update: str,
    against: str,
    control: str = "",
    duration: str = "",
) -> list[str]:
    """Two lines; one more in an update, where GPUs are missing that the machine has, and where the host is shared.

    No GPU is visible to a CPU run; ``update``, ``against``, ``control`` and ``duration`` may be empty.
    """
    sizes = ", ".join(map(str, world_sizes))
    count = len(gpus.visible)
    devices = counted(count, "GPU") if count else f"{environment.cores} CPU cores"
    torch = environment.software["torch"]
    where = f"{backend}, {devices} ({environment.device}), torch {torch}, {launcher} launcher"
    first = f"distbench {own_version()}: world size {sizes}, {where}"
    missing = [f"distbench: not used: {reason}" for reason in gpus.unreadable]
    missing += [f"distbench: note: {remark}" for remark in gpus.remarks]
    if environment.shares_host:
        missing.append("distbench: note: the host is shared (--distbench-share=host): CPU clocks are others' too")
    stored = sum(1 for _ in store.files())
    compared = f"baselines {store.folder / store.platform} ({counted(stored, 'case')})"
    if not stored:
        compared = f"no baselines for this platform yet ({store.folder / store.platform})"
    if against:
        compared = f"interleaved A/B against {against}; stored baselines are not used"
    if control:
        compared += f"; a slowdown is injected into every case ({control}): nothing is judged or stored"
    lines = [first, *missing, f"distbench: {compared}"]
    if duration:
        lines.append(f"distbench: {duration}")
    if update:
        lines.append(f"distbench: update={update}; baselines will be written")
    return lines


def summary_lines(
    results: Sequence[CaseResult],
    remarks: Sequence[Finding],
    *,
    verbosity: int,
    commands: Mapping[str, str],
    folder: Path,
    took_s: float | None = None,
) -> list[Line]:
    """What a run has found: on one screen unless -v asks for all of it. The sentence that ends it is apart."""
    compared = [r for r in results if r.update in ("", "completed") and r.verdicts]
    updated = [r for r in results if r.update]
    lines: list[Line] = []
    if verbosity > 0:
        for result in results:
            under, launches = result.case.conditions, counted(len(result.launches), "launch")
            how = f"{counted(under.world_size, 'rank')}, {under.backend}, {under.launcher} launcher, {launches}"
            lines += [Line(f"{result.case.title}  {how}"), *case_table(result, show_all=True), Line("")]
    elif verbosity == 0 and compared and not any(r.control for r in results):
        lines += rows(compared)
    undecided, told = inconclusive(compared) if verbosity == 0 else ([], [])
    if results:
        lines += [*counts(results, took_s=took_s), *undecided]
    lines += lines_of(r for r in remarks if r.code == "learning" or (r.code == "learning-known" and verbosity > 0))
    lines += _told(compared, lambda v: v.row.is_told and v not in told, by_text=verbosity > 0)
    besides = [r for r in updated if r.update != "completed"]
    lines += _told(besides, lambda v: v.is_undecided and METRIC_KINDS[v.better].is_of_training, by_text=verbosity > 0)
    lines += run_lines(results, remarks)
    found = {verdict.code for result in compared for verdict in result.verdicts if verdict.is_judged}
    asked = [code for code, row in REASONS.items() if code in found and (row.fails or row.is_told)]
    lines += [Line(f"what that means:  distbench explain {' '.join(asked)}")] if asked else []
    steps = next_steps(compared, commands)
    shown = on_one_screen(lines, steps) if verbosity == 0 else [*lines, *steps]
    advisory = [Line(f"A {r.case.title}: {r.headline}", "doubt") for r in results if r.outcome == "advisory"]
    traces = [line for result in results for line in trace_lines(result)]  # whose paths are copied
    return [*shown, *traces, *updated_lines(results, folder), *advisory]


def run_lines(results: Sequence[CaseResult], remarks: Sequence[Finding]) -> list[Line]:
    """What is said of a run as a whole, and of no case of it."""
    return [*control_table(results), *lines_of(r for r in remarks if r.code not in ("learning", "learning-known"))]


def ending_lines(record: RunRecord) -> list[Line]:
    """What is to be known of a run before anything that it measured: why that may not be all."""
    lines = []
    if record.was_interrupted:
        lines.append("pytest was interrupted: what would have come later is not here")
    if record.failed_besides:
        number = record.failed_besides
        lines.append(
            f"{number} {plural(number, 'test')} or {plural(number, 'module')} failed besides, of which nothing was "
            "measured: see what pytest printed"
        )
    if not record.results and not lines:
        lines.append("nothing was measured")
    return [Line(text, "failure") for text in lines]


def unused_lines(unused: Sequence[EntryName], *, pruned: bool) -> list[Line]:
    if not unused:
        return []
    count = f"{len(unused)} {'baseline was' if len(unused) == 1 else 'baselines were'} not used"
    shown = unused if pruned else unused[:_SHOWN_NAMES]
    more = [f"  and {len(unused) - len(shown)} more"] if len(shown) < len(unused) else []
    first = f"{count}{', and deleted' if pruned else '; --distbench-prune deletes them'}:"
    return [Line(text, "doubt") for text in (first, *(f"  {n}" for n in shown), *more)]


def interrupted_lines(results: Sequence[CaseResult], *, running: int, left: int, command: str) -> list[Line]:
    """What an update that was interrupted has stored, and how it is continued; without a command nothing does.

    Several tests may be running under pytest-xdist; those that are left are told as far as they had been collected.
    """
    stored = sum(result.is_written for result in results)
    told = f"interrupted: {counted(stored, 'case')} {'is' if stored == 1 else 'are'} stored"
    if running:
        told += f", and nothing of the {plural(running, 'test')} that {_were(running)} running"
    elif not results:
        told = "interrupted before the first test: nothing is stored"
    told += f"; {left} {_were(left)} to follow" if left else ""
    then = f"continue with:  {command}" if command else "the same command measures all of them again"
    return [Line(told, "doubt"), Line(then, "doubt")] if command or running or results else [Line(told, "doubt")]


def trace_lines(result: CaseResult) -> list[Line]:
    if (trace := result.trace) is None:
        return []
    name = result.case.title
    lines = [Line(f"trace of {name}: {trace.path}")] if trace.path else []
    missing = "not whole" if trace.path else "none"
    return [*lines, Line(f"? trace of {name}: {missing}: {trace.why_not}", "doubt")] if trace.why_not else lines


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _told(results: Sequence[CaseResult], is_asked: Callable[[Finding], bool], *, by_text: bool) -> list[Line]:
    """What was not judged and why: a line per reason, or per text of it, numbers aside, however many cases it is of."""
    asked = [
        (result, verdict)
        for result in results
        for verdict in result.verdicts
        if is_asked(verdict) or (verdict.kind == "new" and result.reference.kind == "paired")
        if NOT_RECORDED not in verdict.reason
    ]
    lines = []
    for found in grouped(((v.code, _NUMBER.sub("", v.reason) if by_text else ""), (r, v)) for r, v in asked).values():
        result, verdict = found[0]
        cases = len({id(other) for other, _ in found})
        more = f" and {len(found) - 1} more{f' of {cases} cases' if cases > 1 else ''}" if len(found) > 1 else ""
        row = verdict.row
        lines.append(
            Line(f"{row.mark} {result.case.title} {metric_text(verdict)}{more}: {verdict.reason}", row.severity)
        )
    return lines


def updated_lines(results: Sequence[CaseResult], folder: Path) -> list[Line]:
    """What an update made of the baselines; nothing where the run was none."""
    results = [r for r in results if r.update]
    if not results:
        return []
    counts = Counter(r.update for r in results)
    platform = results[0].environment.platform
    written = f"{counts['changed']} changed, {counts['new']} new, {counts['kept']} kept"
    rare = (("completed", counts["completed"]), ("rewritten", counts["rewritten"]), ("moved", counts["moved"]))
    written += "".join(f", {number} {words}" for words, number in (*rare, ("not stored", counts["refused"])) if number)
    lines = [Line(f"baselines in {folder / platform}: {written}")]
    rows = []
    stored = [r for r in results if r.is_written]
    for result in stored:
        name = result.case.title
        for verdict in filter(_written(result).__contains__, telling_verdicts(result)):
            old = result.previous.get(verdict.metric)
            if old is not None and old == verdict.current:
                continue
            note = "regression accepted" if verdict.is_failure else ""
            if old is None:
                note = "changed" if verdict.code == "communication" else "new"
            metric = metric_text(verdict)
            rows.append(
                (
                    name,
                    metric,
                    quantity(old, verdict.unit),
                    "->",
                    quantity(verdict.current, verdict.unit),
                    format_change(verdict.current / old) if old and verdict.current is not None else "",
                    note,
                )
            )
            name = ""
    if rows:
        lines += [
            Line(f"  {line}") for line in layout(("test", "metric", "old", "", "new", "change", ""), rows, left=2)
        ]
    few = [r for r in stored if _has_few_launches(r) and any(v.is_noisy for v in _written(r))]
    if few:
        lines.append(
            Line(
                f"? {counted(len(few), 'case')} stored with fewer than {FEWEST_LAUNCHES} launches: "
                "their noise is not known, later runs can hardly judge against them",
                "doubt",
            )
        )
    lines += map(Line, sensitivity_lines([(r.case.title, r.recorded) for r in stored if r.recorded is not None]))
    return [*lines, Line(f"review with: distbench baseline diff --baselines {folder}")]


def _written(result: CaseResult) -> list[Finding]:
    return [v for v in result.verdicts if result.update != "completed" or v.metric in result.previous]


def _has_few_launches(result: CaseResult) -> bool:
    """Whether fewer were made than an update makes where nobody says how many."""
    is_elastic = bool(result.case.conditions.engine)
    return len(result.launches) < (ELASTIC_BASELINE_LAUNCHES if is_elastic else FEWEST_LAUNCHES)

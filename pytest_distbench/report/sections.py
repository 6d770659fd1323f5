"""What a run has to tell, as tables: a new table is one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_distbench.judging.links import Link
from pytest_distbench.judging.structure import UNITS
from pytest_distbench.records.bound import tightest
from pytest_distbench.records.gpu import GpuHost
from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.accuracy import accuracy_section
from pytest_distbench.report.buckets import bucket_points
from pytest_distbench.report.collectives import CollectiveRow, collective_rows, footer
from pytest_distbench.report.cycle import cycle_section
from pytest_distbench.report.elastic import epoch_section, event_section, job_section, rate_section, worker_section
from pytest_distbench.report.growth import growth_rows, growth_text
from pytest_distbench.report.links import link_points
from pytest_distbench.report.pool import pool_section, serving_section
from pytest_distbench.report.rows import make_row, name_in_file, words_for
from pytest_distbench.report.section import Cell, Section, plain
from pytest_distbench.store.rows import Column
from pytest_distbench.units import format_bytes, format_seconds


def verdict_section(results: Sequence[CaseResult]) -> Section:
    """Every judged metric, the gravest verdicts first."""
    order = list(VERDICT_KINDS)
    judged = [(result, v) for result in results for v in result.verdicts if v.is_judged]
    rows = []
    for result, verdict in sorted(judged, key=lambda pair: order.index(pair[1].kind)):
        row = make_row(verdict)
        rows.append(
            [
                plain(verdict.kind),
                Cell(result.nodeid, name_in_file(result.nodeid)),
                Cell(verdict.metric, row.metric),
                plain(verdict.unit),
                Cell(verdict.current, row.current),
                Cell(verdict.baseline, row.reference),
                Cell(verdict.ratio, row.change),
                Cell(verdict.limit, row.limit),
                Cell(tightest(verdict.bounds, "least"), ""),
                Cell(tightest(verdict.bounds, "most"), ""),
                Cell(verdict.launches, str(verdict.launches)),
                plain(verdict.reason),
            ]
        )
    columns: dict[str, Column] = {
        "verdict": str, "test": str, "metric": str, "unit": str, "current": float, "baseline": float, "ratio": float,
        "limit": float, "at_least": float, "at_most": float, "launches": int, "reason": str,
    }  # fmt: skip
    other = words_for(results[0]).name if results else ""
    headings = ["verdict", "test", "metric", None, "this run", other, "change", "limit", None, None, "n", None]
    return Section(columns=columns, headings=headings, rows=rows)


def collective_section(results: Sequence[CaseResult]) -> Section:
    """Every message of every sweep as nccl-tests prints it, with its two last lines.

    People see no columns of what no row has: of one placement, where all calls had the other.
    """
    rows = collective_rows(results)
    columns: dict[str, Column] = {
        "test": str, "collective": str, "backend": str, "mode": str, "how": str, "world_size": int,
        "message_bytes": int, "count": int, "type": str, "redop": str, "root": str,
    }  # fmt: skip
    headings: list[str | None] = [
        None, "collective", "backend", "mode", None, "ranks", "size(B)", "count", "type", "redop", "root",
    ]  # fmt: skip
    for side, in_place in (("out_of_place", False), ("in_place", True)):
        columns |= {
            f"{side}_time_s": float, f"{side}_algbw_gb_per_s": float, f"{side}_busbw_gb_per_s": float,
            f"{side}_busbw_share": float, f"{side}_wrong_elements": float,
        }  # fmt: skip
        points = [point for row in rows if (point := row.sides.get(in_place)) is not None]
        share = "of peak" if any(point.busbw_share is not None for point in points) else None
        shown = [f"{side.replace('_', '-')} time(us)", "algbw(GB/s)", "busbw(GB/s)", share, "#wrong"]
        headings += shown if points else [None] * len(shown)
    columns |= {"verdict": str, "note": str}
    return Section(
        columns=columns,
        headings=[*headings, "verdict", "note" if any(row.note for row in rows) else None],
        rows=[_collective_cells(row) for row in rows],
        footer=footer(rows) if rows else (),
    )


def _collective_cells(row: CollectiveRow) -> list[Cell]:
    kind = row.kind
    cells = [
        plain(kind.test),
        plain(kind.collective),
        plain(kind.backend),
        Cell(kind.mode, f"{kind.mode} {kind.how}".rstrip()),
        plain(kind.how),
        Cell(kind.world_size, str(kind.world_size)),
        Cell(row.message_bytes, _number(row.message_bytes)),
        Cell(row.count, _number(row.count)),
        *map(plain, (kind.dtype, kind.redop, kind.root)),
    ]
    for in_place in (False, True):
        point = row.sides.get(in_place)
        if point is None:
            cells += [Cell(None, "")] * 5
            continue
        cells += [
            Cell(point.time_s, f"{point.time_s * 1e6:.2f}"),
            Cell(point.algbw, f"{point.algbw:.3f}"),
            Cell(point.busbw, "-" if point.busbw is None else f"{point.busbw:.3f}"),
            Cell(point.busbw_share, "-" if point.busbw_share is None else f"{point.busbw_share:.1%}"),
            Cell(point.wrong_elements, "N/A" if point.wrong_elements is None else f"{point.wrong_elements:.0f}"),
        ]
    return [*cells, plain(row.verdict), plain(row.note)]


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def bucket_section(results: Sequence[CaseResult]) -> Section:
    """Every bucket sweep: time against the number of tensors."""
    rows = [
        [
            Cell(result.nodeid, result.case.title),
            plain(point.calls),
            Cell(point.tensors, str(point.tensors)),
            Cell(point.message_bytes, format_bytes(point.message_bytes)),
            Cell(point.time_s, f"{point.time_s * 1e6:.1f}"),
            Cell(point.share, "-" if point.share is None else f"{point.share:.2f}"),
            Cell(point.algbw, f"{point.algbw:.3f}"),
            plain(point.kind),
        ]
        for result in results
        for point in bucket_points(result)
    ]
    columns: dict[str, Column] = {
        "test": str, "calls": str, "tensors": int, "message_bytes": int, "time_s": float, "times_fewest_tensors": float,
        "algbw_gb_per_s": float, "verdict": str,
    }  # fmt: skip
    headings = ["test", "calls", "tensors", "size", "time us", "x fewest", "algbw GB/s", "verdict"]
    return Section(columns=columns, headings=headings, rows=rows)


def link_section(results: Sequence[CaseResult]) -> Section:
    """Every link between two ranks, with who is slow among them."""
    rows = [
        [
            Cell(result.nodeid, result.case.title),
            Cell(point.link.source, str(point.link.source)),
            Cell(point.link.target, str(point.link.target)),
            Cell(point.latency_s, "-" if point.latency_s is None else f"{point.latency_s * 1e6:.1f}"),
            Cell(point.bandwidth, "-" if point.bandwidth is None else f"{point.bandwidth:.3f}"),
            Cell(point.share, "-" if point.share is None else f"{point.share:.2f}"),
            plain(point.note),
            plain(point.gravest),
        ]
        for result in results
        for point in link_points(result)
    ]
    columns: dict[str, Column] = {
        "test": str, "from": int, "to": int, "latency_s": float, "bandwidth_gb_per_s": float, "times_typical": float,
        "slow": str, "verdict": str,
    }  # fmt: skip
    headings = ["test", "from", "to", "latency us", "bandwidth GB/s", "x typical", "slow", "verdict"]
    return Section(columns=columns, headings=headings, rows=rows)


def link_matrix_section(results: Sequence[CaseResult]) -> Section:
    """The same as matrices: a row for each rank that a link leads from, a column for each that it leads to."""
    points = [(result, list(link_points(result))) for result in results]
    ranks = 1 + max((max(point.link) for _, found in points for point in found), default=-1)
    rows = []
    for result, found in points:
        for metric, unit, scale in (("latency_s", "latency us", 1e6), ("bandwidth", "bandwidth GB/s", 1.0)):
            known = {point.link: value for point in found if (value := getattr(point, metric)) is not None}
            for source in sorted({link.source for link in known}):
                values = [known.get(Link(source, target)) for target in range(ranks)]
                cells = [Cell(v, "-" if v is None else f"{v * scale:.4g}") for v in values]
                head = Cell(result.nodeid, result.case.title), Cell(metric, unit), Cell(source, str(source))
                rows.append([*head, *cells])
    columns: dict[str, Column] = {"test": str, "metric": str, "from": int}
    columns |= {f"to_{rank}": float for rank in range(ranks)}
    return Section(columns=columns, headings=["test", "", "from", *(f"to {rank}" for rank in range(ranks))], rows=rows)


def environment_section(results: Sequence[CaseResult]) -> Section:
    """What the cases ran on; more than one value where they differ."""
    found: dict[str, None] = {}
    rows: dict[tuple[str, str], None] = {}
    for environment in (result.environment for result in results):
        facts = {
            "platform": environment.platform,
            "device": environment.device,
            "cores": str(environment.cores),
            **({"host": "shared with other runs"} if environment.shares_host else {}),
            **environment.software,
            **environment.variables,
            **(_gpu_facts(environment.gpu_host) if environment.gpu_host is not None else {}),
        }
        rows |= dict.fromkeys(facts.items())
        found |= dict.fromkeys(facts)
    ordered = sorted(rows, key=lambda fact: list(found).index(fact[0]))
    return Section(
        columns={"name": str, "value": str},
        headings=["name", "value"],
        rows=[[plain(name), plain(value)] for name, value in ordered],
    )


def _gpu_facts(host: GpuHost) -> dict[str, str]:
    facts = {"host CPU": host.cpu, "newest CUDA of the driver": host.cuda}
    for rank, gpu in enumerate(host.gpus):
        limit = "" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W"
        switches = {"ECC": gpu.ecc, "persistence": gpu.persistence}
        told = [f"{name} {'on' if is_on else 'off'}" for name, is_on in switches.items() if is_on is not None]
        memory = "" if gpu.memory_bytes is None else format_bytes(gpu.memory_bytes)
        pcie = f"PCIe {gpu.pcie}" if gpu.pcie else ""
        facts[gpu.label] = ", ".join(filter(None, [gpu.name, memory, limit, pcie, *told, gpu.uuid]))
        if host.links:
            joined = (f"{host.gpus[other].label} {link}" for other, link in enumerate(host.links[rank]) if link)
            facts[f"links of {gpu.label}"] = ", ".join(joined)
    facts |= {"not used": "; ".join(host.unreadable)} if host.unreadable else {}
    return facts


def launch_section(results: Sequence[CaseResult]) -> Section:
    """Every process group that was started: how it ended, how long it took, what it used."""
    rows = [
        [
            Cell(result.nodeid, result.case.title),
            Cell(launch.index, str(launch.index + 1)),
            plain(launch.outcome),
            Cell(launch.wall_s, format_seconds(launch.wall_s)),
            Cell(launch.peak_memory_bytes, format_bytes(launch.peak_memory_bytes) if launch.peak_memory_bytes else "-"),
            Cell(launch.foreign_cores, "-" if launch.foreign_cores is None else f"{launch.foreign_cores:.2f}"),
            Cell(launch.reason, (launch.reason.splitlines() or [""])[0]),
        ]
        for result in results
        for launch in result.launches
    ]
    columns: dict[str, Column] = {
        "test": str, "launch": int, "outcome": str, "wall_s": float, "peak_memory_bytes": int, "foreign_cores": float,
        "reason": str,
    }  # fmt: skip
    headings = ["test", "launch", "outcome", "time", "memory", "cores of others", "reason"]
    return Section(columns=columns, headings=headings, rows=rows)


def growth_section(results: Sequence[CaseResult]) -> Section:
    """What an iteration sends and a rank holds, by world size, with the factor to the smallest."""
    found = growth_rows(results)
    rows = [
        [
            plain(row[0]),
            plain(row[1]),
            Cell(row[2], str(row[2])),
            *(Cell(getattr(row[3], name), growth_text(name, row, found)) for name in UNITS),
        ]
        for row in found
    ]
    columns: dict[str, Column] = {"test": str, "of": str, "world_size": int, **dict.fromkeys(UNITS, int)}
    headings = ["test", "of", "ranks", "collectives", "sent", "parameters", "optimizer state"]
    return Section(columns=columns, headings=headings, rows=rows)


SECTIONS: dict[str, Callable[[Sequence[CaseResult]], Section]] = {
    "verdicts": verdict_section,
    "collectives": collective_section,
    "growth": growth_section,
    "buckets": bucket_section,
    "links": link_section,
    "link_matrix": link_matrix_section,
    "environment": environment_section,
    "launches": launch_section,
    "elastic": job_section,
    "cycle": cycle_section,
    "epochs": epoch_section,
    "events": event_section,
    "workers": worker_section,
    "learning_rate": rate_section,
    "accuracy": accuracy_section,
    "pool": pool_section,
    "serving": serving_section,
}
"""By the name that ``--table`` takes."""

NEEDED = {
    "growth": "tests that ran at several world sizes",
    "accuracy": "two runs of a test that record accuracy at each epoch",
}
"""What a table is made of, where its name does not say it."""


def sections_of(record: RunRecord) -> dict[str, Section]:
    """The tables that a run has: those with a row."""
    made = {name: make(record.results) for name, make in SECTIONS.items()}
    return {name: section for name, section in made.items() if section.rows}

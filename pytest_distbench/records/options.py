"""The options of pytest, a row each: name, meaning, default, how it is read, and what it cannot go with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pytest_distbench.records.wanted import (
    CONFIRM_BUDGET_S,
    CONFIRMS,
    DEFAULT_TOLERANCE,
    FRACTION,
    LONGEST_TIMEOUT_S,
    MOST_LAUNCHES,
    MOST_TOLERANCE,
    NO_BASELINE,
    PAIRED_TOLERANCE,
    TRACED_CASES,
    UPDATES,
    Wanted,
    number,
    one_of,
    whole,
)
from pytest_distbench.units import as_share, parse_bytes

FAKE = "fake"
"""The backend that moves no data: one process stands for a rank of a group of any size; structure alone is judged."""

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", FAKE)
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")
"""What torchrun's ``--numa-binding`` takes."""

BY_TOLERANCE = "tolerance"
"""Given to --distbench-control: what is planted follows from the tolerance of each case."""

_MOST_DIGITS = 9
_BACKEND = re.compile(rf"({'|'.join(BACKENDS)})(?:(?<={FAKE}):(-?[0-9]{{1,{_MOST_DIGITS}}}))?")


def _int(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _world_sizes(text: Any) -> tuple[int, ...] | None:
    """Ascending, each once."""
    sizes = {_int(part.strip()) or 0 for part in text.split(",")}
    return None if 0 in sizes else tuple(sorted(size for size in sizes if size))


def _backends(text: Any) -> dict[str, int] | None:
    """Each once, in the order given, with the rank that the process of the fake one stands for."""
    parts = [_BACKEND.fullmatch(part.strip()) for part in text.split(",")]
    named = [(part[1], int(part[2] or 0)) for part in parts if part]
    return dict(named) if all(parts) and len(dict(named)) == len(set(named)) else None


def _launches(text: Any) -> tuple[int | None, int | None] | None:
    """Those judged first, and the most of a case; None for what is not said."""
    found = re.fullmatch(r"([0-9]{1,4})?(?::([0-9]{1,4}))?", text)
    first, most = (int(part) if part else None for part in found.groups()) if found else (None, None)
    given = [number for number in (first, most) if number is not None]
    return (first, most) if given == sorted(given) and given and given[0] >= 1 and given[-1] <= MOST_LAUNCHES else None


def _confirm(text: Any) -> tuple[str, float] | None:
    mode, separator, seconds = (part.strip() for part in text.partition(":"))
    budget = number(least=0, most=LONGEST_TIMEOUT_S, read=_float).take(seconds) if separator else CONFIRM_BUDGET_S
    return (mode, budget) if mode in CONFIRMS and budget is not None and not (separator and mode == "off") else None


def _share(text: Any) -> float | str | None:
    share = text if text == BY_TOLERANCE else as_share(text)
    return share if share == BY_TOLERANCE or (share is not None and 0 < share <= MOST_TOLERANCE) else None


def _network(text: Any) -> Any:
    from pytest_distbench.records.network import parse_network  # late: it needs msgspec

    return parse_network(text)


_MOST = 10**_MOST_DIGITS
_TEXT: Wanted[str] = Wanted("text", str)


class Option(NamedTuple):
    """One option, ``--distbench-NAME``, with its ini key ``distbench_NAME``, or one of them alone.

    Attributes:
        metavar: what stands for its value in the help; empty: it is a flag.
        const: the value of the option alone, where that may be left out.
        default: its value where nobody gives one; the help tells it unless the summary does.
        wanted: what its text has to be, and how it is read.
        needs: the options without which it means nothing, and why; ``backend=fake`` is one with that value.
        excludes: the options that it cannot go with, and why.
        is_list: in the ini file it is a list of words.
        is_repeated: in the commands that are printed, to run a test again or to record it.
    """

    summary: str
    metavar: str = ""
    const: str = ""
    default: Any = None
    wanted: Wanted[Any] = _TEXT
    needs: Mapping[str, str] = MappingProxyType({})
    excludes: Mapping[str, str] = MappingProxyType({})
    has_option: bool = True
    has_ini_key: bool = True
    is_list: bool = False
    is_repeated: bool = True

    @property
    def help(self) -> str:
        return f"{self.summary} (default: {self.default:g})" if isinstance(self.default, float) else self.summary


NOTHING = "-"
"""Given to --distbench-against and distbench_against_python: compare with nothing, whatever ``addopts`` says.
An empty text is an error: it is what a variable that is not set leaves of an option."""

_NOT_AGAINST = {
    "update": "baselines are neither read nor written",
    "prune": "no stored entry is used, so none is unused",
    "share=gpu": "nothing is judged then",
    f"backend={FAKE}": "that has no clocks to compare in turns: run it in both trees, and give the two run records to "
    "distbench compare",
}

OPTIONS: dict[str, Option] = {
    "world-size": Option(
        metavar="N[,N...]",
        wanted=Wanted("a number of ranks, or several: 4, or 2,4,8", _world_sizes),
        summary="size of the process groups: one number is the most ranks at hand, a list runs exactly those "
        "(default: 2; with --gpu the visible GPUs)",
    ),
    "gpu": Option(summary="CUDA is required: nccl, one GPU per rank; too few GPUs is an error"),
    "update": Option(
        metavar="MODE",
        const="changed",
        wanted=one_of(UPDATES),
        summary="measure, write baselines and pass: new, failed, changed (default) or all; never deletes one",
        excludes={"share=gpu": "what ranks measure that share a GPU could be no baseline"},
        is_repeated=False,
    ),
    "prune": Option(
        summary="delete the stored entries that no test used; only after a run of whole files in which nothing failed",
        has_ini_key=False,
        is_repeated=False,
    ),
    "share": Option(
        metavar="WHAT",
        wanted=one_of(("gpu", "host", "gpu,host")),
        summary="with --gpu: gpu lets several ranks run on one GPU, to test the plumbing, and nothing is judged or "
        "stored; host lets other runs that say so too measure at the same time, each alone on its GPUs",
        needs={"gpu": "it shares GPUs, or the host between runs on different GPUs"},
    ),
    "full": Option(summary="run the tests marked full, too: the slow ones, which are deselected without it"),
    "backend": Option(
        metavar="NAME[,NAME...]",
        summary=f"process-group backend: {', '.join(BACKENDS)} (default: nccl with --gpu, else gloo); of several, "
        "every test runs with each, and those this torch has not are skipped; fake, alone: one process for a group of "
        "any size; structure is judged, no clocks and values; fake:63 stands for rank 63, fake:-1 for the last",
        wanted=Wanted(
            f"one or more of {', '.join(BACKENDS)}; fake:RANK names the rank that its process stands for, as in "
            "fake:63, or fake:-1 for the last",
            _backends,
        ),
    ),
    "launcher": Option(
        metavar="NAME",
        summary="how ranks are started: warm, from a process that has torch loaded (default); torchrun, the "
        "command line tool; slurm, on the nodes of an allocation; one that a conftest or plugin has added; or a "
        "command that starts {command} once on each of {nodes} hosts, by mpirun, srun, ssh, flux or a script of yours, "
        "or a torchrun there, with {torchrun} for {command}",
    ),
    "network": Option(
        metavar="NETWORK",
        summary="network between the ranks, made of namespaces of this host: 1gbit, or 100mbit,delay=5ms with "
        "loss=, overlay and hosts= as needed; or label=NAME of the one that is there",
        wanted=Wanted("a network", _network),
    ),
    "launches": Option(
        metavar="N[:MAX]",
        summary="launches of each case judged first, and the most made while its answer is open (default: 1:10; of "
        "pairs 5:28); an update makes N, or without one or with another MAX as many as its noise needs; :MAX leaves N",
        default=(None, None),
        wanted=Wanted(f"N, N:MAX or :MAX, such as 5 or 5:20, from 1 to {MOST_LAUNCHES} and N at most MAX", _launches),
    ),
    "timeout": Option(
        metavar="S",
        summary="seconds one launch may take, from when its ranks are up",
        default=300.0,
        wanted=number(least=0.1, most=LONGEST_TIMEOUT_S, read=_float),
    ),
    "baselines": Option(
        metavar="DIR",
        summary="folder of stored baselines (default: baselines/ beside the ini file)",
    ),
    "data": Option(
        metavar="DIR",
        summary="where full-size data sets lie, for tests that train on real data: a folder on a disk or a mount, or "
        "the URL of an object store, s3://bucket/prefix",
    ),
    "platform": Option(metavar="NAME", summary="hardware class of this machine, in place of the one found"),
    "no-baseline": Option(
        metavar="POLICY",
        summary="no baseline for a case: warn (default), fail or skip",
        default="warn",
        wanted=one_of(NO_BASELINE),
    ),
    "tolerance": Option(
        metavar="X",
        summary="change from the baseline towards worse that is accepted: 0.1 or 10 %",
        default=DEFAULT_TOLERANCE,
        wanted=FRACTION,
    ),
    "json": Option(
        metavar="FILE",
        summary="write the run record: environment, cases, launches, verdicts",
        is_repeated=False,
    ),
    "report": Option(
        metavar="FILE.html",
        summary="write the page of the run: one file for a browser, with verdicts, launches, charts and tables",
        is_repeated=False,
    ),
    "out": Option(
        metavar="DIR",
        summary="write into one folder: run.json and run.html (the two above), logs/ of all ranks, and traces/",
        is_repeated=False,
    ),
    "experiment": Option(
        metavar="FILE",
        summary="TOML file with what people write down of an experiment, for the run record and its table record",
        is_repeated=False,
    ),
    "max-message": Option(
        metavar="SIZE",
        summary="no larger messages are sent: sweeps leave them out; 4MiB, say",
        wanted=Wanted("a size", parse_bytes),
    ),
    "against": Option(
        metavar="REF",
        summary="compare with another revision of the repository, measured in turns, not with stored baselines",
        excludes=_NOT_AGAINST,
    ),
    "confirm": Option(
        metavar="MODE[:S]",
        summary="decide suspicious comparisons with stored baselines by interleaved A/B with the baseline commit: auto "
        "(default: if it is available), always (every case with timings), off; S: seconds of the run for it, the most "
        f"suspicious cases first (default: {CONFIRM_BUDGET_S:g})",
        default=("auto", CONFIRM_BUDGET_S),
        wanted=Wanted(
            f"one of {', '.join(CONFIRMS)}; auto:300 and always:300 give it 300 s, of at most {LONGEST_TIMEOUT_S:g}",
            _confirm,
        ),
    ),
    "control": Option(
        metavar="X",
        const=BY_TOLERANCE,
        summary="plant a slowdown in every case, and say whether this run would have found it; X: its share, as a "
        "fraction (default: a third more than the case's tolerance); nothing is judged or stored",
        wanted=Wanted(
            f"a number above 0 and at most {MOST_TOLERANCE:g}, such as 0.2 or 20%, by which timings are slowed down; "
            "or nothing, for a third more than each case's tolerance",
            _share,
        ),
        excludes={
            "update": "with a slowdown in it nothing is a baseline",
            "prune": "it judges nothing, so that no stored entry is known to be unused",
            "against": "it compares with this tree itself, without the slowdown",
            "against-python": "it compares with this tree itself, without the slowdown",
            "attach": "it needs clocks, and under a debugger they mean nothing",
            "share=gpu": "it needs clocks, and where ranks share a GPU they mean nothing",
            f"backend={FAKE}": "it needs clocks, and that has none",
        },
        has_ini_key=False,
        is_repeated=False,
    ),
    "trace": Option(
        metavar="CASES",
        const="regressed",
        summary="launch a case once more, with torch's profiler on, and keep a trace of all ranks, and of both sides "
        "where there are two, in one file: regressed (default), by a clock or a rate; all; below --distbench-out, "
        "else in .distbench/traces",
        wanted=one_of(TRACED_CASES),
        excludes={f"backend={FAKE}": "that moves no data and has no clocks"},
        is_repeated=False,
    ),
    "attach": Option(
        metavar="RANK",
        summary="give this rank the terminal, for breakpoint(); time-outs are off and nothing is judged",
        wanted=whole(0, _MOST, read=_int),
        excludes={"update": "nothing is measured then", f"backend={FAKE}": "none of its ranks can be attached to"},
        is_repeated=False,
    ),
    "strict": Option(summary="inconclusive verdicts, and those of low power, fail the test too"),
    "advisory": Option(summary="verdicts are shown, and fail no test: those that would have are listed at the end"),
    "fail-on-improvement": Option(summary="an improvement fails the test too: its baseline wants an update"),
    "against-python": Option(
        metavar="PATH",
        summary="compare with another Python, and so another torch; with --distbench-against: both; with "
        "--distbench-confirm: the Python of the revisions that recorded the baselines",
        excludes=_NOT_AGAINST,
        has_option=False,
    ),
    "against-tolerance": Option(
        metavar="X",
        summary="smallest slowdown that counts in such a comparison: 0.05 or 5 %",
        default=PAIRED_TOLERANCE,
        wanted=FRACTION,
        has_option=False,
    ),
    "against-link": Option(
        metavar="PATH[,PATH...]",
        summary="what git ignores and the tests need, such as data/: linked from the working tree into the other "
        "revision",
        has_option=False,
    ),
    "numa-binding": Option(
        metavar="MODE",
        summary="with --gpu: bind each rank to the CPUs near its GPU, as torchrun's --numa-binding does: "
        + ", ".join(NUMA_BINDINGS),
        wanted=one_of(NUMA_BINDINGS),
        needs={"gpu": "ranks are bound to the CPUs near their GPUs"},
        has_option=False,
    ),
    "addresses": Option(
        summary="keep IP addresses and host names in the run record; else what is stated of an experiment has none",
        is_repeated=False,
        has_option=False,
    ),
    "preload": Option(
        metavar="MODULE...",
        summary="modules that every rank imports: imported once, in the process that ranks are forked from",
        wanted=Wanted("names of modules", lambda text: tuple(shlex.split(text))),
        has_option=False,
        is_list=True,
    ),
    "short-options": Option(
        summary="false leaves --world-size, --gpu and the markers world_size, gpu, cpu, full and network to others; "
        "ours are then --distbench-world-size, --distbench-gpu and distbench_<marker>",
        default=True,
        has_option=False,
        is_repeated=False,
    ),
}
"""By name, in the order of the help."""

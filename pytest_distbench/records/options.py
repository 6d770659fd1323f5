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
"""Given to --distbench-control: the injected slowdown follows from the tolerance of each case."""

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
        summary: for ``pytest --help``, where an option has two lines of 80 characters.
        more: what the reference says beyond that.
        metavar: what stands for its value in the help; empty: it is a flag.
        const: the value of the option alone, where that may be left out.
        default: its value where nobody gives one; the help says it unless the summary does.
        wanted: what its text has to be, and how it is read.
        needs: the options without which it means nothing, and why; ``backend=fake`` is one with that value.
        excludes: the options that it cannot go with, and why.
        group: of ``pytest --help``; empty: it is an ini key alone.
        is_list: in the ini file it is a list of words.
        is_repeated: in the commands that are printed, to run a test again or to record it.
    """

    summary: str
    more: str = ""
    metavar: str = ""
    const: str = ""
    default: Any = None
    wanted: Wanted[Any] = _TEXT
    needs: Mapping[str, str] = MappingProxyType({})
    excludes: Mapping[str, str] = MappingProxyType({})
    group: str = ""
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
    "update": "an A/B neither reads nor writes baselines",
    "prune": "an A/B uses no baseline, so none is unused",
    "share=gpu": "nothing is judged if ranks share a GPU",
    f"backend={FAKE}": "that backend has no timings for an A/B: run it in both trees, and give the two run records to "
    "distbench compare",
}

BASIC, ADVANCED = "distbench", "distbench advanced"
"""The groups of ``pytest --help``."""

_BASIC: dict[str, Option] = {
    "world-size": Option(
        "ranks: N at most, or exactly N,M (default: 2, or GPUs)",
        "Of the sizes in a world_size marker those up to N; without a marker N.",
        metavar="N[,N...]",
        wanted=Wanted("a number of ranks, or several: 4, or 2,4,8", _world_sizes),
    ),
    "gpu": Option("run on GPUs, with nccl and one GPU per rank; too few GPUs is an error"),
    "full": Option("run the slow tests too, which are marked full"),
    "update": Option(
        "record baselines: new, failed, changed (default) or all",
        "Every case passes; no baseline is deleted.",
        metavar="MODE",
        const="changed",
        wanted=one_of(UPDATES),
        excludes={"share=gpu": "ranks that share a GPU record no baselines"},
        is_repeated=False,
    ),
    "no-baseline": Option(
        "a case without a baseline: warn (default), fail or skip",
        metavar="POLICY",
        default="warn",
        wanted=one_of(NO_BASELINE),
    ),
    "baselines": Option(
        "folder of the baselines (default: baselines/)", "It lies next to the ini file.", metavar="DIR"
    ),
    "against": Option(
        "compare with revision REF by interleaved A/B",
        "No baseline is read.",
        metavar="REF",
        excludes=_NOT_AGAINST,
    ),
    "confirm": Option(
        "A/B if suspicious: auto (default, 60 s), always or off",
        "auto: with the baseline commit, if available; always: every case with timings; S: seconds in all.",
        metavar="MODE[:S]",
        default=("auto", CONFIRM_BUDGET_S),
        wanted=Wanted(
            f"one of {', '.join(CONFIRMS)}, or auto:300 or always:300 for 300 s of it, at most {LONGEST_TIMEOUT_S:g}",
            _confirm,
        ),
    ),
    "tolerance": Option(
        "how much worse still passes, 0.1 or 10 %",
        "Markers and baseline files set it per metric.",
        metavar="X",
        default=DEFAULT_TOLERANCE,
        wanted=FRACTION,
    ),
    "launches": Option(
        "launches per case: first, and at most (default: 1:10)",
        "More than N are made while the answer is open. An A/B makes 5:28 pairs. An update makes N, or as many as the "
        "noise needs.",
        metavar="N[:MAX]",
        default=(None, None),
        wanted=Wanted(f"N, N:MAX or :MAX, such as 5 or 5:20, from 1 to {MOST_LAUNCHES} and N at most MAX", _launches),
    ),
    "timeout": Option(
        "seconds that one launch may take",
        metavar="S",
        default=300.0,
        wanted=number(least=0.1, most=LONGEST_TIMEOUT_S, read=_float),
    ),
    "strict": Option("inconclusive and low-power verdicts fail the test too"),
    "out": Option(
        "write run.json, run.html, logs/ and traces/ to a folder",
        metavar="DIR",
        is_repeated=False,
    ),
    "json": Option("write the run record", metavar="FILE", is_repeated=False),
    "report": Option("write the HTML report", metavar="FILE.html", is_repeated=False),
}
_ADVANCED: dict[str, Option] = {
    "launcher": Option(
        "warm (default), torchrun, slurm or a command template",
        "warm forks ranks from a process that has loaded torch. A template starts {command} once on each of {nodes} "
        "hosts, with mpirun, srun, ssh, flux or your own script; {torchrun} in its place starts a torchrun on each; "
        "{nodes:8} fills a host with 8 ranks.",
        metavar="NAME",
    ),
    "backend": Option(
        f"process groups: {', '.join(BACKENDS)}[:RANK]",
        "The default is nccl with --gpu, else gloo. With several, every test runs with each. fake: one process stands "
        "for one rank of a large group (fake:63, or fake:-1 for the last), and structure alone is judged.",
        metavar="NAME[,NAME...]",
        wanted=Wanted(
            f"one or more of {', '.join(BACKENDS)}; fake:RANK names the rank that its process stands for, as in "
            "fake:63, or fake:-1 for the last",
            _backends,
        ),
    ),
    "share": Option(
        "gpu: ranks share GPUs, unjudged; host: runs share a host",
        "With --gpu. Runs that give host measure at the same time, each on its own GPUs.",
        metavar="WHAT",
        wanted=one_of(("gpu", "host", "gpu,host")),
        needs={"gpu": "it shares GPUs, or the host between runs on different GPUs"},
    ),
    "network": Option(
        "network between the ranks, such as 1gbit,delay=5ms",
        "Emulated on this host, from a rate, delay=, loss=, overlay and hosts=; label=NAME names the network that is "
        "there.",
        metavar="NETWORK",
        wanted=Wanted("a network", _network),
    ),
    "platform": Option("name of this hardware, in place of the detected one", metavar="NAME"),
    "advisory": Option("verdicts fail no test; the end lists what would have"),
    "fail-on-improvement": Option("an improvement fails the test too"),
    "prune": Option(
        "delete baselines that no test used, after a complete green run", has_ini_key=False, is_repeated=False
    ),
    "control": Option(
        "inject a slowdown: would this run detect it?",
        "X is its share, as 0.2 or 20 % (default: a third more than the case's tolerance). Nothing is judged or "
        "recorded.",
        metavar="X",
        const=BY_TOLERANCE,
        wanted=Wanted(
            f"a number above 0 and at most {MOST_TOLERANCE:g}, such as 0.2 or 20%, by which timings are slowed down; "
            "or nothing, for a third more than each case's tolerance",
            _share,
        ),
        excludes={
            "update": "with a slowdown in it nothing is a baseline",
            "prune": "it judges nothing, so no baseline is known to be unused",
            "against": "it compares with the same code without the slowdown",
            "against-python": "it compares with the same code without the slowdown",
            "attach": "it needs timings, and a debugger makes them useless",
            "share=gpu": "it needs timings, and ranks that share a GPU make them useless",
            f"backend={FAKE}": "it needs timings, and that backend has none",
        },
        has_ini_key=False,
        is_repeated=False,
    ),
    "trace": Option(
        "profile regressed (default) or all cases once more",
        "All ranks in one file, in the folder of --distbench-out or in .distbench/traces.",
        metavar="CASES",
        const="regressed",
        wanted=one_of(TRACED_CASES),
        excludes={f"backend={FAKE}": "that backend moves no data and has no timings"},
        is_repeated=False,
    ),
    "attach": Option(
        "give this rank the terminal, for breakpoint()",
        "Nothing is judged.",
        metavar="RANK",
        wanted=whole(0, _MOST, read=_int),
        excludes={"update": "a debugged run measures nothing", f"backend={FAKE}": "it has no rank to attach to"},
        is_repeated=False,
    ),
    "data": Option(
        "folder or URL of full-size data sets",
        "An object store is s3://bucket/prefix.",
        metavar="DIR",
    ),
    "experiment": Option("TOML file that describes the experiment, for the record", metavar="FILE", is_repeated=False),
    "max-message": Option(
        "largest message that sweeps send, such as 4MiB", metavar="SIZE", wanted=Wanted("a size", parse_bytes)
    ),
}
_INI_ONLY: dict[str, Option] = {
    "against-python": Option(
        "compare with another Python, and so another torch",
        "A path or a command; with --distbench-confirm that of the baseline commit.",
        metavar="PATH",
        excludes=_NOT_AGAINST,
    ),
    "against-tolerance": Option(
        "smallest slowdown that fails an A/B", metavar="X", default=PAIRED_TOLERANCE, wanted=FRACTION
    ),
    "against-link": Option(
        "paths that the other revision needs and git ignores",
        "Such as data/; commas separate them.",
        metavar="PATH[,PATH...]",
    ),
    "numa-binding": Option(
        "with --gpu, bind ranks to the CPUs near their GPU",
        f"As torchrun's --numa-binding does: {', '.join(NUMA_BINDINGS)}.",
        metavar="MODE",
        wanted=one_of(NUMA_BINDINGS),
        needs={"gpu": "it binds ranks to the CPUs near their GPUs"},
    ),
    "addresses": Option("keep IP addresses and host names in the run record", is_repeated=False),
    "preload": Option(
        "modules to import once, before ranks are forked",
        metavar="MODULE...",
        wanted=Wanted("names of modules", lambda text: tuple(shlex.split(text))),
        is_list=True,
    ),
    "short-options": Option(
        "false: --world-size, --gpu and the markers are not ours",
        default=True,
        is_repeated=False,
    ),
}

_GROUPS = {BASIC: _BASIC, ADVANCED: _ADVANCED, "": _INI_ONLY}
OPTIONS = {name: row._replace(group=group) for group, rows in _GROUPS.items() for name, row in rows.items()}
"""By name, in the order of the help."""

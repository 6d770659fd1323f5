"""Options of pytest. Each is a field of :class:`Options`: its type, default, meaning, reading, and conflicts."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.extensions import Table
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

if TYPE_CHECKING:
    from pytest_distbench.records.wanted import Confirm, NoBaseline, TracedCases, Update

DEFAULT_LAUNCHER = "warm"

FAKE = "fake"
"""Backend that sends no data: one process stands for a rank of a group of any size; structure alone is judged."""

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", FAKE)
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")  # what torchrun's ``--numa-binding`` takes

BY_TOLERANCE = "tolerance"
"""Value of --distbench-control: the injected slowdown follows from the tolerance of each case."""

_MOST_DIGITS = 9
_BACKEND = re.compile(rf"({'|'.join(BACKENDS)})(?:(?<={FAKE}):-?[0-9]{{1,{_MOST_DIGITS}}})?")
_NO_TIMINGS = f"{FAKE} has no timings, and baselines of its own for every machine"


def _int(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _world_sizes(text: Any) -> tuple[int, ...] | None:
    sizes = {_int(part.strip()) or 0 for part in text.split(",")}
    return None if 0 in sizes else tuple(sorted(size for size in sizes if size))


def _backends(text: Any) -> tuple[str, ...] | None:
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    names = [name.partition(":")[0] for name in found]
    if not all(map(_BACKEND.fullmatch, found)) or len(set(names)) < len(names):
        return None
    if FAKE in names and len(names) > 1:
        others = ", ".join(name for name in names if name != FAKE)
        raise ConfigurationError(f"{_NO_TIMINGS}: give it without {others}")
    return tuple(found)


def _launches(text: Any) -> tuple[int | None, int | None] | None:
    """Read ``5``, ``5:10`` or ``:10``: launches of a case that are judged first, and its most; None if invalid."""
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


_MOST = 10**_MOST_DIGITS
_TEXT: Wanted[str] = Wanted("text", str)
_PATH: Wanted[Path] = Wanted("a path", Path)  # relative to the ini file, or to where the command line was typed

NOTHING = "-"
"""Value of --distbench-against and distbench_against_python: compare with nothing, whatever ``addopts`` says. Empty
text is an error instead: an unset variable leaves it."""

_UNLESS_NOTHING: Wanted[str] = Wanted("text", lambda text: "" if text == NOTHING else text)


class Option(NamedTuple):
    """One option, ``--distbench-NAME``, with its ini key ``distbench_NAME``, or one of the two alone.

    Attributes:
        name: name of the option as it is typed, without ``--distbench-``.
        field: name of its field in :class:`Options`; empty for an option of an extension, see :meth:`Options.of`.
        summary: text for ``pytest --help``, where an option has two lines of 80 characters.
        more: text that the documentation of all options adds.
        metavar: name of the value in the help; empty for a flag.
        const: value if the option is given without one, if it may be.
        default: value if the option is not given; the help says it unless the summary does.
        wanted: what the text of the value must be, and how it is read.
        needs: option without which it has no effect -> why; ``backend=fake`` is one with that value.
        excludes: option that it cannot be combined with -> why.
        group: heading in ``pytest --help``; empty for an ini key alone.
        is_list: whether the ini file has a list of words for it.
        is_repeated: whether printed commands that run or record a test again include it.
    """

    summary: str
    more: str = ""
    name: str = ""
    field: str = ""
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


def _option(group: str, summary: str, more: str = "", *, default: Any = None, metavar: str = "", **row: Any) -> Any:
    default = False if default is None and not metavar else default
    made = Option(summary, more, metavar=metavar, default=default, group=group, **row)
    return field(default=default, metadata={"row": made})


BASIC, ADVANCED = "distbench", "distbench advanced"  # the groups of ``pytest --help``

_basic, _advanced, _ini_only = (functools.partial(_option, group) for group in (BASIC, ADVANCED, ""))

_NOT_AGAINST = {
    "update": "an A/B neither reads nor writes baselines",
    "prune": "an A/B uses no baseline, so none is unused",
    "share=gpu": "nothing is judged if ranks share a GPU",
    f"backend={FAKE}": "that backend has no timings for an A/B: run it in both trees, and give the two run records to "
    "distbench compare",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False, match_args=False)  # each would cost every run of pytest
class Options:
    """What the user asked for, a field per option; options of extensions by name in ``added``."""

    added: Mapping[str, Any] = field(default_factory=dict)

    world_sizes: tuple[int, ...] = _basic(
        "ranks: N at most, or exactly N,M (default: 2, or GPUs)",
        "Of the sizes in a world_size marker those up to N; without a marker N.",
        metavar="N[,N...]",
        wanted=Wanted("a number of ranks, or several: 4, or 2,4,8", _world_sizes),
        default=(),
        name="world-size",
    )
    gpu: bool = _basic(
        "run on GPUs, with nccl and one GPU per rank; too few GPUs is an error",
        excludes={f"backend={FAKE}": _NO_TIMINGS},
    )
    full: bool = _basic("run the slow tests too, which are marked full")
    update: Update | None = _basic(
        "record baselines: new, failed, changed (default) or all",
        "Every case passes; no baseline is deleted.",
        metavar="MODE",
        const="changed",
        wanted=one_of(UPDATES),
        excludes={"share=gpu": "ranks that share a GPU record no baselines"},
        is_repeated=False,
    )
    no_baseline: NoBaseline = _basic(
        "a case without a baseline: warn (default), fail or skip",
        metavar="POLICY",
        default="warn",
        wanted=one_of(NO_BASELINE),
    )
    baselines: Path = _basic(
        "folder of the baselines (default: baselines/)",
        "It lies next to the ini file.",
        metavar="DIR",
        default=Path("baselines"),
        wanted=_PATH,
    )
    against: str = _basic(
        "compare with revision REF by interleaved A/B",
        "No baseline is read.",
        metavar="REF",
        wanted=_UNLESS_NOTHING,
        excludes=_NOT_AGAINST,
        default="",
    )
    judge: Literal["candidate", "base"] = _basic(
        "with base, tests and settings of REF judge this change",
        "They run over the library code of the working tree. The default is candidate: the working tree's own.",
        metavar="WHO",
        default="candidate",
        wanted=one_of(("candidate", "base")),
        needs={"against": "the base is the revision that is compared with"},
        has_ini_key=False,
    )
    confirm: tuple[Confirm, float] = _basic(
        "A/B if suspicious: auto (default, 60 s), always or off",
        "auto: with the baseline commit, if available; always: every case with timings; S: seconds in all.",
        metavar="MODE[:S]",
        default=("auto", CONFIRM_BUDGET_S),
        wanted=Wanted(
            f"one of {', '.join(CONFIRMS)}, or auto:300 or always:300 for 300 s of it, at most {LONGEST_TIMEOUT_S:g}",
            _confirm,
        ),
    )
    tolerance: float = _basic(
        "how much worse still passes, 0.1 or 10 %",
        "Markers and baseline files set it per metric.",
        metavar="X",
        default=DEFAULT_TOLERANCE,
        wanted=FRACTION,
    )
    launches: tuple[int | None, int | None] = _basic(
        "launches per case: first, and at most (default: 1:10)",
        "More than N are made while the answer is open. An A/B makes 5:28 pairs. An update makes N, or as many as the "
        "noise needs.",
        metavar="N[:MAX]",
        default=(None, None),
        wanted=Wanted(f"N, N:MAX or :MAX, such as 5 or 5:20, from 1 to {MOST_LAUNCHES} and N at most MAX", _launches),
    )
    timeout_s: float = _basic(
        "seconds that one launch may take",
        metavar="S",
        default=300.0,
        wanted=number(least=0.1, most=LONGEST_TIMEOUT_S, read=_float),
        name="timeout",
    )
    strict: bool = _basic("inconclusive and low-power verdicts fail the test too")
    out: Path | None = _basic(
        "write run.json, run.html, logs/ and traces/ to a folder",
        metavar="DIR",
        wanted=_PATH,
        is_repeated=False,
    )
    json: Path | None = _basic("write the run record", metavar="FILE", wanted=_PATH, is_repeated=False)
    report: Path | None = _basic("write the HTML report", metavar="FILE.html", wanted=_PATH, is_repeated=False)
    launcher: str = _advanced(
        "warm (default), torchrun, slurm or a command template",
        "warm forks ranks from a process that has loaded torch. A template starts {command} once on each of {nodes} "
        "hosts, with mpirun, srun, ssh, flux or your own script; {torchrun} in its place starts a torchrun on each; "
        "{nodes:8} fills a host with 8 ranks.",
        metavar="NAME",
        default=DEFAULT_LAUNCHER,
    )
    backend: tuple[str, ...] = _advanced(
        f"process groups: {', '.join(BACKENDS)}[:RANK]",
        "The default is nccl with --gpu, else gloo. With several, every test runs with each. fake: one process stands "
        "for one rank of a large group (fake:63, or fake:-1 for the last), and structure alone is judged.",
        metavar="NAME[,NAME...]",
        wanted=Wanted(
            f"one or more of {', '.join(BACKENDS)}; fake:RANK names the rank that its process stands for, as in "
            "fake:63, or fake:-1 for the last",
            _backends,
        ),
        default=(),
    )
    share: str = _advanced(
        "gpu: ranks share GPUs, unjudged; host: runs share a host",
        "Runs that give host measure at the same time: with --gpu each on its own GPUs, else with each other's noise.",
        metavar="WHAT",
        wanted=one_of(("gpu", "host", "gpu,host")),
        default="",
    )
    platform: str = _advanced("name of this hardware, in place of the detected one", metavar="NAME", default="")
    advisory: Literal["", "all", "timings"] = _advanced(
        "verdicts fail no test: all (default), or of timings",
        "Timings and memory then; what is compared exactly fails. The end lists what would have failed.",
        metavar="WHICH",
        const="all",
        wanted=one_of(("all", "timings")),
        default="",
    )
    fail_on_improvement: bool = _advanced("an improvement fails the test too")
    prune: bool = _advanced(
        "delete baselines that no test used, after a complete green run", has_ini_key=False, is_repeated=False
    )
    control: float | Literal["tolerance"] | None = _advanced(
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
    )
    trace: TracedCases | None = _advanced(
        "profile regressed (default) or all cases once more",
        "All ranks in one file, in the folder of --distbench-out or in .distbench/traces; with :ranks also one each.",
        metavar="CASES[:ranks]",
        const="regressed",
        wanted=one_of(TRACED_CASES),
        excludes={f"backend={FAKE}": "that backend moves no data and has no timings"},
        is_repeated=False,
    )
    attach: int | None = _advanced(
        "give this rank the terminal, for breakpoint()",
        "Nothing is judged.",
        metavar="RANK",
        wanted=whole(0, _MOST, read=_int),
        excludes={"update": "a debugged run measures nothing", f"backend={FAKE}": "it has no rank to attach to"},
        is_repeated=False,
    )
    experiment: Path | None = _advanced(
        "TOML file that describes the experiment, for the record", metavar="FILE", wanted=_PATH, is_repeated=False
    )
    max_message_bytes: int | None = _advanced(
        "largest message that sweeps send, such as 4MiB",
        metavar="SIZE",
        wanted=Wanted("a size", parse_bytes),
        name="max-message",
    )
    against_python: str = _ini_only(
        "compare with another Python, and so another torch",
        "A path or a command; with --distbench-confirm that of the baseline commit.",
        metavar="PATH",
        wanted=_UNLESS_NOTHING,
        excludes=_NOT_AGAINST,
        default="",
    )
    against_tolerance: float = _ini_only(
        "smallest slowdown that fails an A/B", metavar="X", default=PAIRED_TOLERANCE, wanted=FRACTION
    )
    against_link: tuple[str, ...] = _ini_only(
        "paths that the other revision needs and git ignores",
        "Such as data/; commas separate them.",
        metavar="PATH[,PATH...]",
        wanted=Wanted("paths", lambda text: tuple(filter(None, map(str.strip, re.split(r"[,\n]", text))))),
        default=(),
    )
    numa_binding: str = _ini_only(
        "with --gpu, bind ranks to the CPUs near their GPU",
        f"As torchrun's --numa-binding does: {', '.join(NUMA_BINDINGS)}.",
        metavar="MODE",
        wanted=one_of(NUMA_BINDINGS),
        needs={"gpu": "it binds ranks to the CPUs near their GPUs"},
        default="",
    )
    addresses: bool = _ini_only("keep IP addresses and host names in the run record", is_repeated=False)
    preload: tuple[str, ...] = _ini_only(
        "modules to import once, before ranks are forked",
        metavar="MODULE...",
        wanted=Wanted("names of modules", lambda text: tuple(shlex.split(text))),
        is_list=True,
        default=(),
    )
    short_options: bool = _ini_only(
        "false: --world-size, --gpu and the markers are not ours",
        default=True,
        is_repeated=False,
    )

    def of(self, option: Option) -> Any:
        """The value of an option of an extension."""
        return self.added.get(option.name, option.default)


def _row(of: Field[Any]) -> Option:
    row: Option = of.metadata["row"]
    return row._replace(name=row.name or of.name.replace("_", "-"), field=of.name)


OPTIONS: Table[str, Option] = Table("options", {row.name: row for row in map(_row, fields(Options)[1:])})
"""Options by name, in the order of the help."""

SHORT = ("world-size", "gpu")  # options that have a spelling without our name, where nobody else has it

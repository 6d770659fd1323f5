"""The options of the pytest command line, a row each: what they are called, what they mean, and who repeats them."""

from __future__ import annotations

from typing import NamedTuple

from pytest_distbench.records.choices import DEFAULT_TOLERANCE

FAKE = "fake"
"""The backend that moves no data: one process stands for a rank of a group of any size; structure alone is judged."""

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", FAKE)
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")
"""What torchrun's ``--numa-binding`` takes."""


class Option(NamedTuple):
    """One option, ``--distbench-NAME``, and its ini key ``distbench_NAME``.

    Attributes:
        metavar: what stands for its value in the help; empty: it is a flag.
        const: the value of the option alone, where that may be left out.
        is_repeated: in the commands that are printed, to run a test again or to record it.
    """

    summary: str
    metavar: str = ""
    const: str = ""
    has_ini_key: bool = True
    is_repeated: bool = True


NOTHING = "-"
"""Given to --distbench-against and --distbench-against-python: compare with nothing, whatever ``addopts`` says.
An empty text is an error: it is what a variable that is not set leaves of an option."""

BY_TOLERANCE = "tolerance"
"""Given to --distbench-control: what is planted follows from the tolerance of each case."""

OPTIONS: dict[str, Option] = {
    "world-size": Option(
        metavar="N[,N...]",
        summary="size of the process groups: one number is the most ranks at hand, a list runs exactly those "
        "(default: 2; with --gpu the visible GPUs)",
    ),
    "gpu": Option(summary="CUDA is required: nccl, one GPU per rank; too few GPUs is an error"),
    "update": Option(
        metavar="MODE",
        const="changed",
        summary="measure, write baselines and pass: new, failed, changed (default) or all; never deletes one",
        is_repeated=False,
    ),
    "prune": Option(
        summary="delete the stored entries that no test used; only after a run of whole files in which nothing failed",
        has_ini_key=False,
        is_repeated=False,
    ),
    "share-gpu": Option(
        summary="with --gpu: let several ranks run on one GPU, to test the plumbing; nothing is judged or stored",
        has_ini_key=False,
    ),
    "share-host": Option(
        summary="with --gpu: measure beside other runs that say so too, each alone on its GPUs: for jobs that share a "
        "node",
    ),
    "full": Option(summary="run the tests with the marker full too: the long forms of others"),
    "numa-binding": Option(
        metavar="MODE",
        summary="with --gpu: bind each rank to the CPUs near its GPU, as torchrun's --numa-binding does: "
        + ", ".join(NUMA_BINDINGS),
    ),
    "backend": Option(
        metavar="NAME[,NAME...]",
        summary=f"process-group backend: {', '.join(BACKENDS)} (default: nccl with --gpu, else gloo); of several, "
        "every test runs with each, and those this torch has not are skipped; fake, alone: one process for a group of "
        "any size; structure is judged, no clocks and values",
    ),
    "fake-rank": Option(
        metavar="RANK",
        summary="with the fake backend: the rank that the one process stands for; -1: the last (default: 0)",
    ),
    "launcher": Option(
        metavar="NAME",
        summary="how ranks are started: warm, from a process that has torch loaded (default); torchrun, the "
        "command line tool; slurm, on the nodes of an allocation; cmd, by "
        "--distbench-launcher-cmd; or another one that a conftest or plugin has added",
    ),
    "launcher-cmd": Option(
        metavar="TEMPLATE",
        summary="a command that starts {command} once on each of {nodes} hosts, by mpirun, srun, ssh, flux or a script "
        "of yours; ranks live there, and with {torchrun} for {command} a torchrun of each host starts them "
        "(--distbench-launcher cmd, which this implies)",
    ),
    "ranks-per-node": Option(
        metavar="N", summary="with --distbench-launcher-cmd: the ranks that each host is filled with (default: 1)"
    ),
    "network": Option(
        metavar="NETWORK",
        summary="network between the ranks, made of namespaces of this host: 1gbit, or 100mbit,delay=5ms with "
        "loss=, overlay and hosts= as needed; or label=NAME of the one that is there",
    ),
    "launches": Option(
        metavar="N",
        summary="launches of each case judged first (default: 1; of pairs 5), or made "
        "of it in an update (default: as many as its noise needs)",
    ),
    "max-launches": Option(
        metavar="N",
        summary="the most launches of a case: while its answer is open (default: 10; of pairs 28), or of an update",
    ),
    "timeout": Option(metavar="S", summary="seconds one launch may take, from when its ranks are up (default: 300)"),
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
    "missing": Option(metavar="POLICY", summary="no baseline for a case: warn (default), fail or skip"),
    "tolerance": Option(
        metavar="X",
        summary="change from the baseline towards worse that is accepted, as a fraction "
        f"(default: {DEFAULT_TOLERANCE})",
    ),
    "logs": Option(
        metavar="DIR",
        summary="keep what the ranks of every launch print, in files below this folder",
        is_repeated=False,
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
    "experiment": Option(
        metavar="FILE",
        summary="TOML file with what people write down of an experiment, for the run record and its table record",
        is_repeated=False,
    ),
    "addresses": Option(
        summary="keep IP addresses and host names in the run record; else what is stated of an experiment has none",
        is_repeated=False,
    ),
    "max-message": Option(metavar="SIZE", summary="no larger messages are sent: sweeps leave them out; 4MiB, say"),
    "against": Option(
        metavar="REF",
        summary="compare with another revision of the repository, measured in turns, not with stored baselines",
    ),
    "against-python": Option(
        metavar="PATH",
        summary="compare with another Python, and so another torch; with --distbench-against: both; with "
        "--distbench-confirm: the Python of the revisions that recorded the baselines",
    ),
    "against-tolerance": Option(
        metavar="X",
        summary="smallest slowdown that counts in such a comparison, as a fraction (default: 0.05)",
    ),
    "against-link": Option(
        metavar="PATH[,PATH...]",
        summary="what git ignores and the tests need, such as data/: linked from the working tree into the other "
        "revision",
    ),
    "confirm": Option(
        metavar="MODE",
        summary="decide doubtful comparisons with stored baselines in turns with the revision that recorded them: auto "
        "(default: where that is at hand), always (every case with clocks), never",
    ),
    "confirm-budget": Option(
        metavar="S",
        summary="seconds of the run for that, the most doubtful cases first (default: 60)",
    ),
    "control": Option(
        metavar="X",
        const=BY_TOLERANCE,
        summary="plant a slowdown in every case, and say whether this run would have found it; X: its share, as a "
        "fraction (default: a third more than the case's tolerance); nothing is judged or stored",
        has_ini_key=False,
        is_repeated=False,
    ),
    "trace": Option(
        metavar="CASES",
        const="regressed",
        summary="launch a case once more, with torch's profiler on, and keep a trace of all ranks, and of both sides "
        "where there are two, in one file: regressed (default), by a clock or a rate; all; below --distbench-logs, "
        "else in .distbench/traces",
        is_repeated=False,
    ),
    "attach": Option(
        metavar="RANK",
        summary="give this rank the terminal, for breakpoint(); time-outs are off and nothing is judged",
        is_repeated=False,
    ),
    "strict": Option(summary="inconclusive, incomparable and unseeded verdicts fail the test too"),
    "fail-on-improvement": Option(summary="an improvement fails the test too: its baseline wants an update"),
}
"""By name, in the order of the help."""

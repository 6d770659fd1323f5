"""The options of the command line and their ini keys: names and help. ``settings`` reads them."""

from __future__ import annotations

import pytest

from pytest_distbench.launch.launchers import describe_launchers

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "fake")

_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("backend", "NAME", f"process-group backend: {', '.join(BACKENDS)} (default: nccl with --gpu, else gloo)"),
    ("launcher", "NAME", describe_launchers()),
    ("launches", "N", "launches of each case judged first (default: 1; of an update 10, of pairs 5)"),
    ("max-launches", "N", "the most launches of a case, while its answer is open (default: 10; of pairs 28)"),
    ("timeout", "S", "seconds one launch may take, from when its ranks are up (default: 300)"),
    ("baselines", "DIR", "folder of stored baselines (default: baselines/ beside the ini file)"),
    ("platform", "NAME", "hardware class of this machine, in place of the one found"),
    ("missing", "POLICY", "no baseline for a case: warn (default), fail or skip"),
    ("tolerance", "X", "change from the baseline towards worse that is accepted, as a fraction (default: 0.1)"),
    ("json", "FILE", "write the run record: environment, cases, launches, verdicts"),
    ("max-message", "SIZE", "collective sweeps leave out larger messages, for example 4MiB"),
    ("against", "REF", "compare with another revision of the repository, measured in turns, not with stored baselines"),
    ("against-python", "PATH", "compare with another Python, and so another torch; with --distbench-against: both"),
    ("against-tolerance", "X", "smallest slowdown that counts in such a comparison, as a fraction (default: 0.05)"),
    ("attach", "RANK", "give this rank the terminal, for breakpoint(); time-outs are off and nothing is judged"),
)


POLICIES: tuple[tuple[str, str], ...] = (
    ("strict", "inconclusive and incomparable verdicts fail the test too"),
    ("fail-on-improvement", "an improvement fails the test too: its baseline wants an update"),
)
"""Options that make more kinds of verdicts fail: those whose row names it (``VerdictKind.fails_under``)."""


def add_options(parser: pytest.Parser) -> None:
    """Add the long options and the ini keys. The short spellings come later, see :func:`add_short_options`."""
    group = parser.getgroup("distbench", "distributed performance and accuracy regressions")
    _add_world_size(group, "--distbench-world-size", "distbench_world_size")
    _add_gpu(group, "--distbench-gpu", "distbench_gpu")
    group.addoption(
        "--distbench-update",
        dest="distbench_update",
        nargs="?",
        const="changed",
        metavar="MODE",
        help="measure, write baselines and pass: new, failed, changed (default) or all; never deletes one",
    )
    group.addoption(
        "--distbench-prune",
        dest="distbench_prune",
        action="store_true",
        help="delete the stored entries that no test used; only after a run of whole files in which nothing failed",
    )
    group.addoption(
        "--distbench-share-gpu",
        dest="distbench_share_gpu",
        action="store_true",
        help="with --gpu: let several ranks run on one GPU, to test the plumbing; nothing is judged or stored",
    )
    for name, metavar, text in _OPTIONS:
        dest = f"distbench_{name.replace('-', '_')}"
        group.addoption(f"--distbench-{name}", dest=dest, metavar=metavar, help=text)
        parser.addini(dest, text, default="")
    for name, text in POLICIES:
        dest = f"distbench_{name.replace('-', '_')}"
        group.addoption(f"--distbench-{name}", dest=dest, action="store_true", help=text)
        parser.addini(dest, text, type="bool", default=False)
    parser.addini("distbench_world_size", "as --world-size", default="")
    parser.addini("distbench_gpu", "as --gpu", type="bool", default=False)
    parser.addini("distbench_update", "as --distbench-update", default="")
    parser.addini(
        "distbench_preload", "modules to import once, in the process ranks are forked from", type="args", default=[]
    )
    parser.addini(
        "distbench_short_options",
        "false: --world-size and --gpu belong to somebody else here; use the --distbench-... spellings",
        type="bool",
        default=True,
    )


def add_short_options(parser: pytest.Parser) -> list[str]:
    """Add ``--world-size`` and ``--gpu``, each unless a conftest already has; returns those that were taken."""
    group = parser.getgroup("distbench")
    taken = []
    for option, add in (("--world-size", _add_world_size), ("--gpu", _add_gpu)):
        if option in _known_options(parser):
            taken.append(option)
        else:
            add(group, option, f"distbench_short_{option.strip('-').replace('-', '_')}")
    return taken


def _known_options(parser: pytest.Parser) -> set[str]:
    """Every option string so far. pytest has no public way to ask, and its complaint about a clash is a crash."""
    groups = [parser._anonymous, *parser._groups]
    return {name for group in groups for option in group.options for name in option.names()}


def _add_world_size(group: pytest.OptionGroup, option: str, dest: str) -> None:
    group.addoption(
        option,
        dest=dest,
        metavar="N[,N...]",
        help="size of the process groups: one number is the most ranks at hand, a list runs exactly those "
        "(default: 2; with --gpu the visible GPUs)",
    )


def _add_gpu(group: pytest.OptionGroup, option: str, dest: str) -> None:
    group.addoption(
        option,
        dest=dest,
        action="store_true",
        help="CUDA is required: nccl, one GPU per rank; too few GPUs is an error",
    )

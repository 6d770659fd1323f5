"""Declares the options of the command line and their ini keys, which are a table in ``records.options``."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_distbench.records.options import OPTIONS, Option

MARKERS = (
    "world_size(*sizes, min=, max=): process-group sizes this test runs at; without it the largest given",
    "gpu(min_memory=, capability=, link=): this test needs CUDA, and such GPUs; not run without --gpu",
    "cpu: this test stays on the CPU, with gloo, under --gpu too",
    "network(rate, delay=, loss=, overlay=, hosts=, label=): the network between the ranks of this test",
    "full: a long form, left out of a first picture; not run without --distbench-full",
    "distbench(timeout=, launches=, tolerance=, metrics=, bounds=, xfail_perf=, fake_rank=): how it is judged",
)
"""The markers, as pytest lists them; ``markers`` reads them."""

SHORT = ("world-size", "gpu")
"""Options that have a spelling without our name, where nobody else has it."""


def add_options(parser: pytest.Parser) -> None:
    """Add the long options and the ini keys. The short spellings come later, see :func:`add_short_options`."""
    group = parser.getgroup("distbench", "distributed performance and accuracy regressions")
    for name, option in OPTIONS.items():
        dest = f"distbench_{name.replace('-', '_')}"
        group.addoption(f"--distbench-{name}", dest=dest, **_declaration(option))
        if option.has_ini_key:
            kind: dict[str, Any] = {"default": ""} if option.metavar else {"type": "bool", "default": False}
            parser.addini(dest, option.summary, **kind)
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
    for name in SHORT:
        if f"--{name}" in _known_options(parser):
            taken.append(f"--{name}")
        else:
            dest = f"distbench_short_{name.replace('-', '_')}"
            group.addoption(f"--{name}", dest=dest, **_declaration(OPTIONS[name]))
    return taken


def _declaration(option: Option) -> dict[str, Any]:
    if not option.metavar:
        return {"action": "store_true", "help": option.summary}
    optional = {"nargs": "?", "const": option.const} if option.const else {}
    return {"metavar": option.metavar, "help": option.summary, **optional}


def _known_options(parser: pytest.Parser) -> set[str]:
    """Every option string so far. pytest has no public way to ask, and its complaint about a clash is a crash."""
    groups = [parser._anonymous, *parser._groups]
    return {name for group in groups for option in group.options for name in option.names()}

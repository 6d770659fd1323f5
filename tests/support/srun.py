"""A stand-in for srun: what it starts on nodes runs here; a real Slurm is in tests/end_to_end/test_slurm.py."""

from __future__ import annotations

from pathlib import Path

ALL = 'for node in $nodes; do SLURMD_NODENAME=$node "$@" & done; wait'
"""Starts a process for each node, and ends when they have ended."""


def write_srun(folder: Path, does: str) -> None:
    """Make one that does what is written, with the words behind its options as ``$@``, and the nodes as ``$nodes``.

    All words stand in ``srun.words`` then.
    """
    take = 'nodes=$(echo "$*" | tr " " "\n" | sed -n "s/--nodelist=//p" | tr "," " ")'
    keep = f'echo "$*" > {folder}/srun.words'
    skip = 'while [ "${1#--}" != "$1" ] || [ "$1" = srun ]; do shift; done'
    program = folder / "srun"
    program.write_text(f"#!/bin/sh\n{take}\n{keep}\n{skip}\n{does}\n")
    program.chmod(0o755)

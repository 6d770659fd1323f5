"""The launchers of other hosts, as rows of the core's table."""

from __future__ import annotations

from pytest_distbench.launch.starters import LauncherKind, by_name

SLURM = LauncherKind(
    help="on the nodes of a Slurm allocation, from processes that have torch loaded",
    make=by_name("pytest_distbench.hosts.slurm:SlurmLauncher"),
    hosts="many",
    holds_two=True,
    is_spaced=False,
    sets_threads=True,
    describe=by_name("pytest_distbench.hosts.slurm:describe"),
    layout=by_name("pytest_distbench.hosts.slurm:ranks_of_nodes"),
)
CMD = LauncherKind(
    help="a command of your own that reaches other hosts",
    make=by_name("pytest_distbench.hosts.cmd:CmdLauncher"),
    hosts="many",
    holds_two=True,
    settles_doubts=False,
    takes_python=False,
    is_spaced=False,
    describe=by_name("pytest_distbench.hosts.cmd:describe"),
    layout=by_name("pytest_distbench.hosts.cmd:ranks_of_nodes"),
    engine=by_name("pytest_distbench.hosts.cmd:engine_of"),
)

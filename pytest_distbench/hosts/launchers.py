"""The launchers of ranks on other hosts."""

from __future__ import annotations

from pytest_distbench.launch.starters import LauncherKind, by_name

SLURM = LauncherKind(
    help="on the nodes of a Slurm allocation, from processes that have torch loaded",
    make=by_name("pytest_distbench.hosts.slurm:SlurmLauncher"),
    starts="started by Slurm",
    hosts="many",
    holds_two=True,
    is_spaced=False,
    sets_threads=True,
    describe=by_name("pytest_distbench.hosts.slurm:describe"),
    layout=by_name("pytest_distbench.hosts.slurm:ranks_of_nodes"),
)
CMD = LauncherKind(
    help="a command of your own that reaches other hosts",
    make=by_name("pytest_distbench.hosts.calls:CmdLauncher"),
    starts="started by a command of yours",
    hosts="many",
    holds_two=True,
    may_confirm=False,
    takes_python=False,
    is_spaced=False,
    describe=by_name("pytest_distbench.hosts.calls:describe"),
    layout=by_name("pytest_distbench.hosts.calls:ranks_of_nodes"),
    engine=by_name("pytest_distbench.hosts.calls:check_engine"),
)

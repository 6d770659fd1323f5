"""Ranks on hosts that a command of the user's reaches: it starts a relay on each, by whatever engine there is."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.hosts.calls import Call, Callers, addresses, describe_hosts, fill_hosts, make_site, take_relays
from pytest_distbench.hosts.relay import BY_TORCHRUN
from pytest_distbench.hosts.relayed import RelayedSite
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import LauncherSetup
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import SESSION_VARIABLE

_OPTION = "--distbench-launcher"
_PLACEHOLDER = re.compile(r"\{(\w+)(?:(?<=nodes):([1-9][0-9]{0,8}))?\}")
_PLACEHOLDERS = {
    "nodes": "number of hosts; {nodes:8}: each is filled with 8 ranks, not 1",
    "ranks": "number of ranks",
    "ranks_per_node": "the most ranks of a host",
    "command": "what to run once on each host",
    "torchrun": "the same, if a torchrun on each host is to start the ranks",
}
_ONE_LOOK_UP = {"RES_OPTIONS": "attempts:1"}
"""A name of this host that DNS does not answer for costs a caller one time-out, before it tries an address."""


def _sizes(template: str) -> set[int]:
    """What a template says of how many ranks a host is filled with."""
    return {int(size) for _, size in _PLACEHOLDER.findall(template) if size}


def ranks_per_node(template: str) -> int:
    return max(_sizes(template), default=1)


def check_engine(template: str) -> None:
    """Refuse a template with a placeholder that there is not, without one that is needed, or that is no command."""
    found = {name for name, _ in _PLACEHOLDER.findall(template)}
    wrong = [f"there is no {{{name}}}" for name in sorted(found - _PLACEHOLDERS.keys())]
    wrong += ["{nodes} is missing"] * ("nodes" not in found)
    wrong += ["{command} or {torchrun} is missing"] * found.isdisjoint(("command", "torchrun"))
    wrong += ["{nodes:...} has two numbers"] * (len(_sizes(template)) > 1)
    try:
        program = shlex.split(template)[0]
        wrong += [f"there is no program {program!r} on this host"] * (shutil.which(program) is None)
    except ValueError as error:
        wrong.append(str(error))
    if wrong:
        known = ", ".join(f"{{{name}}} ({what})" for name, what in _PLACEHOLDERS.items())
        raise ConfigurationError(
            f"{_OPTION}: {template!r}: {', '.join(wrong)}; wanted a program of this host with {{nodes}}, and "
            f"{{command}} or {{torchrun}}. Placeholders are {known}; shell syntax goes into a script, or behind sh -c"
        )


def fill(template: str, *, nodes: int, words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """The words of a command, none of which a shell reads.

    What runs on each host carries its variables itself: not every engine passes them on. Its words are plain ones, so
    that an ``ssh`` may join and a shell over there may split them.
    """
    command = shlex.join(["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), *words])
    per_node = ranks_per_node(template)
    values = {
        "nodes": str(nodes),
        "ranks": str(nodes * per_node),
        "ranks_per_node": str(per_node),
        "command": command,
        "torchrun": command,
    }
    return shlex.split(_PLACEHOLDER.sub(lambda found: values[found[1]], template))


def ranks_of_nodes(ranks: int, *, on_gpus: bool, engine: str) -> list[int]:
    del on_gpus
    return [len(node) for node in fill_hosts(ranks, ranks_per_node(engine))]


def describe(*, ranks: int, engine: str, gpu: bool, platform: str) -> tuple[Environment, bool]:
    """What the hosts of the largest launch are, which the command starts a process on. See :func:`describe_hosts`."""
    nodes = len(fill_hosts(ranks, ranks_per_node(engine)))
    return describe_hosts(
        f"the hosts of {_OPTION}",
        functools.partial(start, nodes, engine),
        gpu=gpu,
        platform=platform,
        gpu_advice="let the command start it on hosts with GPUs, or leave --gpu out",
    )


def as_torchrun(relays: Sequence[Call]) -> list[Call]:
    """Hosts in the order in which the rendezvous of torchrun numbers its nodes: by the texts of their addresses."""
    return sorted(relays, key=lambda relay: relay[1].address)


class CmdLauncher:
    """Runs the user's command once per launch."""

    name = "cmd"

    def __init__(self, setup: LauncherSetup) -> None:
        self.session = setup.session
        self.engine = setup.engine

    def prepare(self, variables: dict[str, str]) -> None:
        """Nothing can be prepared."""

    def open(self, plan: LaunchPlan) -> RelayedSite:
        ranks = fill_hosts(plan.processes, ranks_per_node(self.engine))
        by_torchrun = "{torchrun}" in self.engine
        words = ["pytest_distbench.hosts.relay", *[BY_TORCHRUN] * by_torchrun]
        callers = start(len(ranks), self.engine, *words, log=plan.files.launcher_log, session=self.session)
        relays = take_relays(callers)
        return make_site(plan, ranks, [(each, callers) for each in (as_torchrun(relays) if by_torchrun else relays)])

    def leftovers(self) -> list[psutil.Process]:
        """What there is on this host: commands that have not ended."""
        return processes.find_marked(SESSION_VARIABLE, self.session)

    def close(self) -> None:
        processes.kill(self.leftovers())


def start(nodes: int, engine: str, module: str, *words: str, **callers: Any) -> Callers:
    """The user's command, which starts a process on each of so many hosts."""

    def command(where: Sequence[str], own: Mapping[str, str]) -> list[str]:
        found_here = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        python = [sys.executable, "-m", module, *where, *words]
        return fill(engine, nodes=nodes, words=python, variables={**_ONE_LOOK_UP, **found_here, **own})

    return Callers(
        command,
        environment=os.environ,
        count=nodes,
        advice=f"The command has to start {{command}} once on each of {nodes} hosts, which reach this one at one of "
        f"{', '.join(addresses())} and have Python and pytest-distbench under the paths of this one",
        **callers,
    )

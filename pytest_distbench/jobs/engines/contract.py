"""What an engine is: it changes the membership of a job, and tells what its agents do. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_distbench.jobs.engines.outputs import NodeOutputs
from pytest_distbench.records.elastic import ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.timeline import AgentEnded, Rendezvous

LOOPBACK = "127.0.0.1"
MAX_RESTARTS = 1000
"""Those that torchrun counts while nodes only join: who loses its peers a moment before it hears of the change."""


class CannotGoOn(Exception):
    """The job has failed; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What an engine is made of.

    Attributes:
        files: of the launch; the plan is among them.
        projects: modules to import once for all nodes, where that is possible (``distbench_preload``).
        outputs: what nodes that run a script print to; None: to their logs.
        devices: the CUDA device of each slot, where its worker takes the first that it sees, as a script does.
    """

    job: ElasticJob
    files: LaunchFiles
    variables: Mapping[str, str]
    projects: Sequence[str] = ()
    script: Sequence[str] = ()
    outputs: NodeOutputs | None = None
    devices: Sequence[int] = ()


class Engine(Protocol):
    """Nodes of one elastic job."""

    def join(self, slot: int) -> None:
        """Start a node. Returns at once."""

    def leave(self, slot: int) -> None:
        """Ask a node to go. Returns at once."""

    def kill(self, slot: int) -> None:
        """Lose a node: all its processes end at once."""

    def crash(self, slot: int) -> None:
        """Lose the worker of a node, and not its agent."""

    def stop(self, slot: int) -> None:
        """Let all processes of a node stand still."""

    def go_on(self, slot: int) -> None:
        """Let them go on."""

    def poll(self) -> list[Rendezvous | AgentEnded]:
        """What has happened since the last call, and agents do not note themselves. Never blocks.

        An engine that has broken down raises :class:`CannotGoOn`.
        """

    def log(self, slot: int) -> str:
        """The last lines of what the slot's agents have printed."""

    def close(self) -> None:
        """End all nodes."""

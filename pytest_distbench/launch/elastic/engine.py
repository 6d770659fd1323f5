"""What an engine is: it changes the membership of a job, and tells what its agents do. It decides nothing."""

from __future__ import annotations

from typing import Protocol

from pytest_distbench.records.timeline import AgentEnded, Rendezvous


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

        Raises:
            CannotGoOn: the engine itself has broken down.
        """

    def log(self, slot: int) -> str:
        """The last lines of what the slot's agents have printed."""

    def close(self) -> None:
        """End all nodes."""

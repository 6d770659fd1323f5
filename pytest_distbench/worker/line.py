"""What a body's context needs of a rank's line to its site."""

from __future__ import annotations

from typing import Protocol


class Line(Protocol):
    """A rank's line, as far as its body uses it."""

    def progress(self, text: str) -> None:
        """Show one line of progress."""

    def take_turn(self) -> None:
        """Wait until it is this group's turn."""


class NoLine:
    """Of a process that has no line: nobody looks, and it is always its turn."""

    def progress(self, text: str) -> None:
        """Nobody looks."""

    def take_turn(self) -> None:
        """It is this process's turn."""

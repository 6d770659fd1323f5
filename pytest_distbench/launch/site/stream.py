"""What a controller and a relay say to each other over one byte stream: orders down, words up, a JSON line each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from pytest_distbench.launch.site import Exit
from pytest_distbench.records.launch import HostReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import Record
from pytest_distbench.records.wire import RankEvent

FileKind = Literal["log", "stacks", "flight", "groups"]
"""What a rank writes that is shown as it is, and the method of :class:`LaunchFiles` that names the file."""

OUTPUT: tuple[FileKind, ...] = ("log",)
EVERYTHING: tuple[FileKind, ...] = get_args(FileKind)

Order = Literal["open", "ping", "start", "ask", "signal", "running", "collect", "end", "fetch", "clear"]
"""From the controller to a relay, which carries them out one after the other. All are answered by ``done``, but
``ping`` by ``pong``, and ``ask`` and ``signal`` by nothing. ``open``: make a place for the launch, and measure nothing
yet. ``running``: say which ranks are there. ``fetch``: send what ranks have printed since. ``clear``: end what is left,
and send all that ranks have written and reported. The others are methods of a site."""
Word = Literal["pong", "said", "closed", "ended", "wrote", "done"]
"""From a relay to the controller: ``said``, by a rank; ``closed``: a rank's line has ended; ``ended``: all ranks there;
``wrote``: a rank, to one of its files, at the beginning of which what was there before is gone."""


class Message(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the stream. Moments are CLOCK_MONOTONIC seconds of the relay's host."""

    what: Order | Word
    rank: int = -1
    ranks: list[int] = []
    """That it is about; of ``collect`` those that are undecided."""
    held: list[int] = []
    number: int = 0
    """Of a ping and its pong, or of a signal."""
    at: float = 0.0
    request: str = ""
    plan: LaunchPlan | None = None
    """With its variables as they travel."""
    places: dict[int, dict[str, str]] = {}
    """Rank that is to live there -> the variables by which torchrun would tell it its place."""
    began_ns: int = 0
    """When the file of that name was made: a relay that finds the same one shares the launch's folder."""
    event: RankEvent | None = None
    ended: Exit | None = None
    kind: FileKind = "log"
    offset: int = 0
    data: bytes = b""
    report: HostReport | None = None
    trouble: str = ""
    """Why an order could not be carried out; empty: it was."""


def place_of(files: LaunchFiles, kind: FileKind, rank: int) -> Path:
    name: Callable[[int], Path] = getattr(files, kind)
    return name(rank)

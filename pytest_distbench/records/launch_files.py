"""The files of one launch: pytest and the ranks meet in its private directory, and agree here on every name."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

LONGEST_SOCKETS_FOLDER = 70
"""Bytes: a Unix socket's address holds 107, and multiprocessing adds up to 30."""


def sockets_folder(directory: Path, session: str = "") -> Path:
    """Folder for the sockets of Python's multiprocessing, below a launch's directory, or below a run's.

    Args:
        directory: of the launch, or of the run.
        session: of a run: agents of several sessions share its directory.
    """
    return directory / (f"sockets-{session[:8]}" if session else "sockets")


def sockets_folders(directory: Path) -> list[Path]:
    """All of them that there are below a directory."""
    return list(directory.glob("sockets*/"))


def open_left(path: Path) -> BinaryIO:
    """Open a file of a launch to read what its rank has left there.

    Raises:
        OSError: there is none, or it is no regular file: a body may put a pipe in its place, which blocks for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "no regular file", str(path))


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """Where each file of a launch is.

    Attributes:
        directory: of the launch.
    """

    directory: Path

    @property
    def plan(self) -> Path:
        """What the ranks run. It holds the whole environment, secrets included, and goes when the launch ends."""
        return self.directory / "plan.json"

    @property
    def control(self) -> Path:
        """The socket of the ranks' control lines."""
        return self.directory / "control"

    @property
    def sockets(self) -> Path:
        """Folder for the sockets of Python's multiprocessing in the ranks."""
        return sockets_folder(self.directory)

    @property
    def work(self) -> Path:
        """Folder for the files of what is measured: its working directory, unless it asked for another."""
        return self.directory / "work"

    @property
    def began(self) -> Path:
        """Empty; made when the launch begins: what is older was not written by it."""
        return self.directory / "began"

    @property
    def before(self) -> Path:
        """What lay there before the launch, of the files that are read after it; not there where nothing did."""
        return self.directory / "before.json"

    @property
    def left(self) -> Path:
        """Command lines of what was still running when a command had ended; not there where nothing was."""
        return self.directory / "left.json"

    @property
    def used(self) -> Path:
        """What a command used, and who computed beside it; not there where it was ended with pytest."""
        return self.directory / "used.json"

    @property
    def launcher_log(self) -> Path:
        """What a launcher that is a process of its own printed."""
        return self.directory / "launcher.log"

    @property
    def torchrun_logs(self) -> Path:
        """Folder that torchrun fills itself."""
        return self.directory / "torchrun"

    @property
    def timeline(self) -> Path:
        """What happened in an elastic job, line by line."""
        return self.directory / "timeline.jsonl"

    @property
    def worker_notes(self) -> Path:
        """What the workers of an elastic job noted that run a script, line by line (``worker/site``)."""
        return self.directory / "workers.jsonl"

    @property
    def rank_notes(self) -> Path:
        """What the ranks of a command noted of their beginning and of what they raised (``worker/site``)."""
        return self.directory / "ranks.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder for the checkpoints of an elastic job."""
        return self.directory / "checkpoints"

    @property
    def last_step(self) -> Path:
        """After which step of an elastic job its training may end; not there while its plan is not at its end."""
        return self.directory / "last_step"

    @property
    def trouble(self) -> Path:
        """Why what runs below a guardian did not come to its end; not there where it did."""
        return self.directory / "trouble.txt"

    @property
    def pool_timeline(self) -> Path:
        """What happened in a pool, line by line."""
        return self.directory / "pool.jsonl"

    def job(self, index: int) -> LaunchFiles:
        """The files of one job of a pool, in a folder of its own."""
        return LaunchFiles(self.directory / f"job{index}")

    def jobs(self) -> list[LaunchFiles]:
        """The files of all jobs of a pool that there are."""
        return [LaunchFiles(path) for path in self.directory.glob("job*/")]

    def serving_log(self, slot: int) -> Path:
        """What the servers in a slot of a pool printed."""
        return self.directory / f"serving{slot}.log"

    def agent_log(self, slot: int) -> Path:
        """What the agents of a slot of an elastic job printed."""
        return self.directory / f"agent{slot}.log"

    @property
    def nccl_flight_prefix(self) -> str:
        """NCCL appends the rank, and dumps its flight recorder there when it gives up."""
        return str(self.directory / "nccl-flight-")

    def report(self, rank: int) -> Path:
        """What a rank recorded, and how it ended."""
        return self.directory / f"rank{rank}.json"

    def log(self, rank: int) -> Path:
        """What a rank printed."""
        return self.directory / f"rank{rank}.log"

    def logs(self) -> list[Path]:
        """The logs of all ranks that have one."""
        return sorted(self.directory.glob("rank*.log"))

    def stacks(self, rank: int) -> Path:
        """The Python stacks that a rank writes when it is asked."""
        return self.directory / f"stacks{rank}.txt"

    def flight(self, rank: int) -> Path:
        """The flight recorder that a rank writes when it is asked."""
        return self.directory / f"flight{rank}.json"

    def groups(self, rank: int) -> Path:
        """The ranks of every process group that a rank knows; written before its flight recorder."""
        return self.directory / f"groups{rank}.json"

    def trace(self, rank: int, loop: int) -> Path:
        """What torch's profiler saw of a rank in one of its loops, by number."""
        return self.directory / f"trace{rank}-{loop}.json"

    def loops(self, rank: int) -> Path:
        """The keys of these loops; written when the rank has written all of its traces."""
        return self.directory / f"loops{rank}.json"

    def joined(self) -> list[int]:
        """Sizes of the process groups that processes of a command joined; 0 among them: one could have joined."""
        return [int(size) for path in self.directory.glob("joined*") if (size := path.name[6:]).isdecimal()]

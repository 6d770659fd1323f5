"""Files and variables by which pytest and the ranks of a launch agree.

The launch's private directory holds the files; all names are here, and so are the variables that torchrun gives a rank.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

PLACE = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Variables of a rank's place in its group."""

CONTRACT = (
    *PLACE, "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""All variables that torchrun gives a rank. The last one keeps the user's value, as under torchrun."""

_PREFIXES = ("TORCHELASTIC_", "PET_")  # of variables that torchrun gives its ranks, and that set its own options


def is_of_a_group(name: str) -> bool:
    """Whether a variable belongs to one torchrun group; if pytest inherited it, it must never reach a rank."""
    return name in PLACE or name.startswith(_PREFIXES)


NOTES_VARIABLE = "DISTBENCH_NOTES"
"""Environment variable of a measured command with the path of its launch's plan, for what its processes record."""


LONGEST_SOCKETS_FOLDER = 70  # bytes: a Unix socket's address holds 107, and multiprocessing adds up to 30


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


class _LaunchFile:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, files: LaunchFiles, owner: type[LaunchFiles]) -> Path:
        return files.directory / self._name


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    directory: Path

    plan = _LaunchFile("plan.json")
    """Plan that the ranks run. It holds the environment, secrets included, and is deleted when the launch ends."""
    control = _LaunchFile("control")

    @property
    def sockets(self) -> Path:
        """Folder for the sockets of Python's multiprocessing."""
        return self.directory / "sockets"

    work = _LaunchFile("work")
    """Folder for the files of what is measured, and its working directory unless it asked for another."""
    began = _LaunchFile("began")  # empty; made when the launch begins: older files were not written by it
    before = _LaunchFile("before.json")
    """Sizes and digests, before the launch, of files that readers read after it; absent if there were none."""
    left = _LaunchFile("left.json")
    """Command lines of processes that still ran when a command had ended; absent if none did."""
    used = _LaunchFile("used.json")
    """What a command used, and the load of other processes; absent if it was ended with pytest."""
    launcher_log = _LaunchFile("launcher.log")
    torchrun_logs = _LaunchFile("torchrun")
    timeline = _LaunchFile("timeline.jsonl")
    worker_notes = _LaunchFile("workers.jsonl")
    """Notes of workers that run a script under a controller, line by line (``worker/site``)."""
    rank_notes = _LaunchFile("ranks.jsonl")
    """Notes of a command's ranks about their start and what they raised (``worker/site``)."""
    checkpoints = _LaunchFile("checkpoints")
    last_step = _LaunchFile("last_step")
    """Step after which a training may end whose plan has been completed; absent before."""
    trouble = _LaunchFile("trouble.txt")
    """Why the command or controller below a guardian did not complete; absent if it did."""
    pool_timeline = _LaunchFile("pool.jsonl")

    def job(self, index: int) -> LaunchFiles:
        return LaunchFiles(self.directory / f"job{index}")

    def jobs(self) -> list[LaunchFiles]:
        return [LaunchFiles(path) for path in self.directory.glob("job*/")]

    def serving_log(self, slot: int) -> Path:
        return self.directory / f"serving{slot}.log"

    def agent_log(self, slot: int) -> Path:
        return self.directory / f"agent{slot}.log"

    @property
    def nccl_flight_prefix(self) -> str:
        """Path prefix to which NCCL appends the rank when it gives up and dumps its flight recorder."""
        return str(self.directory / "nccl-flight-")

    def report(self, rank: int) -> Path:
        """Report of a rank: what it recorded, and how it ended."""
        return self.directory / f"rank{rank}.json"

    def log(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.log"

    def logs(self) -> list[Path]:
        return sorted(self.directory.glob("rank*.log"))

    def stacks(self, rank: int) -> Path:
        return self.directory / f"stacks{rank}.txt"

    def flight(self, rank: int) -> Path:
        return self.directory / f"flight{rank}.json"

    def groups(self, rank: int) -> Path:
        """Ranks of every process group that a rank knows; written before its flight recorder."""
        return self.directory / f"groups{rank}.json"

    def awaited(self, rank: int) -> Path:
        """File that a rank waits for; written before its flight recorder, and only if there is one."""
        return self.directory / f"awaited{rank}.json"

    def trace(self, rank: int, loop: int) -> Path:
        """What torch's profiler recorded of a rank in one of its loops, by number."""
        return self.directory / f"trace{rank}-{loop}.json"

    def whole_trace(self, rank: int) -> Path:
        """Profile of all loops of a rank, gzipped, in a folder that stays."""
        return self.directory / f"rank{rank}.json.gz"

    def places(self, rank: int) -> Path:
        """Time of the iterations of a rank's loops, by line of the code."""
        return self.directory / f"places{rank}.json"

    def loops(self, rank: int) -> Path:
        """Keys of a rank's loops; written when the rank has written all of its traces."""
        return self.directory / f"loops{rank}.json"

    def joined(self) -> list[int]:
        """Sizes of the process groups that processes of a command joined; 0 for one that could have joined."""
        return [int(size) for path in self.directory.glob("joined*") if (size := path.name[6:]).isdecimal()]

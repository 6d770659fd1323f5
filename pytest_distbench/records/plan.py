"""A launch as it was asked for, and as it is made: what runs, where, and everything its processes need to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.network import Network
from pytest_distbench.records.reader import Reader
from pytest_distbench.records.record import Record, replace
from pytest_distbench.records.work import Command, Job, Pool, Ranks, Work

PLACEHOLDERS = ("{launch_dir}", "{data_dir}", "{seed}", "{world_size}")
"""What a test may write in arguments, variables and the working folder of a script."""

_Kind = TypeVar("_Kind", bound=Work)


class Workplace(Record, frozen=True, kw_only=True):
    """Where the processes of a launch run."""

    folder: str = ""
    """With placeholders; empty: where pytest runs."""
    is_mirrored: bool = False
    """They run not in the folder itself, but in one of the launch's own in which all of it is linked."""
    variables: dict[str, str] = {}
    """Added to the environment, with placeholders."""


class LaunchRequest(Record, frozen=True, kw_only=True):
    """What to launch."""

    title: str = ""
    """Of the case, slashes separating folders: what its logs are kept under."""
    work: Ranks | Command | Job | Pool
    """A file holds one of these; a kind of launch that was added may have another, which no file holds."""
    workplace: Workplace = Workplace()
    read: dict[str, Reader] = {}
    """Metrics to be read after the launch, by name; no business of its processes."""
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    timeout_s: float
    delay: float = 0.0
    """What is timed takes longer by this share of itself: a slowdown that is planted."""
    profiled: Literal["", "loops", "whole"] = ""
    """What torch's profiler looks at in its ranks, for a trace: its clocks are no measurements then."""
    cores: int | None = None
    """Of this host, where there are fewer of them than ranks, and the test has asked for it: it is oversubscribed."""
    cpus: float | None = None
    """CPU quota of each rank, in cores: of its process, and of all that this starts. None: it has none."""
    network: Network | None = None
    """Between its ranks, that was chosen; None: whatever there is."""


class LaunchPlan(LaunchRequest, frozen=True, kw_only=True):
    """A request made ready to be launched: everything a rank needs to know, read from :attr:`LaunchFiles.plan`."""

    index: int
    only: list[str] = []
    """Metrics whose answer is still open; a body may leave out the others. Empty: measure everything."""
    test_ends_at: float | None = None
    """CLOCK_MONOTONIC seconds at which somebody else ends the test: the launch has to be over, and told of, before."""
    directory: str
    """Private directory of this launch: plan, control socket, logs, rank reports."""
    address: str = ""
    """Where a rank reaches its line: a Unix socket of its host, filled in by the site that the rank lives on."""
    data_dir: str
    """Shared by all launches of a run: a place for data made once."""
    working_dir: str = ""
    """Where its processes run, once the launch is settled (``launch/workplace.py``)."""
    python_path: list[str]
    variables: dict[str, str]
    devices: list[int] = []
    """Index of the CUDA device of each local rank; empty on the CPU."""
    shares_gpu: bool = False
    """Several ranks run on one GPU, which NCCL refuses unless each poses as a host of its own."""
    numa_binding: str = ""
    """Which CPUs near its GPU a rank is bound to, a mode of torchrun's; empty: it may run on all."""
    post_mortem: bool = False
    """An attached rank starts pdb where its body raised."""
    reports_progress: bool = False
    preload: list[str] = []
    """Modules to import once for all processes, where what starts them can."""
    cpu_groups: list[str] = []
    """Folder of the control group of each rank, which is there while the launch runs; empty: no quota."""
    network_place: str = ""
    """Folder of the links to the network namespaces of its hosts, which are there while the launch runs; empty: no
    network is made for it."""
    set_threads: int | None = None
    """Intra-op threads to set in a rank that did not import torch itself; None leaves them alone."""
    tree: str = ""
    """Where the revision is checked out that this group measures; empty: it measures the tree that pytest runs in."""
    foreign_tree: str = ""
    """The working tree, from which a group with a ``tree`` of its own may import no module."""

    @classmethod
    def of(cls, request: LaunchRequest, **ready: Any) -> Self:
        """The plan of a request, and what makes it ready."""
        return cls(**{**{name: getattr(request, name) for name in LaunchRequest.__struct_fields__}, **ready})

    @classmethod
    def read_from(cls, path: str | Path) -> Self:
        """The plan that lies in a file."""
        return msgspec.json.decode(Path(path).read_bytes(), type=cls)

    def expect(self, kind: type[_Kind]) -> _Kind:
        """The work, which is of this kind."""
        assert isinstance(self.work, kind), f"wanted {kind.__name__}, found {type(self.work).__name__}"
        return self.work

    def of_job(self, index: int) -> Self:
        """The plan of one job of a pool, which lies in a folder of its own."""
        pool = self.expect(Pool)
        wanted = pool.sharing.jobs[index]
        task = pool.tasks[wanted.name]
        return replace(
            self,
            work=Job(body=task.body, params=task.params, seeds=task.seeds, job=wanted.job),
            world_size=wanted.job.most,
            directory=str(self.files.job(index).directory),
        )

    @property
    def processes(self) -> int:
        """That report what they recorded; they are numbered from 0, as ranks are where each has one."""
        return self.work.processes(self.world_size)

    @property
    def files(self) -> LaunchFiles:
        """Where the launch's files are."""
        return LaunchFiles(Path(self.directory))

    def fill(self, text: str) -> str:
        """A text of the test's with the values of this launch for its placeholders (:data:`PLACEHOLDERS`)."""
        values = {
            "{launch_dir}": str(self.files.work),
            "{data_dir}": self.data_dir,
            "{seed}": str(self.work.seeds[0]),
            "{world_size}": str(self.world_size),
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text

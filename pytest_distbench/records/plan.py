"""Everything a rank needs to know before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pytest_distbench.records.elastic import ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.pool import Pool
from pytest_distbench.records.reader import Reader
from pytest_distbench.records.record import Record


class BodyReference(Record, frozen=True, kw_only=True):
    """What runs: a function in a file, a whole script (no ``function``), or a command."""

    file: str
    function: str = ""
    module: str = ""
    """Of a function: the module name pytest knows its file by; used where it leads to the same file. Of a script: the
    name it is run by, as ``python -m`` does; empty: it is run by its file."""
    is_rewritten: bool = False
    """Whether pytest rewrote the assertions of that module."""
    instance: dict[str, Any] | None = None
    """Of a method: the attributes that the object it was taken from had; None: it is no method of an object."""
    left_out: list[str] = []
    """Attributes of that object that cannot be handed to a rank."""
    arguments: list[str] = []
    """Command line of a script, with placeholders."""
    command: list[str] = []
    """A command that starts its processes itself, with placeholders; empty: ranks are started that run the file."""
    makes_group: bool = True
    """Of a script or a command: it is expected to make a process group. Of a function: it is given one, else it makes
    its own, or none."""
    given_at: str = ""
    """The line of the test that gave it: ``test_a.py:12``."""

    @property
    def is_script(self) -> bool:
        """Whether it is run as a program, not called."""
        return not self.function

    @property
    def is_given_a_group(self) -> bool:
        """Whether it begins in a process group."""
        return not self.is_script and self.makes_group


class Work(Record, frozen=True, kw_only=True):
    """What one of several jobs runs."""

    body: BodyReference
    params: dict[str, Any]
    seeds: list[int]


PLACEHOLDERS = ("{launch_dir}", "{data_dir}", "{seed}", "{world_size}")
"""What a test may write in arguments, variables and the working folder of a script."""


class LaunchPlan(Record, frozen=True, kw_only=True):
    """Everything a rank needs to know, read from :attr:`LaunchFiles.plan`."""

    index: int
    world_size: int
    stands_for: int | None = None
    """The one rank that there is a process for, on the backend ``fake``; None: each rank has one."""
    backend: str
    device: Literal["cpu", "cuda"]
    body: BodyReference
    params: dict[str, Any]
    seeds: list[int]
    """The body runs once for each."""
    timeout_s: float
    test_ends_at: float | None = None
    """CLOCK_MONOTONIC seconds at which somebody else ends the test: the launch has to be over, and told of, before."""
    directory: str
    """Private directory of this launch: plan, control socket, logs, rank reports."""
    address: str = ""
    """Where a rank reaches its line: a Unix socket of its host, filled in by the site that the rank lives on."""
    data_dir: str
    """Shared by all launches of a run: a place for data made once."""
    working_dir: str
    """Where the ranks run; empty: in the launch's own folder for files (:attr:`LaunchFiles.work`)."""
    mirrored: str = ""
    """A folder whose entries are linked into the launch's own, so that what is there is found by its relative path."""
    python_path: list[str]
    variables: dict[str, str]
    read: dict[str, Reader] = {}
    """Metrics to be read after the launch, by name; no business of the ranks."""
    own_variables: dict[str, str] = {}
    """What the test adds to them, with placeholders."""
    devices: list[int] = []
    """Index of the CUDA device of each local rank; empty on the CPU."""
    shares_gpu: bool = False
    """Several ranks run on one GPU, which NCCL refuses unless each poses as a host of its own."""
    numa_binding: str = ""
    """Which CPUs near its GPU a rank is bound to, a mode of torchrun's; empty: it may run on all."""
    attached: int | None = None
    """The rank that owns the terminal; None: every rank writes to its log."""
    post_mortem: bool = False
    """The attached rank starts pdb where its body raised."""
    only: list[str] = []
    """Metrics whose answer is still open; a body may leave out the others. Empty: measure everything."""
    reports_progress: bool = False
    preload: list[str] = []
    """Modules to import once for all workers of an elastic job, where its engine can."""
    set_threads: int | None = None
    """Intra-op threads to set in a rank that did not import torch itself; None leaves them alone."""
    takes_turns: bool = False
    """Another group runs beside this one: every rank waits for its group's turn before each block of iterations."""
    elastic: ElasticJob | None = None
    """What changes the membership of the group; None: nothing does."""
    pool: Pool | None = None
    """Jobs that share slots; None: there is one, and it has what it needs."""
    works: dict[str, Work] = {}
    """What runs in the pool, by the owners of its slots."""
    tree: str = ""
    """Where the revision is checked out that this group measures; empty: it measures the working tree."""
    foreign_tree: str = ""
    """The working tree, from which a group with a ``tree`` of its own may import no module."""

    @property
    def processes(self) -> int:
        """That are started; they are numbered from 0, as ranks are where each has one."""
        return self.world_size if self.stands_for is None else 1

    @property
    def files(self) -> LaunchFiles:
        """Where the launch's files are."""
        return LaunchFiles(Path(self.directory))

    def fill(self, text: str) -> str:
        """A text of the test's with the values of this launch for its placeholders (:data:`PLACEHOLDERS`)."""
        values = {
            "{launch_dir}": str(self.files.work),
            "{data_dir}": self.data_dir,
            "{seed}": str(self.seeds[0]),
            "{world_size}": str(self.world_size),
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text

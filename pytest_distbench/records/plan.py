"""Everything a rank needs to know before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.record import Record


class BodyReference(Record, frozen=True, kw_only=True):
    """Where a rank finds what it runs: a function in a file, or a whole script (no ``function``)."""

    file: str
    function: str = ""
    module: str = ""
    """The module name pytest knows the file by; used where it leads to the same file."""
    is_rewritten: bool = False
    """Whether pytest rewrote the assertions of that module."""
    arguments: list[str] = []
    """Command line of a script."""


class LaunchPlan(Record, frozen=True, kw_only=True):
    """Everything a rank needs to know, read from :attr:`LaunchFiles.plan`."""

    index: int
    world_size: int
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
    data_dir: str
    """Shared by all launches of a run: a place for data made once."""
    working_dir: str
    python_path: list[str]
    variables: dict[str, str]
    devices: list[int] = []
    """Index of the CUDA device of each local rank; empty on the CPU."""
    shares_gpu: bool = False
    """Several ranks run on one GPU, which NCCL refuses unless each poses as a host of its own."""
    attached: int | None = None
    """The rank that owns the terminal; None: every rank writes to its log."""
    post_mortem: bool = False
    """The attached rank starts pdb where its body raised."""
    only: list[str] = []
    """Metrics whose answer is still open; a body may leave out the others. Empty: measure everything."""
    reports_progress: bool = False
    set_threads: int | None = None
    """Intra-op threads to set in a rank that did not import torch itself; None leaves them alone."""
    takes_turns: bool = False
    """Another group runs beside this one: every rank waits for its group's turn before each block of iterations."""
    tree: str = ""
    """Where the revision is checked out that this group measures; empty: it measures the working tree."""
    foreign_tree: str = ""
    """The working tree, from which a group with a ``tree`` of its own may import no module."""

    @property
    def files(self) -> LaunchFiles:
        """Where the launch's files are."""
        return LaunchFiles(Path(self.directory))

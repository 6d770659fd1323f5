"""Requests and plans of launches: what runs, where, and everything its processes need to know.

Ranks, a command, or what an extension adds may run. Each is a kind of launch, whose row in ``run/kinds.py`` says how it
is run. Fields of one kind alone stand in its record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec

from pytest_distbench.extensions import Table
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.record import Record, replace

Change = Callable[[str], str]  # what becomes of a word, or of a path


class BodyReference(Record, frozen=True, kw_only=True):
    """Name of what a rank runs: a function in a file, or a whole script (no ``function``)."""

    file: str
    function: str = ""
    module: str = ""
    """Module name by which pytest knows a function's file, used if it leads to the same file. For a script, the name
    that it is run by, as with ``python -m``, or "" if it is run by its file."""
    is_rewritten: bool = False  # whether pytest rewrote the assertions of that module
    instance: dict[str, Any] | None = None
    """Attributes of the object that a method was taken from, or None for a function."""
    left_out: list[str] = []  # attributes of that object that cannot be passed to a rank
    arguments: list[str] = []  # command line of a script, with placeholders
    makes_group: bool = True
    """Whether a script is expected to make a process group, or a function is given one; else it may make its own."""
    called_by: str = ""
    """Function ``package.module:function`` that is called with the rank and the object, if that is no function."""
    given_at: str = ""  # line of the test that gave it: ``test_a.py:12``

    @property
    def is_script(self) -> bool:
        return not self.function

    @property
    def is_given_a_group(self) -> bool:
        """Whether the function or script begins inside a process group that this package has made."""
        return not self.is_script and self.makes_group


class _AnyKind:
    """Type annotation of fields that hold work of any kind, which msgspec decodes by :func:`read_work`."""

    __slots__ = ()


class Work(_AnyKind, Record, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """What one launch runs. Its kind is the name of its class, in small letters."""

    params: dict[str, Any] = {}  # as its processes get them
    seeds: list[int] = msgspec.field(default_factory=lambda: [0])
    """Seeds, each of which is run; the first stands for ``{seed}``."""

    @property
    def kind(self) -> str:
        """Name of its kind: ``ranks``."""
        return sys.intern(str(self.__struct_config__.tag))  # the default of conditions, which msgspec knows by identity

    @property
    def is_program(self) -> bool:
        """Whether it runs a program, which may write files to its working folder, and no functions of ours."""
        return False

    @property
    def is_given_a_group(self) -> bool:
        return False

    @property
    def engine(self) -> str:
        """Name of the engine that changes the membership of its elastic jobs, or ""."""
        return ""

    @property
    def stands_for(self) -> int | None:
        """Rank that the one process stands for, on the backend ``fake``; or None if each rank has one."""
        return None

    @property
    def files(self) -> list[str]:
        return []

    def processes(self, world_size: int) -> int:
        """Number of processes that report what they recorded; numbered from 0, as ranks if each has one."""
        return world_size

    def outputs(self, world_size: int) -> int:
        """Number of processes whose output can be read, numbered from 0, as ranks if each has one."""
        return world_size

    def logs(self, files: LaunchFiles, world_size: int) -> list[tuple[int, Path]]:
        """(number shown before the lines, path) of each log file of a launch of this work."""
        return [(number, files.log(number)) for number in range(self.processes(world_size))]

    def with_words(self, change: Change) -> Self:
        del change
        return self

    def with_files(self, change: Change) -> Self:
        """The same work with ``change`` applied to the path of each file that it runs or its command line names."""
        del change
        return self


def _changing_paths(change: Change) -> Change:
    """Apply ``change`` to a word of a command line that is an absolute path or ends in one (``--config=/a/b``)."""

    def changed(word: str) -> str:
        name, separator, value = word.rpartition("=")
        return f"{name}{separator}{change(value)}" if Path(value).is_absolute() else word

    return changed


if TYPE_CHECKING:
    AnyWork = Work
else:
    AnyWork = _AnyKind


class Task(Work, frozen=True, kw_only=True):
    """A body and its parameters: what ranks or nodes run, and each job of a pool."""

    body: BodyReference

    @property
    def is_program(self) -> bool:
        return self.body.is_script

    @property
    def is_given_a_group(self) -> bool:
        return self.body.is_given_a_group

    @property
    def files(self) -> list[str]:
        return [self.body.file]

    def with_words(self, change: Change) -> Self:
        return replace(self, body=replace(self.body, arguments=list(map(change, self.body.arguments))))

    def with_files(self, change: Change) -> Self:
        there = self.with_words(_changing_paths(change))
        return replace(there, body=replace(there.body, file=change(self.body.file)))


class Ranks(Task, frozen=True, kw_only=True):
    """Work of a process group whose ranks this package's launchers start."""

    stands_for: int | None = None
    attached: int | None = None  # rank that owns the terminal; None: every rank writes to its log
    takes_turns: bool = False
    """Whether another group runs at the same time: ranks then wait for their group's turn before each block."""

    def processes(self, world_size: int) -> int:
        return world_size if self.stands_for is None else 1


class Command(Work, frozen=True, kw_only=True):
    """Work of a command that starts its own processes, such as ``accelerate launch``."""

    words: list[str]  # command line, the program first, with placeholders
    makes_group: bool = True  # it is expected to make a process group

    @property
    def is_program(self) -> bool:
        return True

    def outputs(self, world_size: int) -> int:
        del world_size  # whatever it starts, it prints to one place
        return 1

    def logs(self, files: LaunchFiles, world_size: int) -> list[tuple[int, Path]]:
        del world_size
        return [(0, files.log(0))]

    def with_words(self, change: Change) -> Self:
        return replace(self, words=list(map(change, self.words)))

    def with_files(self, change: Change) -> Self:
        return self.with_words(_changing_paths(change))


WORKS: Table[str, type[Work]] = Table("works", {"ranks": Ranks, "command": Command})  # by the name of their kind


def read_work(kind: type, found: Any) -> Any:
    """Read work from a file, as msgspec's ``dec_hook``."""
    assert kind is _AnyKind
    return msgspec.convert(found, WORKS[found["kind"]])


PLACEHOLDERS = ("{launch_dir}", "{data_dir}", "{seed}", "{world_size}")
"""Placeholders that a test may write in arguments, variables and the working folder of a script."""

_Kind = TypeVar("_Kind", bound=Work)


class LaunchRequest(Record, frozen=True, kw_only=True):
    """One case to launch: its work, world size and backend, and under which conditions."""

    title: str = ""  # of the case, slashes separating folders; its logs are kept under it
    work: AnyWork
    folder: str = ""  # where its processes run, with placeholders; "" for pytest's own
    is_mirrored: bool = False
    """Whether processes run in a folder of the launch's own, with links to all files of ``folder``."""
    own_variables: dict[str, str] = {}  # added to the environment, with placeholders
    read: dict[str, Reader] = {}  # metrics to be read after the launch, by name; its processes do not know them
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    timeout_s: float
    delay: float = 0.0  # injected slowdown: what is timed takes longer by this share of itself
    profiled: Literal["", "loops", "whole", "places", "memory"] = ""
    """What torch's profiler records for a trace, or ``places``, ``memory`` these too; timings are no measurements."""
    cores: int | None = None
    """Cores of this host if they are fewer than ranks, at the test's request: the case is oversubscribed."""
    cpus: float | None = None
    """CPU quota of each rank, its process and all that it starts, in cores; or None."""
    chosen: dict[str, str] = {}
    """What a test chose to have around it, by the name of the choice: ``{"network": "1gbit"}``."""


class LaunchPlan(LaunchRequest, frozen=True, kw_only=True):
    """A request made ready to launch: everything a rank needs to know, read from :attr:`LaunchFiles.plan`."""

    index: int
    only: list[str] = []
    """Metrics whose answer is still open; a body may leave out the others. Empty: measure everything."""
    test_ends_at: float | None = None
    """CLOCK_MONOTONIC seconds at which somebody else ends the test: the launch must end and be reported before."""
    directory: str  # private directory of this launch: plan, control socket, logs, rank reports
    address: str = ""
    """Unix socket of its host through which a rank reports; filled in by the rank's site."""
    data_dir: str  # shared by all launches of a run: a place for data made once
    working_dir: str = ""  # where its processes run, once ``launch/workplace.py`` has prepared it
    python_path: list[str]
    variables: dict[str, str]
    devices: list[int] = []  # index of the CUDA device of each local rank; empty on the CPU
    shares_gpu: bool = False  # several ranks run on one GPU, which NCCL refuses unless each poses as a host of its own
    numa_binding: str = ""  # which CPUs near its GPU a rank is bound to, a mode of torchrun's, or "" for all
    post_mortem: bool = False  # an attached rank starts pdb where its body raised
    reports_progress: bool = False
    notes_reads_below: str = ""  # folder; each rank notes which files in it it reads; "" for none
    preload: list[str] = []  # modules to import once for all processes, where what starts them can
    cpu_groups: list[str] = []
    """Folder of each rank's control group, which exists while the launch runs; empty without a quota."""
    namespaces: list[str] = []
    """Folder of links to the namespaces that each rank enters, ``net`` and perhaps ``user``, which exist while the
    launch runs; empty if it keeps its starter's."""
    rank_variables: list[dict[str, str]] = []  # environment of each rank there
    set_threads: int | None = None
    """Intra-op threads to set in a rank that did not import torch itself; None leaves them alone."""
    tree: str = ""
    """Checkout of the revision that this group measures, or "" for the tree that pytest runs in."""
    foreign_tree: str = ""  # working tree, from which a group with a ``tree`` of its own may import no module

    @classmethod
    def read_from(cls, path: str | Path) -> Self:
        return msgspec.json.decode(Path(path).read_bytes(), type=cls, dec_hook=read_work)

    def expect(self, kind: type[_Kind]) -> _Kind:
        assert isinstance(self.work, kind), f"wanted {kind.__name__}, found {type(self.work).__name__}"
        return self.work

    @property
    def processes(self) -> int:
        """Number of processes that report what they recorded; numbered from 0, as ranks if each has one."""
        return self.work.processes(self.world_size)

    @property
    def files(self) -> LaunchFiles:
        return LaunchFiles(Path(self.directory))

    def fill(self, text: str) -> str:
        """A text of the test with this launch's values for its placeholders (:data:`PLACEHOLDERS`)."""
        values = {
            "{launch_dir}": str(self.files.work),
            "{data_dir}": self.data_dir,
            "{seed}": str(self.work.seeds[0]),
            "{world_size}": str(self.world_size),
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text

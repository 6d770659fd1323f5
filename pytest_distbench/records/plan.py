"""A launch as it was asked for, and as it is made: what runs, where, and everything its processes need to know.

What runs is ranks of ours, a command, or what an extension adds. Each is a kind of launch, and has a row in
``run/kinds.py`` that says how it is run. What belongs to one kind alone stands in its record.
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
    """What a process of ours runs: a function in a file, or a whole script (no ``function``)."""

    file: str
    function: str = ""
    module: str = ""
    """Of a function: the module name pytest knows its file by; used where it leads to the same file. Of a script: the
    name it is run by, as ``python -m`` does; empty: it is run by its file."""
    is_rewritten: bool = False  # whether pytest rewrote the assertions of that module
    instance: dict[str, Any] | None = None
    """Of a method: the attributes that the object it was taken from had; None: it is no method of an object."""
    left_out: list[str] = []  # attributes of that object that cannot be handed to a rank
    arguments: list[str] = []  # command line of a script, with placeholders
    makes_group: bool = True
    """Of a script: it is expected to make a process group. Of a function: it is given one, else it makes its own, or
    none."""
    called_by: str = ""
    """Of what is no function: the one that is called with the rank and with it, ``package.module:function``."""
    given_at: str = ""  # the line of the test that gave it: ``test_a.py:12``

    @property
    def is_script(self) -> bool:
        return not self.function

    @property
    def is_given_a_group(self) -> bool:
        """Whether it begins in a process group."""
        return not self.is_script and self.makes_group


class _AnyKind:
    """What a record says whose work may be of any kind: msgspec asks :func:`read_work` for it."""

    __slots__ = ()


class Work(_AnyKind, Record, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """What one launch runs. The name of its class, in small letters, is that of its kind."""

    params: dict[str, Any] = {}  # as its processes get them
    seeds: list[int] = msgspec.field(default_factory=lambda: [0])
    """What runs, runs once for each; the first stands for ``{seed}``."""

    @property
    def kind(self) -> str:
        """The name of its kind: ``ranks``."""
        return sys.intern(str(self.__struct_config__.tag))  # the default of conditions, which msgspec knows by identity

    @property
    def is_program(self) -> bool:
        """Whether it runs what may leave files where it is run, and not functions of ours."""
        return False

    @property
    def is_given_a_group(self) -> bool:
        return False

    @property
    def engine(self) -> str:
        """What changes the membership of its jobs; empty: it has none."""
        return ""

    @property
    def stands_for(self) -> int | None:
        """The one rank that there is a process for, on the backend ``fake``; None: each rank has one."""
        return None

    @property
    def files(self) -> list[str]:
        return []

    def processes(self, world_size: int) -> int:
        """How many report what they recorded; they are numbered from 0, as ranks are where each has one."""
        return world_size

    def outputs(self, world_size: int) -> int:
        """Of how many what they print can be read; numbered in the same way."""
        return world_size

    def logs(self, files: LaunchFiles, world_size: int) -> list[tuple[int, Path]]:
        """What prints, by the number that is shown with its lines, and where that goes."""
        return [(number, files.log(number)) for number in range(self.processes(world_size))]

    def with_words(self, change: Change) -> Self:
        del change
        return self

    def with_files(self, change: Change) -> Self:
        """The same with the path of each file that it runs, or that its command line names, changed."""
        del change
        return self


def _changing_paths(change: Change) -> Change:
    """What changes a word of a command line whose path, if it is one or ends in one (``--config=/a/b``), changes."""

    def changed(word: str) -> str:
        name, separator, value = word.rpartition("=")
        return f"{name}{separator}{change(value)}" if Path(value).is_absolute() else word

    return changed


if TYPE_CHECKING:
    AnyWork = Work
else:
    AnyWork = _AnyKind


class Task(Work, frozen=True, kw_only=True):
    """A body, and what it is handed: what ranks or nodes run, and each job of a pool."""

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
    """A process group of ranks that a launcher of ours starts."""

    stands_for: int | None = None
    attached: int | None = None  # the rank that owns the terminal; None: every rank writes to its log
    takes_turns: bool = False
    """Another group runs beside this one: every rank waits for its group's turn before each block of iterations."""

    def processes(self, world_size: int) -> int:
        return world_size if self.stands_for is None else 1


class Command(Work, frozen=True, kw_only=True):
    """A command that starts its processes itself."""

    words: list[str]  # of its command line, the program first, with placeholders
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
    """A work that a file holds, as msgspec asks for it (``dec_hook``)."""
    assert kind is _AnyKind
    return msgspec.convert(found, WORKS[found["kind"]])


PLACEHOLDERS = ("{launch_dir}", "{data_dir}", "{seed}", "{world_size}")
"""What a test may write in arguments, variables and the working folder of a script."""

_Kind = TypeVar("_Kind", bound=Work)


class LaunchRequest(Record, frozen=True, kw_only=True):
    """What to launch."""

    title: str = ""  # of the case, slashes separating folders: what its logs are kept under
    work: AnyWork
    folder: str = ""  # where its processes run, with placeholders; empty: where pytest does
    is_mirrored: bool = False
    """They run not in the folder itself, but in one of the launch's own in which all of it is linked."""
    own_variables: dict[str, str] = {}  # added to the environment, with placeholders
    read: dict[str, Reader] = {}  # metrics to be read after the launch, by name; no business of its processes
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    timeout_s: float
    delay: float = 0.0  # what is timed takes longer by this share of itself: a slowdown that is planted
    profiled: Literal["", "loops", "whole", "places"] = ""
    """What torch's profiler looks at in its ranks, for a trace, or that places are recorded: its clocks are no
    measurements then."""
    cores: int | None = None
    """Of this host, where there are fewer of them than ranks, and the test has asked for it: it is oversubscribed."""
    cpus: float | None = None
    """CPU quota of each rank, in cores: of its process, and of all that this starts. None: it has none."""
    chosen: dict[str, str] = {}
    """What a test has chosen to be around it, by the name of the choice: ``{"network": "1gbit"}``."""


class LaunchPlan(LaunchRequest, frozen=True, kw_only=True):
    """A request made ready to be launched: everything a rank needs to know, read from :attr:`LaunchFiles.plan`."""

    index: int
    only: list[str] = []
    """Metrics whose answer is still open; a body may leave out the others. Empty: measure everything."""
    test_ends_at: float | None = None
    """CLOCK_MONOTONIC seconds at which somebody else ends the test: the launch has to be over, and told of, before."""
    directory: str  # private directory of this launch: plan, control socket, logs, rank reports
    address: str = ""
    """Where a rank reaches its line: a Unix socket of its host, filled in by the site that the rank lives on."""
    data_dir: str  # shared by all launches of a run: a place for data made once
    working_dir: str = ""  # where its processes run, once the launch is settled (``launch/workplace.py``)
    python_path: list[str]
    variables: dict[str, str]
    devices: list[int] = []  # index of the CUDA device of each local rank; empty on the CPU
    shares_gpu: bool = False  # several ranks run on one GPU, which NCCL refuses unless each poses as a host of its own
    numa_binding: str = ""  # which CPUs near its GPU a rank is bound to, a mode of torchrun's; empty: it may run on all
    post_mortem: bool = False  # an attached rank starts pdb where its body raised
    reports_progress: bool = False
    notes_reads_below: str = ""  # a folder; each rank notes which files in it it reads; empty: none does
    preload: list[str] = []  # modules to import once for all processes, where what starts them can
    cpu_groups: list[str] = []
    """Folder of the control group of each rank, which is there while the launch runs; empty: no quota."""
    namespaces: list[str] = []
    """Of each rank the folder of links to the namespaces that it enters, ``net`` and perhaps ``user``, which are there
    while the launch runs; empty: it has those of its starter."""
    rank_variables: list[dict[str, str]] = []  # of each rank its own environment there
    set_threads: int | None = None
    """Intra-op threads to set in a rank that did not import torch itself; None leaves them alone."""
    tree: str = ""
    """Where the revision is checked out that this group measures; empty: it measures the tree that pytest runs in."""
    foreign_tree: str = ""  # the working tree, from which a group with a ``tree`` of its own may import no module

    @classmethod
    def read_from(cls, path: str | Path) -> Self:
        return msgspec.json.decode(Path(path).read_bytes(), type=cls, dec_hook=read_work)

    def expect(self, kind: type[_Kind]) -> _Kind:
        assert isinstance(self.work, kind), f"wanted {kind.__name__}, found {type(self.work).__name__}"
        return self.work

    @property
    def processes(self) -> int:
        """That report what they recorded; they are numbered from 0, as ranks are where each has one."""
        return self.work.processes(self.world_size)

    @property
    def files(self) -> LaunchFiles:
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

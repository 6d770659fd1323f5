"""Start the launches of a run: its run directory, its launchers, and the plan of each launch."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_distbench import git
from pytest_distbench.errors import ConfigurationError, ExtensionError, LauncherError, ReadingError, blame, line_of
from pytest_distbench.launch.evidence import read_sign
from pytest_distbench.launch.fates import mask_record
from pytest_distbench.launch.starters import LAUNCHERS, Hosting, Launcher, LauncherKind, LauncherSetup
from pytest_distbench.launch.supervise import Side
from pytest_distbench.launch.trace import LoopTrace, read_places, read_traces
from pytest_distbench.machine import hardware
from pytest_distbench.machine.locks import turn_of_a_launch
from pytest_distbench.machine.secrets import mask_values, secret_values
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import is_of_a_group
from pytest_distbench.records.metric import UNASKED, metric_name
from pytest_distbench.records.places import RankPlaces
from pytest_distbench.records.plan import BodyReference, LaunchPlan, LaunchRequest, Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.run.against import (
    Candidate,
    LauncherKey,
    OtherSide,
    Variant,
    VariantKey,
    find_missed,
    ignored,
    outside,
    python_path,
)
from pytest_distbench.run.directory import RunDirectory
from pytest_distbench.run.kinds import AroundSetup, Surroundings, devices, kind_of, run_launch
from pytest_distbench.run.request import Settings
from pytest_distbench.worker import bodies
from pytest_distbench.worker.reads import read_notes

_Profiled = TypeVar("_Profiled")


@dataclass
class Launching:
    """The launches of one pytest run.

    Attributes:
        on_start: called before the first process starts.
        on_wait: shows a line during a wait for another run.
        on_output: gets (rank, line) of the ranks' output, or None to keep it in their logs alone.
        compared_with: the other side of A/B that the settings name, or None.
        test_ends_at: when the running test is ended from outside, in seconds of ``time.monotonic()``, or None.
        turn: makes the context in which each launch runs.
        host_is_busy: whether another run measures on this host, which the records say.
    """

    settings: Settings
    on_start: Callable[[], None] = lambda: None
    on_progress: Callable[[str], None] = lambda text: None
    on_wait: Callable[[str], None] = lambda text: None
    on_loaded: Callable[[float], None] = lambda seconds: None
    reports_progress: bool = False
    on_output: Callable[[int, str], None] | None = None
    post_mortem: bool = False
    compared_with: Variant | None = None
    test_ends_at: float | None = None
    turn: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    host_is_busy: bool = False
    _directory: RunDirectory | None = None
    _launchers: dict[LauncherKey, list[Launcher]] = field(default_factory=dict)
    _other_sides: dict[VariantKey, OtherSide] = field(default_factory=dict)
    root: Path = field(default_factory=Path.cwd)
    _unprepared: ExtensionError | None = None
    _began: float = field(default_factory=time.time)

    @functools.cached_property
    def surroundings(self) -> Surroundings:
        return Surroundings(AroundSetup(settings=self.settings, on_progress=self.on_progress))

    @property
    def directory(self) -> RunDirectory:
        if self._directory is None:
            self.on_start()
            try:
                self._directory = RunDirectory(self.settings.baselines, self.settings.logs)
            except OSError as error:
                raise _no_room(error) from error
        return self._directory

    def prepare(self) -> None:
        """Let the launchers load torch in the background; if they cannot, the first launch says why."""
        try:
            with contextlib.suppress(LauncherError), self._blaming_launcher():
                for side in [None] if self.compared_with is None else [None, self.compared_with]:
                    self._launcher(side).prepare(self._variables())
        except ExtensionError as error:
            self._unprepared = error

    @property
    def launcher_kind(self) -> LauncherKind:
        return LAUNCHERS[self.settings.launcher]

    @contextlib.contextmanager
    def one_at_a_time(self, *, is_alone: bool) -> Iterator[None]:
        """Let each launch wait for its turn on a shared host; its record says whether another run measures there."""
        if not (is_alone and self.settings.shares_host):
            self.turn = functools.partial(turn_of_a_launch, has_timings=is_alone)
        self.host_is_busy = not is_alone
        try:
            yield
        finally:
            self.turn, self.host_is_busy = contextlib.nullcontext, False

    def hosting(self, work: Work) -> Hosting:
        return kind_of(work).hosted_by(self.launcher_kind)

    def other_side(self, variant: Variant) -> OtherSide:
        if variant.key not in self._other_sides:
            if variant.is_exchanged and (
                first := self._other_sides.pop(replaced(variant, is_exchanged=False).key, None)
            ):
                first.close()  # its path is for the candidate
            launcher = functools.partial(self._launcher, variant)
            self._other_sides[variant.key] = OtherSide(variant, self.directory.path, launcher)
        return self._other_sides[variant.key]

    def release(self, variant: Variant) -> None:
        """Close the launchers and worktree of the other revision that a variant stands for, if there are any."""
        with contextlib.ExitStack() as last:
            if (side := self._other_sides.pop(variant.key, None)) is not None:
                last.callback(side.close)
            for launcher in self._launchers.pop(variant.launcher_key, []):
                last.callback(launcher.close)

    def _launcher(self, variant: Variant | None, number: int = 0) -> Launcher:
        """The launcher of the candidate or of another side, by number; sides with one Python share launchers."""
        known = self._launchers.setdefault(None if variant is None else variant.launcher_key, [])
        interpreter, folder = None if variant is None else variant.interpreter, self.directory.path
        while len(known) <= number:
            setup = LauncherSetup(
                directory=folder,
                session=uuid.uuid4().hex,  # of its own: the end of a launch must not end another
                preload=self._preload(variant or self.compared_with),
                interpreter=None if interpreter is None else interpreter.executable,
                python_path=None if interpreter is None else python_path(interpreter, folder, []),
                engine=self.settings.engine,
                on_progress=self.on_progress,
                on_loaded=self.on_loaded,
            )
            with self._blaming_launcher():
                known.append(self.launcher_kind.make(setup))
        return known[number]

    def _blaming_launcher(self) -> contextlib._GeneratorContextManager[None]:
        return blame(f"LAUNCHERS[{self.settings.launcher!r}]")

    def _preload(self, variant: Variant | None) -> tuple[str, ...]:
        return self.settings.preload if variant is None else outside(self.settings.preload, variant)

    def check_device(self) -> None:
        """Compute a number on the first GPU in a rank, to report once what would fail every test."""
        request = LaunchRequest(
            title="device",
            work=Ranks(
                body=BodyReference(
                    module=bodies.__name__, file=bodies.__file__, function=bodies.compute.__name__, makes_group=False
                )
            ),
            world_size=1,
            backend="gloo",  # it joins nothing; a torch that has no NCCL is to say why
            device="cuda",
            timeout_s=self.settings.timeout_s,
        )
        plan = self._plan(request, 0, self.compared_with)
        [record] = self._surrounded(plan, lambda side: [run_launch(plan, side)])
        assert record is not None
        shutil.rmtree(plan.directory, ignore_errors=True)
        if record.outcome == "failed":
            gpus, torch = self.settings.gpus, hardware.installed_version("torch")
            first = gpus.visible[0]
            newest = f" runs CUDA {gpus.cuda} at most" if gpus.cuda else ""
            where = f"{first.label} ({first.name}; driver {gpus.driver}{newest})"
            why = f"{record.reason.splitlines()[0]}. Next: python -c 'import torch; torch.ones(1, device=\"cuda\")'"
            error = record.fates[0].error if record.fates else None
            if error is not None and (sign := read_sign(error.message)) is not None and sign.advice:
                line = error.message.strip().splitlines()[0]
                why = f"{sign.meaning} ({error.kind}: {line}). Next: {sign.advice}"
            raise ConfigurationError(f"--gpu: torch {torch} cannot compute on {where}: {why}")

    def launch(self, request: LaunchRequest, index: int, *, only: Sequence[str] = ()) -> LaunchRecord:
        self.on_progress(f"launch {index + 1}")
        with self._room():
            plan = self._plan(request, index, self.compared_with, only=only)
            is_recording = self.settings.update is not None and index == 0
            if is_recording and isinstance(plan.work, Ranks):
                plan = replace(plan, notes_reads_below=self._repository)
            [record] = self._surrounded(plan, lambda side: [run_launch(plan, side)])
            if record is not None and record.outcome == "passed" and plan.notes_reads_below:
                record = self._with_unlinked(record, plan)
            kept = self._keep(record, plan)
        assert kept is not None
        return kept

    @functools.cached_property
    def _repository(self) -> str:
        try:
            found = git.run(self.root, "rev-parse", "--show-toplevel")
        except OSError:
            return ""
        return "" if found.returncode else os.path.realpath(found.stdout.removesuffix("\n"))

    def _with_unlinked(self, record: LaunchRecord, plan: LaunchPlan) -> LaunchRecord:
        root, read = Path(self._repository), read_notes(plan.directory)
        linked = [(self.root / name).resolve() for name in self.settings.against_link]
        unlinked = [
            os.path.relpath(root / name, self.root)
            for name in ignored(root, read, self._began)
            if not any((root / name).is_relative_to(link) for link in linked)
        ]
        return replace(record, unlinked=unlinked)

    def launch_pair(
        self, variant: Variant, request: LaunchRequest, index: int, *, only: Sequence[str], times: int = 1
    ) -> list[LaunchRecord | None]:
        """Launch the candidate interleaved with ``times`` launches of a variant; return their records in this order.

        The record of a launch that was ended because another failed is None.
        """
        self.on_progress(f"pair {index + 1}")
        with self._room():
            ours, *theirs = [self._plan(request, index, variant, only=only) for _ in range(1 + times)]
            is_usual = ours.preload == [*self._preload(self.compared_with)] and not variant.is_exchanged

            def run(side: Side) -> list[LaunchRecord | None]:
                if not is_usual:  # the launcher of the candidate has preloaded other modules
                    side = replaced(side, launcher=functools.partial(self._launcher, variant, times))
                return self.other_side(variant).launch(side, ours, theirs)

            here, *there = self._surrounded(ours, run)
            return [
                self._keep(here, ours),
                *(self._keep(r, p, "reference") for r, p in zip(there, theirs, strict=True)),
            ]

    def launch_other(self, variant: Variant, request: LaunchRequest, index: int) -> LaunchRecord:
        """Launch a variant alone."""
        with self._room():
            plan, other = self._plan(request, index, variant), self.other_side(variant)
            [record] = self._surrounded(plan, lambda side: [other.launch_alone(side, plan)])
            kept = self._keep(record, plan, "reference")
        assert kept is not None
        return kept

    def profile(self, request: LaunchRequest, index: int, variant: Variant | None) -> list[LoopTrace]:
        """Launch the candidate or a variant under torch's profiler, and return the traces alone.

        A body without a timed loop is launched again and profiled as a whole.

        Raises:
            ReadingError: the launch did not pass, or its traces are incomplete or empty.
        """
        self.on_progress("trace")
        found = self._profile(replace(request, profiled="loops"), index, variant, read_traces)
        found = found or self._profile(replace(request, profiled="whole"), index, variant, read_traces)
        if all(trace.is_empty for trace in found):
            raise ReadingError("the profiler recorded nothing: the body runs nothing of torch")
        return found

    def places(self, request: LaunchRequest, index: int, variant: Variant | None, *, memory: bool) -> list[RankPlaces]:
        """Launch the candidate or a variant, and return the lines in which its ranks spend their time alone.

        With ``memory`` also those that hold it.

        Raises:
            ReadingError: the launch did not pass, or a rank recorded nothing.
        """
        self.on_progress("places")
        return self._profile(replace(request, profiled="memory" if memory else "places"), index, variant, read_places)

    def _profile(
        self,
        request: LaunchRequest,
        index: int,
        variant: Variant | None,
        read: Callable[[LaunchPlan], list[_Profiled]],
    ) -> list[_Profiled]:
        with self._room():
            plan = self._plan(request, index, variant or self.compared_with)
            try:
                other = None if variant is None else self.other_side(variant)

                def run(side: Side) -> list[LaunchRecord | None]:
                    side = replaced(side, on_output=None)
                    return [run_launch(plan, side) if other is None else other.launch_alone(side, plan)]

                [record] = self._surrounded(plan, run)
                assert record is not None
                if record.outcome != "passed":
                    raise ReadingError(mask_record(record, _secrets(plan)).reason.splitlines()[0])
                return read(plan)
            finally:
                shutil.rmtree(plan.directory, ignore_errors=True)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Convert an OSError of the code inside: TMPDIR is full, unless a file elsewhere is missing or not allowed."""
        if self._unprepared is not None:
            raise self._unprepared
        try:
            yield
        except OSError as error:
            is_of_others = isinstance(error, FileNotFoundError | PermissionError) and error.filename
            if not is_of_others or Path(os.fsdecode(error.filename)).is_relative_to(tempfile.gettempdir()):
                raise _no_room(error) from error
            under = f"a launch under --distbench-launcher={self.settings.launcher} needs it"
            where = f"{error.filename}{line_of(error)}"
            raise LauncherError(f"cannot start ranks: {error.strerror}: {where}: {under}") from error

    def _surrounded(
        self, plan: LaunchPlan, run: Callable[[Side], Sequence[LaunchRecord | None]]
    ) -> list[LaunchRecord | None]:
        """Run one or several launches inside the code around every launch; return their complete records."""
        show, secrets = self.on_output, _secrets(plan)

        def masked(rank: int, line: str) -> None:
            assert show is not None
            show(rank, mask_values(line, secrets))

        launcher, on_output = functools.partial(self._launcher, None), show and masked
        side = Side(launcher=launcher, on_progress=self.on_progress, on_output=on_output)
        with self.turn(), self.surroundings.during(plan, self.hosting(plan.work)) as describe:
            records = run(side)
        return [record and replace(describe(record), host_was_busy=self.host_is_busy) for record in records]

    def _plan(
        self, request: LaunchRequest, index: int, variant: Variant | None, *, only: Sequence[str] = ()
    ) -> LaunchPlan:
        variables = self._variables()
        working_dir = _working_dir()
        hosting = self.hosting(request.work)
        # as OpenMP reads its variable: a list is one number per nesting level
        threads = variables.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        threads_set = int(threads) if threads.isdecimal() and int(threads) > 0 else hardware.cores()
        plan = LaunchPlan(
            **msgspec.structs.asdict(replace(request, folder=request.folder or working_dir)),
            index=index,
            test_ends_at=self.test_ends_at,
            directory=str(self.directory.next_launch()),
            data_dir=str(self.directory.data),
            python_path=[p or working_dir for p in sys.path],
            variables=variables,
            devices=devices(self.settings.gpus, request.world_size),
            shares_gpu=self.settings.shares_gpu,
            numa_binding=self.settings.numa_binding,
            post_mortem=self.post_mortem,
            only=[] if {*UNASKED} & {*map(metric_name, only)} else list(only),  # metrics of a whole launch
            preload=list(self._preload(variant)),
            reports_progress=self.reports_progress,
            set_threads=threads_set if hosting.sets_threads else None,
        )
        if self.compared_with is not None and (judged := self.compared_with.judged) is not None:
            plan = Candidate(judged, self.directory.path, functools.partial(self._launcher, None)).move(plan)
        return self.surroundings.ready(plan, hosting, self.directory.path)

    def forget(self, record: LaunchRecord) -> None:
        """Remove the logs of a failed launch that is no failure of the case."""
        self.directory.failed -= 1
        shutil.rmtree(record.logs, ignore_errors=True)

    def _keep(self, record: LaunchRecord | None, plan: LaunchPlan, side: str = "") -> LaunchRecord | None:
        """Mask the secrets in the record of a launch, and hand its folder to the run directory."""
        if record is None:
            shutil.rmtree(plan.directory, ignore_errors=True)
            return None
        judged = self.compared_with.judged if self.compared_with is not None else None
        if judged is not None and record.outcome == "failed" and not side:
            trees = {"root": Path(judged.root), "tree": Path(judged.candidate), "folder": Path(plan.folder)}
            if missed := find_missed(record, **trees):
                of_base = "of the change was not used: by its name or folder it judges, and is the base's"
                record = replace(record, reason=f"{missed[0]} {of_base} ({record.reason})")
        self.directory.take(record, plan.title, side)
        return mask_record(record, _secrets(plan))

    def _variables(self) -> dict[str, str]:
        """The environment of pytest without the variables of an outer torchrun, plus those of torchrun and launcher."""
        variables = {k: v for k, v in os.environ.items() if not is_of_a_group(k)} | dict(self.settings.gpus.variables)
        variables.setdefault("OMP_NUM_THREADS", "1")  # for one rank too, so that it compares with two
        for name, value in self.launcher_kind.variables.items():
            variables.setdefault(name, value)
        return variables

    def end_test(self) -> None:
        if self._directory is not None:
            self._directory.forget()

    def close(self) -> None:
        """End the launchers and remove the worktree; the run directory stays if a launch failed."""
        sides, self._other_sides = self._other_sides, {}
        launchers, self._launchers = self._launchers, {}
        directory, self._directory = self._directory, None
        with contextlib.ExitStack() as last:  # in reverse order, each even if another fails
            if directory is not None:
                last.callback(directory.close)
            for side in sides.values():
                last.callback(side.close)
            for launcher in itertools.chain.from_iterable(launchers.values()):
                last.callback(self._blaming_launcher()(launcher.close))
            if "surroundings" in vars(self):
                self.surroundings.close()


def _secrets(plan: LaunchPlan) -> list[str]:
    return secret_values({**plan.variables, **plan.own_variables})


def _working_dir() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise LauncherError(
            f"cannot start ranks: pytest's working directory, in which they run, is gone: {error.strerror}. Did a "
            f"test or a body remove it?"
        ) from error


def _no_room(error: OSError) -> LauncherError:
    where = f": {error.filename}" if error.filename else ""
    return LauncherError(
        f"cannot start ranks: {error.strerror or error}{where}. The run directory is below TMPDIR, which must be "
        "writable and have free space"
    )

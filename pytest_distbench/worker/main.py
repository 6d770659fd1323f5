"""One rank's life: environment, logs, import, rendezvous, body, report, teardown.

Both launchers call :func:`run_rank`; ``torchrun`` starts ``python -m pytest_distbench.worker rank PLAN``.
"""

from __future__ import annotations

import contextlib
import os
import pdb
import time
from collections.abc import Callable, Iterator
from os import getpid  # bodies patch os
from typing import Any, NoReturn

import msgspec
import torch

from pytest_distbench.errors import LauncherError
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import ErrorReport, Outcome, Phase, RankReport
from pytest_distbench.records.metric import WALL_TIME
from pytest_distbench.records.plan import WORKS, LaunchPlan, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.records.trained import Trained
from pytest_distbench.records.wire import SESSION_VARIABLE
from pytest_distbench.worker import bodies, process, script
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.forked import check_fork, make_independent
from pytest_distbench.worker.leaving import classify, describe, flush_output, leave, user_frames, without_values
from pytest_distbench.worker.line import ControlLine
from pytest_distbench.worker.load import LoadWindow, oldest_marked, usable_cpus
from pytest_distbench.worker.membership import join_group, keep_destroyed_groups, leave_group
from pytest_distbench.worker.process import MemoryPeak
from pytest_distbench.worker.reads import note_reads
from pytest_distbench.worker.script import run_script, watched_steps
from pytest_distbench.worker.torch_internals import (
    find_collectives,
    join_fake_groups_only,
    places_of_destroy,
    stand_around_rebuilds,
)

BODY = "body"  # key of the fingerprint of a body that has no loop, where all of it is looked at
HOLD_S = 120.0  # how long a rank that did not pass waits to be ended: pytest looks at its peers first


def prepare() -> None:
    """Compute once, before ranks are forked, what each would compute: half of the CPU time of a short launch."""
    len(METRIC_KINDS)  # reads the rows of extensions
    for record in (LaunchPlan, Trained, *WORKS.values()):
        msgspec.json.Decoder(record)  # which types its fields have is kept with the class
    find_collectives()
    places_of_destroy()


def run_forked_rank(plan_path: str) -> NoReturn:
    """:func:`run_rank` in a process that was forked with torch loaded."""
    make_independent()
    run_rank(plan_path)


def run_rank(plan_path: str) -> NoReturn:
    """Run the plan in this process as the rank that the environment names, and end the process."""
    plan = LaunchPlan.read_from(plan_path)
    work = plan.expect(Ranks)
    rank = int(os.environ["RANK"])
    is_attached = rank == work.attached
    before = os.dup(2)
    process.take_output(plan.files.log(rank))  # first: whatever goes wrong is written there
    if plan.cpu_groups:
        process.enter_control_group(plan.cpu_groups[rank])
    process.take_environment(plan)
    if plan.notes_reads_below:
        note_reads(plan.notes_reads_below, plan.directory, rank)
    if plan.namespaces:
        process.enter_namespaces(plan, rank)
    if not work.is_program:
        process.take_program(work.body.file)
    process.take_signals(plan.files.stacks(rank))
    control = _connect(plan, rank, before, is_attached=is_attached)
    process.report_threads(lambda what: control.send("remark", what))
    if is_attached:
        process.take_terminal()
    else:
        process.forbid_breakpoints(rank, work.attached)
    life = _Life(plan, rank, control)
    life.largest_group = keep_destroyed_groups()
    stand_around_rebuilds(life.context.watch.apart)
    life.run()
    _end(control)


def _connect(plan: LaunchPlan, rank: int, before: int, *, is_attached: bool) -> ControlLine:
    """Connect the rank; on failure write the reason to its log and to ``before``, the former stderr, and end it."""
    try:
        return ControlLine(plan, rank, is_attached=is_attached)
    except LauncherError as error:
        for descriptor in (2, before):
            with contextlib.suppress(OSError):
                os.write(descriptor, f"{error}\n".encode(errors="backslashreplace"))
        os._exit(1)
    finally:
        os.close(before)


class _Life:
    def __init__(self, plan: LaunchPlan, rank: int, control: ControlLine) -> None:
        self.plan = plan
        self.work = plan.expect(Ranks)
        self.rank = rank
        self.control = control
        self.current: Phase = "start"
        self.seconds: dict[str, float] = {"begin": HostClock.monotonic()}
        self.undescribed_collectives = 0
        self.context = RankContext(plan, control)
        looks_for = None if rank else oldest_marked(SESSION_VARIABLE)
        self.window = LoadWindow(looks_for, usable_cpus())  # the launch's: before this rank is bound to some of them
        self.memory = MemoryPeak(plan)
        self.largest_group: Callable[[], int] = lambda: 0
        self.trained = Trained()

    def run(self) -> None:
        outcome: Outcome = "passed"
        reason = ""
        error: ErrorReport | None = None
        pid = getpid()
        try:
            self._measure()
        except BaseException as raised:  # noqa: BLE001 a rank reports whatever ended it, KeyboardInterrupt and SystemExit included
            outcome, reason, error = classify(raised)
            if self.context.only_structure and outcome == "failed":
                outcome, error = without_values(raised, error)
            if self.plan.post_mortem and self.rank == self.work.attached and outcome == "failed":
                pdb.post_mortem(user_frames(raised) or raised.__traceback__)
        if getpid() != pid:
            os._exit(0)  # a child the body forked and let run on: the rank is its parent
        flush_output()
        self._report(outcome, reason, error)
        if outcome == "skipped":
            leave(lambda what: None)  # now, as pytest ends the ranks when all have skipped
        if outcome != "passed":
            self.control.send(outcome)
            # Its exit would make whoever started it end the peers, which have reports to write and stacks to show.
            time.sleep(HOLD_S)
            os._exit(1)
        self.control.send("done")
        self.control.wait_until_all_joined()
        self.control.phase("exit")

    def _begin_second_peak(self) -> None:
        self.memory.begin_second()
        if self.context.profiler is not None and self.context.profiler.memory is not None:
            self.context.profiler.memory.begin_second()

    def _measure(self) -> None:
        plan, work, profiler = self.plan, self.work, self.context.profiler
        profiled = contextlib.nullcontext() if profiler is None else profiler.body()  # of a launch for a trace
        process.note_autocast()
        if plan.device == "cuda":
            check_fork()
            torch.cuda.set_device(self.context.device)
            if plan.numa_binding:
                process.bind_near_gpu(torch.cuda.current_device(), plan.numa_binding)
        self.context.save_watch.begin()
        self.context.training_watch.under_way = self._begin_second_peak
        if plan.set_threads is not None:
            torch.set_num_threads(plan.set_threads)
        if work.stands_for is not None and not work.is_given_a_group:
            join_fake_groups_only(rank=work.stands_for, world_size=plan.world_size)
            self.context.watch.look()
        if work.is_program:
            script.CURRENT = self.context
            self.context.notebook.is_of_script = True
            with self._turn(), self.phase("body"), watched_steps(self.context.watch), self._window(), profiled:
                self.memory.begin()
                self.window.begin()
                self.context.training_watch.begin()
                began_s = process.own_cpu_s()
                mark = self.context.delay.mark()
                run_script(work.body)
                self.context.wait_for_queued()
                self.context.delay.wait(mark)
                computed_s = process.own_cpu_s() - began_s
            self._read_what_is_left()
            self.context.finish()
            options: dict[str, Any] = {"unit": "s", "better": "lower", "reduce": "max", "at": {}}
            self.context.notebook.note(WALL_TIME, self.window.wall_s, signals={"cpu_s": [computed_s]}, **options)
            return
        with self.phase("import"):
            body = bodies.load(work.body)
        with self.phase("rendezvous"):
            self.control.wait_for_the_others()
            self.memory.begin()
            self.window.begin()
            if work.is_given_a_group:
                join_group(
                    plan.backend,
                    rank=self.context.rank,
                    world_size=plan.world_size,
                    timeout_s=plan.timeout_s,
                    device=self.context.device,
                    in_namespaces=bool(plan.namespaces),
                )
                self.context.watch.look()
        with self._turn(), self.phase("body"), self._window(), profiled:
            self.context.training_watch.begin()
            for seed in work.seeds:
                self.context.seed = seed
                self.context.watch.is_on &= seed == work.seeds[0]  # the others run the same code
                with self.context.point(seed=seed) if len(work.seeds) > 1 else contextlib.nullcontext():
                    bodies.call(body, self.context)
                    self.context.wait_for_queued()
                if seed == work.seeds[0]:
                    self._read_what_is_left()
        self.context.check_complete()
        self.undescribed_collectives = self.context.watch.unrecorded()
        if self.context.only_structure and not self.context.watch.found:
            self.context.watch.since_mark(BODY)

    def _read_what_is_left(self) -> None:
        saves = self.context.save_watch
        saves.end()
        self.trained = self.context.training_watch.finish()
        remarks = [*self.trained.remarks, *saves.remarks, *self.context.notebook.remarks]
        found = replace(self.trained, saved=saves.saved, remarks=remarks)
        try:  # names and options are anybody's, and a report that cannot be read would be a rank that failed
            self.trained = msgspec.json.decode(msgspec.json.encode(found), type=Trained)
        except Exception as error:  # noqa: BLE001 of whatever kind
            self.trained = Trained(remarks=[f"what the training leaves cannot be reported: {error!a}"[:200]])

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        self.context.take_turn()
        yield
        bodies.check_origin(self.plan)
        self.context.take_turn()  # an exit disturbs the other group

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.current = phase
        self.control.phase(phase)
        start = HostClock.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = HostClock.monotonic() - start

    @contextlib.contextmanager
    def _window(self) -> Iterator[None]:
        yield  # not after a failure: the report is urgent then, as the rank is ended when another has died
        self.window.end()

    def _report(self, outcome: Outcome, reason: str, error: ErrorReport | None) -> None:
        try:
            self.seconds["end"] = HostClock.monotonic()
            RankReport(
                rank=self.rank,
                outcome=outcome,
                phase=self.current,
                phases=self.seconds,
                reason=reason,
                error=error,
                observations=self.context.notebook.observations,
                fingerprints=self.context.watch.found,
                entered=self.context.watch.times,
                lines=self.context.watch.lines if self.rank == 0 else {},
                undescribed_collectives=self.undescribed_collectives,
                peak_memory_bytes=self.memory.num_bytes() if self.context.is_memory_its_own else None,
                second_peak_bytes=self.memory.second_num_bytes() if self.context.is_memory_its_own else None,
                load=self.window.load,
                software=process.software(self.plan) if self.rank == 0 else {},
                gpu=process.gpu_in_use() if self.plan.device == "cuda" else "",
                group_size=self.largest_group(),
                delayed_s=self.context.delay.waited_s,
                trained=self.trained,
            ).write(self.plan.files)
        except BaseException as trouble:  # noqa: BLE001 handlers of signals and hooks of the body's are still there
            what = f"{error.kind}: {error.message[:200]}; " if error else ""
            why = trouble.strerror if isinstance(trouble, OSError) else ""
            where = self.plan.files.report(self.rank)
            self.control.send("failed", f"{what}cannot write its report: {why or describe(trouble)} ({where})")
            time.sleep(HOLD_S)
            os._exit(1)


def _end(control: ControlLine) -> NoReturn:
    """End as an ordinary process does, but without finalising the interpreter.

    With a gloo group, finalisation takes 0.3 s and can deadlock (torch 2.13). The group is left last, as a thread that
    writes a checkpoint, or an exit handler, may need it.
    """
    leave(lambda what: control.send("remark", what))
    control.phase("teardown")
    leave_group()
    os._exit(0)

"""A training script, run as ``torchrun`` would: as ``__main__``, with its command line.

It records as a body does, with ``pytest_distbench.record``, ``timed`` and ``phase``.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

from pytest_distbench.errors import BodyError
from pytest_distbench.records.iteration import TRAINING_STEP
from pytest_distbench.records.launch import RankReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import BodyReference, LaunchPlan
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.line import RankLine
from pytest_distbench.worker.steps import training_steps

CURRENT: RankContext | None = None  # the rank that this process is; None outside of ranks that run a script


WHOLE = "script"  # key of the fingerprint of a script without such a step
_STEADY_STEP = 3  # the first steps also build and broadcast


def run_script(body: BodyReference) -> None:
    """Run a file, or a module by its name, as ``__main__`` to its end; threads and exit handlers pickle by that name.

    Raises SystemExit for an exit code other than 0, and whatever else the script raises.
    """
    script = ModuleType("__main__")
    if body.module:
        code = _take_module(body.module, script)
    else:
        sys.path.insert(0, str(Path(body.file).parent))
        with io.open_code(body.file) as file:
            code = compile(file.read(), body.file, "exec", dont_inherit=True)
        vars(script).update(__file__=body.file, __builtins__=builtins)
    sys.argv = [str(vars(script)["__file__"]), *body.arguments]
    sys.modules["__main__"] = script
    try:
        exec(code, vars(script))
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise


def _take_module(name: str, script: ModuleType) -> CodeType:
    """The code that ``python -m`` runs for a name, from the working directory; packages above it are imported."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except ImportError as error:
        raise BodyError(f"module={name!r}: {error}") from error
    get_code = getattr(spec and spec.loader, "get_code", None)
    code = get_code(name) if get_code is not None else None
    if spec is None or not isinstance(code, CodeType):
        raise BodyError(f"module={name!r}: there is none of that name that can be run, as python -m {name} would")
    vars(script).update(
        __file__=spec.origin, __builtins__=builtins, __spec__=spec, __package__=spec.parent, __loader__=spec.loader
    )
    return code


@contextlib.contextmanager
def watched_steps(watch: Watch) -> Iterator[None]:
    """Take the fingerprint of one training step, from its beginning to the next one's.

    Note the kinds of all steps, with what comes before the first and after the last, and with their reductions if the
    described step sends nothing. Without enough training steps, take the fingerprint of the whole script.
    """
    if not watch.is_on:
        yield
        return
    steps = 0
    course = watch.follow(TRAINING_STEP)

    def begin() -> None:
        nonlocal steps
        if watch.open_key == TRAINING_STEP:
            watch.end()
        watch.look_on(TRAINING_STEP)
        course.end(steps)
        steps += 1
        if steps == _STEADY_STEP and not watch.open_key:  # else it steps inside a loop with a clock
            watch.begin(TRAINING_STEP)

    watch.mark()
    course.begin()
    with training_steps(begin):
        yield
    if watch.open_key == TRAINING_STEP:  # that step was the last
        watch.end()
    if TRAINING_STEP in watch.found:
        course.end_last(steps, watch.sends(TRAINING_STEP))
        watch.end_looking_on()
        watch.note_course(TRAINING_STEP, course)
    elif steps < _STEADY_STEP:
        watch.since_mark(WHOLE)


_PLACE = {
    "RANK": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "LOCAL_RANK": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "WORLD_SIZE": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "GROUP_RANK": ("GROUP_RANK",),
}
"""torchrun's variables -> their names under torchrun, Open MPI, MPICH and Slurm."""

UNFINISHED = "it recorded numbers, and ended before it could write them down: by os._exit, or by a signal?"


def begin_apart(plan_path: str) -> RankContext:
    """Begin to note what this process records; it is written when the process ends.

    Another launcher (``accelerate launch``, ``mpirun``) started it, below a measured command: it is no rank of a plan,
    and has no connection to pytest and no group.
    """
    global CURRENT
    plan = LaunchPlan.read_from(plan_path)
    found = {name: next((os.environ[n] for n in names if n in os.environ), "0") for name, names in _PLACE.items()}
    environment = found | ({"WORLD_SIZE": "1"} if found["WORLD_SIZE"] == "0" else {})
    context = CURRENT = RankContext(plan, RankLine(), environment, watch=Watch(is_on=False))
    context.notebook.is_of_script = True
    owner = os.getpid()
    _write(plan.files, context, UNFINISHED)

    def finish() -> None:
        if os.getpid() == owner:  # not in a child that was forked
            context.finish()
            _write(plan.files, context, "")

    atexit.register(finish)
    return context


def _write(files: LaunchFiles, context: RankContext, trouble: str) -> None:
    RankReport(
        rank=context.rank,
        outcome="failed" if trouble else "passed",
        phase="body",
        phases={},
        reason=trouble,
        observations=[] if trouble else context.notebook.observations,
    ).write(files)

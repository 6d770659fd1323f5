"""The fixtures ``elastic``, a training on nodes that come and go, and ``elastic_pool``, trainings that share slots."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, get_args

import msgspec

from pytest_distbench.elastic.engines import DEFAULT_ENGINE, ENGINES, torch_release
from pytest_distbench.elastic.plans import WantedJob, WantedServing, changes_of, check_job, check_values, usual_start
from pytest_distbench.elastic.progress import check_pattern
from pytest_distbench.elastic.records import (
    SERVING,
    Change,
    Compute,
    Cycle,
    Demand,
    ElasticJob,
    Job,
    Plan,
    Policy,
    Pool,
    Sharing,
)
from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.launch.readers import problem_with
from pytest_distbench.plugin.arguments import Arguments, Called, Judged, WorkKeywords
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.plugin.requests import check_room
from pytest_distbench.records.metric import Reader, as_scalar
from pytest_distbench.records.plan import Task
from pytest_distbench.records.record import AnyRecord, Number, replace
from pytest_distbench.run.request import Settings

if TYPE_CHECKING:
    from pytest_distbench.elastic.worker.training import ElasticRank


MOST_NODES = 10_000
_MOST_OF_A_TIMER = 1_000_000  # seconds, or a number; larger ones overflow in torch


class ElasticKeywords(WorkKeywords, Judged, total=False):
    """Keywords of ``elastic``: what is run, and how it is judged."""


class Elastic:
    """The ``elastic`` fixture: measures and judges a training whose membership changes."""

    def __init__(self, distbench: Distbench, settings: Settings) -> None:
        self._distbench = distbench
        self._settings = settings

    def __call__(
        self,
        body: Callable[[ElasticRank], object] | str | None = None,
        *,
        nodes: int | tuple[int, int],
        plan: Cycle | Change | Sequence[Change] = (),
        start: int | None = None,
        ends_after: int | None = None,
        checkpoint_every: int | None = None,
        hold: bool = False,
        steps: Reader | None = None,
        seed: int = 0,
        engine: str = DEFAULT_ENGINE,
        timers: Mapping[str, float] | None = None,
        oversubscribed: bool = False,
        **options: Unpack[ElasticKeywords],
    ) -> Run:
        r"""Train once per launch, change the membership as planned, and judge the cost.

        Args:
            body: a function that takes the :class:`ElasticRank`, or ``"file.py::function"``: it starts again in every
                generation, and ``rank.training(...)`` loads the last good checkpoint. Or ``"train.py"``, a script with
                checkpoints of its own.
            nodes: number of nodes, or (minimum, maximum), at most the ranks of the run; each has one worker.
            plan: ``cycle(...)``, or one change or a list of them: ``join(...)``, ``leave(...)``, ``kill(...)``,
                ``crash(...)``, ``stop(...)``; ``draw(...)`` makes such a list. Empty: a fixed run to compare with.
            start: nodes at the beginning. Default: the minimum if some join first, else the maximum.
            ends_after: the training ends with the epoch in which it has taken so many steps since the last change;
                ``training.batches`` has to have more epochs. Default: when all are trained.
            checkpoint_every: steps between two checkpoints, 20 by default.
            hold: the nodes wait after the step of each change until the membership has changed, so that the losses are
                a golden curve.
            steps: the printed lines of a script that are steps, ``stdout(r"step (\d+)")``; groups named ``epoch``,
                ``loss``, ``accuracy``, ``top5``, ``lr`` are read too.
            seed: seed of the training, ``rank.seed``, and of the order of the samples.
            engine: what changes the membership: ``stock``, the command-line tool torchrun; ``fast``, its agents from a
                process that has torch loaded.
            timers: timers of the engine: ``last_call_s``, ``keep_alive_s``, ``keep_alive_attempts``, ``collective_s``,
                ``settle_s``; of ``stock`` in whole seconds, with ``max_restarts``.
            oversubscribed: there may be more nodes or slots than ranks of the run; their timings are shown and not
                judged.

        Raises:
            Misuse: an argument cannot be used, or the plan cannot be.
            LaunchFailed: the job failed, did not come to rest, or was over before its plan.
            Regression, BeyondBound, Unaccepted, MissingBaseline: as of ``distbench.run``.
        """
        given = self._distbench.arguments("elastic")
        given.keywords(options, self.__call__, ElasticKeywords)
        self._distbench.ask.check_kind(given, Job)
        base = _job_on(given, engine, timers)
        wanted = Called(body=body, seeds=(given.seed("seed", seed),), **options)
        job = self._job(given, base, nodes, plan, start, ends_after, checkpoint_every, hold)
        job = replace(job, cores=check_room(given, self._settings, job.most, "nodes", oversubscribed=oversubscribed))
        found = self._distbench.ask.find_work(given, wanted)
        if not isinstance(found.work, Task):
            given.refuse(
                "a command starts its processes itself; an elastic job needs a function or a script that torchrun runs"
            )
        if (lines := _steps(given, steps, found, job)) is not None:
            job = replace(job, steps=lines, checkpoint_every=None if checkpoint_every is None else job.checkpoint_every)
        if "elastic" in found.identity:
            given.refuse(
                "params contains 'elastic', the name under which the job itself is stored: choose another name"
            )
        print(f"elastic{wanted.name and ' '}{wanted.name}: {job}")
        identity: dict[str, Any] = {
            "nodes": [job.least, job.most],
            "start": job.start,
            "plan": job.planned,
            **({"ends_after": job.ends_after} if job.ends_after is not None else {}),
            "checkpoint_every": job.checkpoint_every,
            "version": job.version,
            "timers": job.timers,
            **({"steps": job.steps.source} if job.steps is not None else {}),
            **({"hold": True} if job.hold else {}),
        }
        found = dataclasses.replace(
            found,
            work=Job(body=found.work.body, params=found.work.params, seeds=found.work.seeds, job=job),
            identity={**found.identity, "elastic": identity},
        )
        return self._distbench.run_request(self._distbench.ask.launch(given, found, world_size=job.most))

    def _job(
        self,
        given: Arguments,
        base: ElasticJob,
        nodes: object,
        plan: object,
        start: object,
        ends_after: object,
        every: object,
        hold: object,
    ) -> ElasticJob:
        least, most = _nodes(given, "nodes", nodes)
        made = _plan(given, plan)
        try:
            check_values(made)
            usual = usual_start(made, least=least, most=most) if start is None else start
            job = replace(
                base,
                least=least,
                most=most,
                start=given.whole("start", usual, least=least, most=most),
                plan=made,
                ends_after=ends_after_steps(given, ends_after),
                checkpoint_every=given.whole("checkpoint_every", 20 if every is None else every, least=1),
                hold=given.yes_or_no("hold", hold),
            )
            check_job(job)
            able = ENGINES[job.engine].changes
            for change in itertools.islice(changes_of(made), 2 if job.cycle is not None else None):
                if change.kind not in able:
                    given.refuse(
                        f"plan: {change}: the engine {job.engine} does not support it; wanted {', '.join(sorted(able))}"
                    )
            if ends_after is not None and job.cycle is not None and job.cycle.times is None:
                given.refuse(f"ends_after={ends_after}: {job.cycle} goes on until the training ends; give times=")
        except ConfigurationError as error:
            given.refuse(f"plan: {error}")
        return job


def _nodes(given: Arguments, name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, tuple | list):
        number = given.whole(name, value, least=1, most=MOST_NODES)
        return number, number
    if len(value) != 2:
        given.refuse(f"{name}={show(value)}; wanted a number, or the fewest and the most: (1, 2)")
    fewest = given.whole(f"{name}={show(value)}: the fewest", value[0], least=1, most=MOST_NODES)
    largest = given.whole(f"{name}={show(value)}: the most", value[1], least=1, most=MOST_NODES)
    if largest < fewest:
        given.refuse(f"{name}={show(value)}; wanted the fewest and the most, where the second is not below the first")
    return fewest, largest


def _steps(given: Arguments, steps: object, found: Called, job: ElasticJob) -> Reader | None:
    assert found.work is not None
    if not found.work.is_program:
        for name, wanted in (("steps", steps is not None), ("env", found.own_variables), ("read", found.read)):
            if wanted:
                given.refuse(f"{name}= is for scripts: a function reports its steps and numbers itself")
        return None
    if not ENGINES[job.engine].runs_scripts:
        able = ", ".join(name for name, kind in ENGINES.items() if kind.runs_scripts)
        given.refuse(f"engine={job.engine!r} runs functions only; a script needs one of {able}")
    if job.hold:
        given.refuse("hold=True is for functions: a script writes its own checkpoints and cannot be held")
    if job.ends_after is not None:
        given.refuse("ends_after= is for functions: a script ends by itself")
    if not isinstance(steps, Reader):
        given.refuse(
            f"steps={show(steps)}; wanted stdout(r'step (\\d+)') of pytest_distbench.read, which matches the line "
            f"that the script prints for each step or epoch; stall and recovery are measured between two such lines"
        )
    try:
        if problem := problem_with(steps):
            given.refuse(f"steps: {problem}")
        check_pattern(steps)
        if steps.rank != "all" and steps.rank >= job.least:
            given.refuse(f"steps: rank={steps.rank}, but with the fewest nodes there are only {job.least} ranks")
    except ConfigurationError as error:
        given.refuse(f"steps: {error}")
    return steps


def _plan(given: Arguments, plan: object) -> Plan:
    if isinstance(plan, Cycle):
        return _plain(plan)
    changes = [plan] if isinstance(plan, Change) else plan
    if not isinstance(changes, list | tuple) or not all(isinstance(change, Change) for change in changes):
        given.refuse(
            f"plan={show(plan)}; wanted cycle(...), draw(...), or one or a list of join(...), leave(...), kill(...), "
            "crash(...) and stop(...), from pytest_distbench.elastic"
        )
    return list(map(_plain, changes))


def _plain(part: AnyRecord) -> AnyRecord:
    """Convert numpy's numbers to Python's: processes read plans without numpy."""
    given = {name: as_scalar(value) for name, value in msgspec.structs.asdict(part).items() if hasattr(value, "item")}
    return replace(part, **{name: value for name, value in given.items() if value is not None})


def _job_on(given: Arguments, engine: object, timers: object) -> ElasticJob:
    if not isinstance(engine, str) or engine not in ENGINES:
        given.refuse(f"engine={show(engine)}; wanted one of {', '.join(ENGINES)}")
    kind = ENGINES[engine]
    chosen = given.mapping("timers", {} if timers is None else timers)
    if unknown := sorted(set(chosen) - set(kind.timers)):
        given.refuse(f"timers={show(chosen)}: engine {engine!r} has no {unknown[0]!r}; it has {', '.join(kind.timers)}")
    wanted: dict[str, Number] = {
        name: given.whole(f"timers[{name!r}]", value, least=1, most=_MOST_OF_A_TIMER)
        if isinstance(kind.timers[name], int)
        else given.number(f"timers[{name!r}]", value, above=0.0, most=_MOST_OF_A_TIMER)
        for name, value in chosen.items()
    }
    problem = kind.problem()
    if problem and not kind.stand_in:
        given.refuse(f"engine={engine!r} cannot be used here: {problem}")
    used = kind.stand_in if problem else engine
    return ElasticJob(
        least=1,
        most=1,
        start=1,
        engine=used,
        in_place_of=f"{engine}: {problem}" if problem else "",
        version=torch_release(),
        timers=ENGINES[used].all_timers(wanted),
    )


def ends_after_steps(given: Arguments, wanted: object, where: str = "") -> int | None:
    """Steps that a training takes after its last planned change, or None if it ends by itself."""
    return None if wanted is None else given.whole(f"{where}ends_after", wanted, least=1)


class ElasticPool:
    """The ``elastic_pool`` fixture: measures and judges jobs that share slots."""

    def __init__(self, distbench: Distbench, settings: Settings) -> None:
        self._distbench = distbench
        self._settings = settings

    def __call__(
        self,
        jobs: WantedJob | Sequence[WantedJob],
        *,
        slots: int,
        policy: Policy,
        serving: WantedServing | None = None,
        checkpoint_every: int = 20,
        compute: Compute = "real",
        engine: str = DEFAULT_ENGINE,
        timers: Mapping[str, float] | None = None,
        oversubscribed: bool = False,
        **options: Unpack[Judged],
    ) -> Run:
        """Run all jobs once per launch, and judge the effect of sharing.

        Args:
            jobs: ``job(...)``, in the order of submission.
            slots: number of slots, at most the ranks of the run; each has room for a worker or a server.
            policy: ``gang``: a job starts when its maximum of slots is free, and keeps them. ``elastic``: it starts on
                its minimum, grows, and gives back what another job needs.
            serving: ``serving(...)``, with priority over all jobs; needs ``elastic``.
            checkpoint_every: steps between two checkpoints, 20 by default.
            compute: ``synthetic``: the bodies wait instead of computing.
            engine: name of the engine, as for ``elastic``.
            timers: timers of the engine, as for ``elastic``.
            oversubscribed: whether there may be more slots than ranks of the run, as for ``elastic``.

        Raises:
            Misuse: an argument cannot be used, or a job could never start.
            LaunchFailed: a job or the serving failed, or the jobs were over before the demand.
            Regression, BeyondBound, Unaccepted, MissingBaseline: as of ``distbench.run``.
        """
        given = self._distbench.arguments("elastic_pool")
        given.keywords(options, self.__call__, Judged)
        self._distbench.ask.check_kind(given, Pool)
        base = _job_on(given, engine, timers)
        wanted = Called(**options)
        listed = self._check_jobs(given, jobs)
        pool = Sharing(
            slots=given.whole("slots", slots, least=1, most=MOST_NODES),
            policy=given.choice("policy", policy, get_args(Policy)),  # type: ignore[arg-type] # it is one of them
            jobs=_pool_jobs(given, listed, policy, checkpoint_every, base, has_serving=serving is not None),
            demand=[] if serving is None else _demand(given, serving, policy),
            compute=given.choice("compute", compute, get_args(Compute)),  # type: ignore[arg-type] # the same
        )
        _check_pool(given, pool)
        pool = replace(
            pool, cores=check_room(given, self._settings, pool.slots, "slots", oversubscribed=oversubscribed)
        )
        works = {
            job.name: self._workload(given, job.body, job.params, given.seed(f"job {job.name!r}: seed", job.seed))
            for job in listed
        }
        if serving is not None:
            works[SERVING] = self._workload(given, serving.body, serving.params, 0)
        print(f"elastic_pool{wanted.name and ' '}{wanted.name}: {pool}")
        tasks = {
            owner: Task(body=work.body, params=work.params, seeds=work.seeds)
            for owner, found in works.items()
            if isinstance(work := found.work, Task)
        }
        identity = {
            "pool": str(pool),
            "checkpoint_every": pool.jobs[0].checkpoint_every,
            "version": base.version,
            "timers": base.timers,
            "works": {name: work.identity for name, work in works.items()},
        }
        found = dataclasses.replace(wanted, work=Pool(sharing=pool, tasks=tasks), identity=identity)
        return self._distbench.run_request(self._distbench.ask.launch(given, found, world_size=pool.slots))

    def _check_jobs(self, given: Arguments, jobs: object) -> list[WantedJob]:
        listed = [jobs] if isinstance(jobs, WantedJob) else jobs
        if not isinstance(listed, list | tuple) or not listed or not all(isinstance(j, WantedJob) for j in listed):
            given.refuse(f"jobs={show(jobs)}; wanted a list of job(...), from pytest_distbench.elastic")
        names = [given.text("the name of a job", job.name, without="[]=,") for job in listed]
        if SERVING in names:
            given.refuse(f"a job is called {SERVING!r}, the name of the serving: choose another one")
        if twice := [name for name in names if names.count(name) > 1]:
            given.refuse(f"two jobs are called {twice[0]!r}: give each its own name")
        return list(listed)

    def _workload(self, given: Arguments, body: object, params: Mapping[str, Any] | None, seed: int) -> Called:
        found = self._distbench.ask.find_work(given, Called(body=body, params=params, seeds=(seed,)))
        if found.work is not None and found.work.is_program:
            given.refuse(f"{show(body)}: wanted a function, or 'file.py::function'")
        return found


def _pool_jobs(
    given: Arguments,
    listed: Sequence[WantedJob],
    policy: Policy,
    checkpoint_every: object,
    base: ElasticJob,
    *,
    has_serving: bool,
) -> list[ElasticJob]:
    base = replace(base, checkpoint_every=given.whole("checkpoint_every", checkpoint_every, least=1))
    found: list[ElasticJob] = []
    for job in listed:
        where = f"job {job.name!r}: "
        least, most = _nodes(given, f"{where}nodes", job.nodes)
        least = most if policy == "gang" else least
        submit_s = given.number(f"{where}submit_s", job.submit_s, least=0.0)
        if found and submit_s < found[-1].submit_s:
            given.refuse(
                f"{where}submit_s={submit_s:g} is before that of job {found[-1].name!r}, listed before it: list jobs "
                f"in the order of submission"
            )
        ends_after = ends_after_steps(given, job.ends_after, where)
        if ends_after is not None and not has_serving:
            given.refuse(
                f"{where}ends_after={ends_after} counts steps after the last demand of a serving, and this pool has "
                f"none: leave it out"
            )
        nodes = {"least": least, "most": most, "start": least}
        found.append(replace(base, name=job.name, submit_s=submit_s, ends_after=ends_after, **nodes))
    if found[0].submit_s > 0:
        given.refuse(
            f"job {found[0].name!r}: submit_s={found[0].submit_s:g}; wanted 0: time starts with the first step of the "
            f"first job"
        )
    return found


def _demand(given: Arguments, wanted: object, policy: Policy) -> Demand:
    if not isinstance(wanted, WantedServing):
        given.refuse(f"serving={show(wanted)}; wanted serving(...), from pytest_distbench.elastic")
    if policy != "elastic":
        given.refuse(f"serving takes slots from jobs, which only policy='elastic' can return; found {policy!r}")
    if isinstance(wanted.demand, str | bytes | Mapping) or not isinstance(wanted.demand, Sequence):
        given.refuse(f"serving: demand={show(wanted.demand)}; wanted pairs (seconds, slots)")
    demand: Demand = []
    for pair in wanted.demand:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            given.refuse(f"serving: demand has {show(pair)}; wanted a pair (seconds, slots)")
        at_s = given.number("serving: seconds of the demand", pair[0], least=0.0)
        if demand and at_s <= demand[-1][0]:
            given.refuse(
                f"serving: the demand of {at_s:g} s comes after that of {demand[-1][0]:g} s: list the demand by time"
            )
        slots = given.whole("serving: slots of the demand", pair[1], least=0, most=MOST_NODES)
        demand.append((at_s, slots))
    if not any(slots for _, slots in demand):
        given.refuse(f"serving: demand={show(wanted.demand)} needs no slot")
    return demand


def _check_pool(given: Arguments, pool: Sharing) -> None:
    for job in pool.jobs:
        if job.least > pool.slots:
            given.refuse(
                f"job {job.name!r} could never start: it needs {job.least} slots under policy={pool.policy!r}, and "
                f"slots={pool.slots}"
            )
    if not pool.demand:
        return
    most = max(slots for _, slots in pool.demand)
    least = max(job.least for job in pool.jobs)
    if most + least > pool.slots:
        given.refuse(
            f"serving: its demand is for {most} slots, and a job keeps at least {least} of slots={pool.slots}, so it "
            f"would never get them; wanted at most {pool.slots - least}"
        )

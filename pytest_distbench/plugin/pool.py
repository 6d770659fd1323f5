"""The fixture ``elastic_pool``: trainings that share slots, with each other and with a serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_args

from pytest_distbench.errors import show
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.elastic_job import MOST_NODES, ends_after_steps, usable_engine
from pytest_distbench.plugin.keywords import PoolKeywords, Wanted
from pytest_distbench.plugin.room import check_room
from pytest_distbench.plugin.runs import Run
from pytest_distbench.plugin.workload import Workload
from pytest_distbench.records.elastic import ElasticJob
from pytest_distbench.records.pool import SERVING, Compute, Demand, Policy, PoolJob, Serving, Sharing
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import Pool, Task
from pytest_distbench.run.pool_request import WantedJob, WantedServing
from pytest_distbench.run.settings import Settings


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
        **options: Unpack[PoolKeywords],
    ) -> Run:
        """Run all jobs once per launch, and judge what sharing made of them.

        Args:
            jobs: ``job(...)``, from :mod:`pytest_distbench.elastic`, in the order in which they are submitted.
            slots: of the pool; each is a place for a node with one worker, or for a server. At most the ranks of the
                run.
            policy: ``gang``: a job starts when there are all slots it may have, and keeps them. ``elastic``: it starts
                on the fewest it needs, grows into what is free, and gives back what another job needs to start.
            serving: ``serving(...)``, from the same module: it goes before all jobs. Needs ``elastic``.
            checkpoint_every: steps between two checkpoints.
            compute: ``synthetic``: the bodies wait in place of computing. It is said in the record.

        Raises:
            Misuse: an argument cannot be used, or a job could never start.
            LaunchFailed: a job or the serving failed, or the jobs were over before the demand.
            Regression, BeyondBound, Unaccepted, MissingBaseline: as of ``distbench.run``.
        """
        given = self._distbench.arguments("elastic_pool")
        given.keywords(options, self.__call__, PoolKeywords)
        self._distbench.ask.check_kind(given, Pool)
        wanted = Wanted(**options)
        listed = self._check_jobs(given, jobs)
        pool = Sharing(
            slots=given.whole("slots", slots, least=1, most=MOST_NODES),
            policy=given.choice("policy", policy, get_args(Policy)),  # type: ignore[arg-type] # it is one of them
            jobs=_pool_jobs(given, listed, policy, checkpoint_every, wanted, has_serving=serving is not None),
            serving=None if serving is None else _serving(given, serving, policy),
            compute=given.choice("compute", compute, get_args(Compute)),  # type: ignore[arg-type] # the same
        )
        _check_pool(given, pool)
        pool = replace(
            pool, cores=check_room(given, self._settings, pool.slots, "slots", oversubscribed=wanted.oversubscribed)
        )
        works = {job.name: self._workload(given, job.body, job.params, _seed(given, job)) for job in listed}
        if serving is not None:
            works[SERVING] = self._workload(given, serving.body, serving.params, 0)
        print(f"elastic_pool{wanted.name and ' '}{wanted.name}: {pool}")
        tasks = {
            owner: Task(body=work.body, params=work.params, seeds=work.seeds)
            for owner, found in works.items()
            if isinstance(work := found.work, Task)
        }
        found = Workload(work=Pool(sharing=pool, tasks=tasks), identity=_identity(pool, works))
        return self._distbench.run_request(*self._distbench.ask.launch(given, found, wanted, world_size=pool.slots))

    def _check_jobs(self, given: Arguments, jobs: object) -> list[WantedJob]:
        listed = [jobs] if isinstance(jobs, WantedJob) else jobs
        if not isinstance(listed, list | tuple) or not listed or not all(isinstance(j, WantedJob) for j in listed):
            given.refuse(f"jobs={show(jobs)}; wanted a list of job(...), from pytest_distbench.elastic")
        names = [given.text("the name of a job", job.name, without="[]=,") for job in listed]
        if SERVING in names:
            given.refuse(f"a job is called {SERVING!r}, which is the serving's own name: give it another one")
        if twice := [name for name in names if names.count(name) > 1]:
            given.refuse(f"two jobs are called {twice[0]!r}: give each a name of its own")
        return list(listed)

    def _workload(self, given: Arguments, body: object, params: Mapping[str, Any] | None, seed: int) -> Workload:
        found = self._distbench.ask.workload(given, Wanted(body=body, params=params, seeds=(seed,)))
        if found.work.is_program:
            given.refuse(f"{show(body)}: wanted a function, or 'file.py::function'")
        return found


def _seed(given: Arguments, job: WantedJob) -> int:
    return given.seed(f"job {job.name!r}: seed", job.seed)


def _pool_jobs(
    given: Arguments,
    listed: Sequence[WantedJob],
    policy: Policy,
    checkpoint_every: object,
    wanted: Wanted,
    *,
    has_serving: bool,
) -> list[PoolJob]:
    every = given.whole("checkpoint_every", checkpoint_every, least=1)
    used = usable_engine(given, wanted.engine, wanted.timers)
    found: list[PoolJob] = []
    for job in listed:
        where = f"job {job.name!r}: "
        least, most = given.nodes(f"{where}nodes", job.nodes, most=MOST_NODES)
        least = most if policy == "gang" else least
        submit_s = given.number(f"{where}submit_s", job.submit_s, least=0.0)
        if found and submit_s < found[-1].submit_s:
            given.refuse(
                f"{where}submit_s={submit_s:g} is before that of job {found[-1].name!r}, listed above it: list jobs "
                "in the order in which they are submitted"
            )
        ends_after = ends_after_steps(given, job.ends_after, where)
        if ends_after is not None and not has_serving:
            given.refuse(
                f"{where}ends_after={ends_after}: steps behind the last demand of a serving, and this pool has none: "
                "leave it out"
            )
        elastic = ElasticJob(least=least, most=most, start=least, checkpoint_every=every, ends_after=ends_after, **used)
        found.append(PoolJob(name=job.name, submit_s=submit_s, job=elastic))
    if found[0].submit_s > 0:
        given.refuse(
            f"job {found[0].name!r}: submit_s={found[0].submit_s:g}; wanted 0: the clock begins with the first step of "
            "the first job"
        )
    return found


def _serving(given: Arguments, wanted: object, policy: Policy) -> Serving:
    if not isinstance(wanted, WantedServing):
        given.refuse(f"serving={show(wanted)}; wanted serving(...), from pytest_distbench.elastic")
    if policy != "elastic":
        given.refuse(f"serving takes slots from jobs that can give them: wanted policy='elastic', not {policy!r}")
    if isinstance(wanted.demand, str | bytes | Mapping) or not isinstance(wanted.demand, Sequence):
        given.refuse(f"serving: demand={show(wanted.demand)}; wanted pairs (seconds, slots)")
    demand: list[Demand] = []
    for pair in wanted.demand:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            given.refuse(f"serving: demand has {show(pair)}; wanted a pair (seconds, slots)")
        at_s = given.number("serving: seconds of the demand", pair[0], least=0.0)
        if demand and at_s <= demand[-1].at_s:
            given.refuse(
                f"serving: the demand of {at_s:g} s comes after that of {demand[-1].at_s:g} s: time does not go back; "
                "list it by time"
            )
        slots = given.whole("serving: slots of the demand", pair[1], least=0, most=MOST_NODES)
        demand.append(Demand(at_s=at_s, slots=slots))
    if not any(each.slots for each in demand):
        given.refuse(f"serving: demand={show(wanted.demand)} wants no slot")
    return Serving(demand=demand)


def _check_pool(given: Arguments, pool: Sharing) -> None:
    """Refuse what could never be."""
    for job in pool.jobs:
        if job.job.least > pool.slots:
            given.refuse(
                f"job {job.name!r} could never start: it needs {job.job.least} slots under policy={pool.policy!r}, and "
                f"slots={pool.slots}"
            )
    if pool.serving is None:
        return
    most = max(demand.slots for demand in pool.serving.demand)
    least = max(job.job.least for job in pool.jobs)
    if most + least > pool.slots:
        given.refuse(
            f"serving: its demand is for {most} slots, and a job keeps at least {least} of slots={pool.slots}: it "
            f"would never have them; wanted at most {pool.slots - least}"
        )


def _identity(pool: Sharing, works: Mapping[str, Workload]) -> dict[str, Any]:
    """What defines a run: numbers of two policies, pools, engines or workloads are never compared."""
    first = pool.jobs[0].job
    return {
        "pool": str(pool),
        "checkpoint_every": first.checkpoint_every,
        "version": first.version,
        "timers": first.timers,
        "works": {name: work.identity for name, work in works.items()},
    }

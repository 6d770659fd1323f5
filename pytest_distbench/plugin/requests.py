"""Make the request of a case from the arguments of a call, the markers of its test and the settings of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_distbench.errors import BodyError, ConfigurationError
from pytest_distbench.judging.terms import Terms
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.machine import hardware
from pytest_distbench.machine.secrets import mask_secrets
from pytest_distbench.plugin.arguments import Arguments, Called
from pytest_distbench.plugin.markers import chosen_by, own_markers, requirement
from pytest_distbench.plugin.names import family_of, full_name, test_and_id
from pytest_distbench.plugin.outcomes import Misuse
from pytest_distbench.plugin.settings import CHOICES, most_ranks
from pytest_distbench.plugin.workload import find_work, json_able, leave_out_places
from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.options import FAKE
from pytest_distbench.records.plan import LaunchRequest, Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.records.wanted import LONGEST_TIMEOUT_S, MOST_LAUNCHES
from pytest_distbench.run.confirm import Evaluation
from pytest_distbench.run.kinds import LAUNCH_KINDS, kind_of
from pytest_distbench.run.request import CaseRequest, Settings

LEAST_CPUS = 0.01  # the least of docker's ``--cpus``

_ADVISORY = {"": "", "all": "--distbench-advisory", "timings": "--distbench-advisory=timings"}


def check_room(given: Arguments, settings: Settings, wanted: int, what: str, *, oversubscribed: object) -> int | None:
    """Skip the test if it wants more ranks, nodes or slots than the run has and may not be oversubscribed.

    GPUs are never oversubscribed.

    Args:
        what: ``ranks``, ``nodes`` or ``slots``.
        oversubscribed: the argument of the call.

    Returns:
        The cores of this host if they are oversubscribed, else None.
    """
    given.yes_or_no("oversubscribed", oversubscribed)
    if wanted <= settings.largest:
        return None
    if not oversubscribed or settings.gpu:
        there_are = f"{settings.largest} given" if what == "ranks" else f"{settings.largest} ranks given"
        pytest.skip(f"not run: needs {wanted} {what}, {there_are}")
    most, why = most_ranks()
    if what == "ranks" and wanted > most:
        given.refuse(f"{wanted} ranks; at most {most} can run here ({why})")
    return hardware.cores() if wanted > hardware.cores() else None


def find_quota(given: Arguments, settings: Settings, wanted: Called) -> float:
    """Check ``cpus=`` of a call, the CPU quota of each rank.

    Work whose ranks the plugin does not start is refused; the test is skipped if ranks are on other hosts.
    """
    assert wanted.work is not None
    found = given.number("cpus", wanted.cpus, least=LEAST_CPUS, most=hardware.cores())
    kind = kind_of(wanted.work)
    if kind.why_no_ranks:
        given.refuse(f"cpus={found:g} needs ranks that the plugin starts, and {kind.why_no_ranks}")
    if settings.fake_rank is not None:
        pytest.skip(f"not run: a CPU quota changes timings, and the {FAKE} backend has none")
    if kind.hosted_by(LAUNCHERS[settings.launcher]).hosts == "many":
        pytest.skip(f"not run: a CPU quota needs ranks on this host, and {settings.launcher} starts them on others")
    return found


class RequestMaker:
    """Makes the requests of one test. Arguments win over the marker, and the marker over the settings of the run.

    Args:
        around: returns the surroundings of a launch that distinguish its case from others.

    Attributes:
        bounds: bounds of the test's marker; each applies to every case of the test that measures the metric.
        only_structure: whether the backend is ``fake``, which has neither timings nor values.
    """

    def __init__(
        self,
        settings: Settings,
        node: pytest.Item,
        *,
        world_size: int,
        backend: str,
        around: Callable[[LaunchRequest], dict[str, str]],
    ) -> None:
        self._settings = settings
        self._node = node
        self._world_size = world_size
        self._backend = backend
        self._device: Literal["cpu", "cuda"] = "cuda" if settings.gpu else "cpu"
        try:
            self._wanted = requirement(own_markers(node))
            self._chosen_by_test = chosen_by(own_markers(node))
        except ConfigurationError as error:  # those of single parameters are known only now
            raise Misuse(str(error)) from None
        self._labels: set[str] = set()
        self._around = around
        self.only_structure = settings.fake_rank is not None
        given = {} if self.only_structure else self._wanted.bounds or {}
        self.bounds = tuple((metric, value, f"marker of {node.name}") for metric, value in given.items())
        made = node.config.getoption("basetemp", None)
        made = None if made is None else Path(node.config.invocation_params.dir, made).resolve()
        self._leave_out = partial(leave_out_places, root=node.config.rootpath, made=made)

    def run(self, given: Arguments, wanted: Called) -> CaseRequest:
        wanted = self.find_work(given, wanted)
        ranks = given.ranks(wanted.world_size, self._world_size)
        cores = check_room(given, self._settings, ranks, "ranks", oversubscribed=wanted.oversubscribed)
        cpus = None if wanted.cpus is None else find_quota(given, self._settings, wanted)
        if isinstance(wanted.work, Ranks):
            work = replace(wanted.work, stands_for=self._stands_for(ranks), attached=self._settings.attach)
            wanted = dataclasses.replace(wanted, work=work)
        return self.launch(given, wanted, world_size=ranks, cores=cores, cpus=cpus)

    def launch(
        self, given: Arguments, wanted: Called, *, world_size: int, cores: int | None = None, cpus: float | None = None
    ) -> CaseRequest:
        """Make the request of work of any kind that was checked already; its ranks may be nodes or slots.

        Args:
            cores: the cores of this host if they are oversubscribed, else None.
            cpus: the CPU quota of each rank, or None.
        """
        work = wanted.work
        assert work is not None
        kind, read = kind_of(work), dict(wanted.read or {})
        self.check_kind(given, type(work))
        outputs = work.outputs(world_size)
        for name, reader in read.items():
            if reader.rank != "all" and reader.rank >= outputs:
                of = f"there are {outputs} ranks" if outputs == world_size else f"a {work.kind} has one output, rank=0"
                given.refuse(f"read[{name!r}]: rank={reader.rank}, and {of}")
        timeout = wanted.timeout
        seconds = None if timeout is None else given.number("timeout", timeout, above=0.0, most=LONGEST_TIMEOUT_S)
        seconds = seconds or self._wanted.timeout or self._settings.timeout_s
        chosen = {
            name: choice.find(given, self._settings, wanted, world_size, self._chosen_by_test.get(name, ""))
            for name, choice in CHOICES.items()
        }
        launched = LaunchRequest(
            work=work,
            folder=wanted.folder,
            is_mirrored=wanted.is_mirrored,
            own_variables=wanted.own_variables,
            read=read,
            world_size=world_size,
            backend=self._backend,
            device=self._device,
            timeout_s=seconds if self._settings.attach is None else LONGEST_TIMEOUT_S,  # its user alone waits
            cores=cores,
            cpus=cpus,
            chosen={name: text for name, text in chosen.items() if text},
        )
        given.text("name", wanted.name, may_be_empty=True, without="@")
        conditions = Conditions(
            kind=work.kind,
            world_size=world_size,
            backend=self._backend,
            launcher=kind.launcher(work, self._settings.launcher),
            engine=work.engine,
            fake_rank=work.stands_for,
            around=self._around(launched),
        )
        request = self._case(given, wanted, conditions)
        return dataclasses.replace(request, launched=replace(launched, title=request.case.folder))

    def derived(self, given: Arguments, wanted: Called, around: dict[str, str]) -> CaseRequest:
        """Make the request of a number that is derived from launches with these surroundings."""
        conditions = Conditions(
            world_size=self._world_size,
            backend=self._backend,
            launcher=self._settings.launcher,
            fake_rank=self._stands_for(self._world_size),
            around=around,
        )
        return self._case(given, wanted, conditions)

    def check_kind(self, given: Arguments, kind: type[Work]) -> None:
        if why := LAUNCH_KINDS[kind].why_no_ranks:
            if self.only_structure:
                pytest.skip(f"not run: {why}, and the {FAKE} backend needs a rank that the plugin starts")
            if self._settings.attach is not None:
                given.refuse(f"--distbench-attach needs ranks that the plugin starts, and {why}")

    def find_work(self, given: Arguments, wanted: Called) -> Called:
        return find_work(given, wanted, test_folder=self._node.path.parent, leave_out=self._leave_out)

    def _case(self, given: Arguments, wanted: Called, conditions: Conditions) -> CaseRequest:
        settings, of_test = self._settings, self._wanted
        largest = max(conditions.world_size, self._world_size)  # some runs of a test may be too small for that rank
        if settings.attach is not None and settings.attach >= largest:
            pytest.skip(f"--distbench-attach {settings.attach}: this test has ranks 0 to {largest - 1}")
        first = of_test.launches or settings.first_launches
        if wanted.launches is not None:
            first = given.whole("launches", wanted.launches, least=1, most=MOST_LAUNCHES)
        test, case_id = test_and_id(self._node)
        case = Case(
            test=test,
            id=case_id,
            family=family_of(self._node, case_id),
            run=wanted.name,
            names_size=wanted.world_size is not None,
            conditions=conditions,
            device=self._device,
            params=wanted.identity,
        )
        if case.label in self._labels:
            called = f"named {case.label!r}" if case.label else "without a name"
            given.refuse(f"this test already has a run {called}: give each run its own name=")
        self._labels.add(case.label)
        terms = Terms(
            tolerance=of_test.tolerance if wanted.tolerance is None else given.tolerance(wanted.tolerance),
            default_tolerance=settings.tolerance,
            metrics=of_test.metrics,
            max_launches=max(first, settings.max_launches),
            cores=hardware.cores(),
            bounds=self.bounds,
            largest_message=settings.max_message_bytes,
        )
        if self.only_structure:  # everything is exact; settings for timings do not apply
            first, terms = 1, dataclasses.replace(terms, metrics=None, max_launches=1)
        return CaseRequest(
            nodeid=full_name(self._node),
            line=(self._node.location[1] or -1) + 1,
            case=case,
            terms=terms,
            launches=first,
            xfail_perf=of_test.xfail_perf or "",
            advisory=of_test.advisory or _ADVISORY[settings.advisory],
            is_advisory_of_timings=settings.advisory == "timings" and not of_test.advisory,
        )

    def evaluation(self, launched: Iterable[LaunchRequest | None]) -> Evaluation:
        """The code that pytest itself evaluates for the test, without the bodies of these launches."""
        node, works = self._node, [request.work for request in launched if request is not None]
        return Evaluation(
            module=getattr(getattr(node, "module", None), "__name__", ""),
            function=getattr(getattr(node, "cls", None), "__qualname__", getattr(node, "originalname", "")),
            bodies=frozenset(w.body.function.partition(".")[0] for w in works if isinstance(w, Ranks)),
            plugins=[getattr(plugin, "__name__", "") for plugin in node.config.pluginmanager.get_plugins()],
            ini=node.config.inipath,
        )

    def _stands_for(self, world_size: int) -> int | None:
        """The rank that the one process of a launch simulates under the backend ``fake``, else None."""
        if self._settings.fake_rank is None:
            return None
        wanted = self._wanted.fake_rank
        rank = self._settings.fake_rank if wanted is None else wanted
        if not -world_size <= rank < world_size:
            pytest.skip(f"not run: there is no rank {rank} among {world_size}")
        return rank % world_size

    def identity(self, given: Arguments, params: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            found = json_able(given.mapping("params", params if params is not None else {}))
        except BodyError as error:
            given.refuse(str(error))
        kept: dict[str, Any] = self._leave_out(mask_secrets(found))
        return kept

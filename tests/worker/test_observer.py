"""Every collective of this process while it looks, and the steps of a loop by kinds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from support.fake_world import fake_rank
from support.fingerprints import reduce
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

from pytest_distbench.records.iteration import NOT_WAITED, Collective, Course, StepKind
from pytest_distbench.worker import torch_internals
from pytest_distbench.worker.observer import MOST_KINDS, MOST_READS, Count, Observer, StepFollower, groups_here

SMALL, LARGE = reduce(4), reduce(4096)
CAPACITY = 100


class Loop:
    """Steps that send what they are given; counts how often that was read."""

    def __init__(self, described: int | None = None, *, remembers: bool = True) -> None:
        self.entered: int | None = 0
        self.reads = 0
        self.sent: list[tuple[int, Collective]] = []
        self.described = described
        self.ordinary = [SMALL] * (described or 0)
        self.remembers = remembers
        self.follower = StepFollower(self._count, self._read, lambda: self.described, CAPACITY)

    def _count(self) -> Count | None:
        return None if self.entered is None else (self.entered, self.entered)

    def _read(self, stretches: Sequence[tuple[int, int]]) -> list[list[Collective] | None]:
        """What the last ``CAPACITY`` were."""
        self.reads += 1
        known = self.sent[-CAPACITY:] if self.remembers else []
        oldest = known[0][0] if len(self.sent) > CAPACITY else 0
        return [
            None if begin_ns < oldest or not self.remembers else [row for at, row in known if begin_ns <= at <= end_ns]
            for begin_ns, end_ns in stretches
        ]

    def send(self, *rows: Collective) -> None:
        self.follower.begin()
        for row in rows:
            self.sent.append((time.time_ns(), row))
        self.entered = (self.entered or 0) + len(rows)

    def steps(self, *steps: Sequence[Collective]) -> Course | None:
        for number, rows in enumerate(steps, 1):
            self.send(*rows)
            self.follower.end(number)
        return self.follower.made(self.ordinary)


def kind(rows: list[Collective], steps: int, first: int, last: int, every: int = 0) -> StepKind:
    return StepKind(collectives=rows, entered=len(rows), steps=steps, first=first, last=last, every=every)


def test_steps_like_the_described_one_are_counted_and_others_read_once() -> None:
    loop = Loop(described=1)
    assert loop.steps([SMALL], [SMALL], [SMALL]) == Course(steps=3)
    assert loop.reads == 0

    loop = Loop(described=0)
    assert loop.steps(*([[], [], [LARGE]] * 3)) == Course(steps=9, others=[kind([LARGE], 3, 3, 9, 3)])
    assert loop.reads == 1

    # The last warm-up iteration may be one of those that come every third
    found = Loop(described=1).steps(*([[], [], [SMALL]] * 2))
    assert found == Course(steps=6, others=[kind([], 4, 1, 5), kind([SMALL], 2, 3, 6, 3)])

    found = Loop(described=0).steps(*([[], [], [LARGE], [], [], [SMALL]] * 2))
    assert found == Course(steps=12, others=[kind([LARGE], 2, 3, 9, 6), kind([SMALL], 2, 6, 12, 6)])


@pytest.mark.parametrize("apart", [2, 25])
def test_a_kind_is_read_before_it_is_forgotten(apart: int) -> None:
    found = Loop(described=10).steps(*([*[[SMALL] * 10] * apart, [LARGE], *[[SMALL] * 10] * apart, [SMALL]] * 4))

    assert found is not None
    assert [kind.collectives for kind in found.others] == [[LARGE], [SMALL]]


def test_long_loops_and_uneven_steps_are_recorded_as_far_as_torch_remembers() -> None:
    loop = Loop(described=10)
    found = loop.steps(*([[SMALL] * 10, [SMALL] * 10, [LARGE]] * 400))
    assert found == Course(steps=1200, others=[kind([LARGE], 400, 3, 1200, 3)])
    assert loop.reads == MOST_READS

    found = Loop(described=0).steps([SMALL], [SMALL], [], [SMALL], [], [], [], [])
    assert found is not None
    assert [(kind.every, kind.first, kind.last, kind.steps) for kind in found.others] == [(0, 1, 4, 3)]

    found = Loop(described=0, remembers=False).steps([], [], [SMALL, SMALL])
    assert found == Course(steps=3, others=[StepKind(entered=2, steps=1, first=3, last=3)])

    assert Loop(described=0).steps(*([SMALL] * number for number in range(1, MOST_KINDS + 2))) is None

    loop = Loop(described=0)
    loop.entered = None
    loop.follower.begin()
    loop.follower.end(1)
    assert loop.follower.made([]) is None


def script(*steps: Sequence[Collective], start: Sequence[Collective], described: int) -> Course | None:
    """The course of a script whose last step has all groups gone at its end."""
    loop = Loop()
    loop.send(*start)
    loop.follower.end(0)
    for number, rows in enumerate(steps[:-1], 1):
        loop.send(*rows)
        loop.described = len(steps[described - 1]) if number >= described else None
        loop.follower.end(number)
    loop.send(*steps[-1])
    loop.entered = 0
    loop.follower.end_last(len(steps), steps[described - 1])
    return loop.follower.made(steps[described - 1])


def test_a_script_has_a_course_from_before_its_first_step_to_its_end() -> None:
    found = script([], [], [], [LARGE], start=[SMALL, SMALL], described=3)
    others = [kind([SMALL, SMALL], 1, 0, 0), kind([LARGE], 1, 4, 4)]
    assert found == Course(steps=4, others=others, is_whole=True)

    found = script([], [], [LARGE], [], [], [LARGE], start=[], described=2)
    assert found == Course(steps=6, others=[kind([LARGE], 2, 3, 6, 3)], is_whole=True)
    assert script([SMALL], [SMALL], [SMALL], [SMALL], start=[], described=3) == Course(steps=4, is_whole=True)

    loop = Loop(described=0, remembers=False)
    loop.steps([], [])
    loop.send(SMALL)
    loop.follower.end_last(3, [])
    assert loop.follower.made([]) == Course(steps=2)


SIZE, ME = 4, 1


@pytest.fixture
def observer() -> Iterator[Observer]:
    with fake_rank(ME, world_size=SIZE) as rank:
        rank.watch.look_away()
        made = Observer(completes=True)
        made.look()
        yield made
        made.look_away()


def x(items: int = 3) -> torch.Tensor:
    return torch.ones(items)


def many(items: int = 3) -> list[torch.Tensor]:
    return [x(items) for _ in range(SIZE)]


def row(op: str, message_bytes: int = 12, how: str = "", dtype: str = "float32") -> Collective:
    return Collective(op, dtype, message_bytes, "default", 1, how)


CALLS: dict[str, tuple[Callable[[], object], Collective]] = {
    "all_reduce": (lambda: dist.all_reduce(x()), row("all_reduce", how="sum")),
    "max": (lambda: dist.all_reduce(x(), op=dist.ReduceOp.MAX), row("all_reduce", how="max")),
    "functional": (lambda: functional.all_reduce(x(), "avg", dist.group.WORLD).sum(), row("all_reduce", how="avg")),
    "inference": (torch.inference_mode()(lambda: dist.all_reduce(x())), row("all_reduce", how="sum")),
    "broadcast": (lambda: dist.broadcast(x(), src=2), row("broadcast", how="root 2")),
    "reduce": (lambda: dist.reduce(x(), dst=3, op=dist.ReduceOp.MIN), row("reduce", how="min root 3")),
    "all_gather": (lambda: dist.all_gather(many(), x()), row("all_gather")),
    "reduce_scatter": (lambda: dist.reduce_scatter(x(), many()), row("reduce_scatter", 48, "sum")),
    "gather": (lambda: dist.gather(x(), dst=0), row("gather", how="root 0")),
    "scatter": (lambda: dist.scatter(x(), many(), src=ME), row("scatter", 48, f"root {ME}")),
    "all_to_all": (lambda: dist.all_to_all(many(), many()), row("all_to_all", 48)),
    "all_to_all_single": (lambda: dist.all_to_all_single(x(8), x(8)), row("all_to_all_single", 32)),
    "send": (lambda: dist.send(x(), 0), row("send", how="to -1")),
    "recv": (lambda: dist.recv(x(), 3), row("recv", how="from +2")),
    "barrier": (dist.barrier, row("barrier", 0, dtype="")),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_operation_is_noted_with_its_reduction_root_or_partner(observer: Observer, call: str) -> None:
    issue, told = CALLS[call]
    issue()

    assert [note.collective for note in observer.notes] == [told]


def test_groups_are_described_by_name_size_and_stride(observer: Observer) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(x(), group=mesh["tp"].get_group())

    assert set(groups_here()) == {("mesh_dp", 2, 2), ("mesh_tp", 2, 1)}
    assert observer.notes[0].collective.group == "mesh_tp"


def test_the_reducer_of_ddp_gets_the_result_that_the_fake_backend_leaves_out(observer: Observer) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    observer.notes.clear()
    model(x(4)).sum().backward()

    assert [note.collective for note in observer.notes] == [row("all_reduce", 80)]


def p2p() -> list[dist.P2POp]:
    return [dist.P2POp(dist.isend, x(), 0), dist.P2POp(dist.irecv, x(), 3)]


def coalesced(*, is_waited: bool) -> None:
    with torch_internals.coalescing(None, is_async=True) as together:
        dist.all_reduce(x())
        dist.all_reduce(x())
    if is_waited:
        together.wait()


def reduced_by_function() -> torch.Tensor:
    found = functional.all_reduce(x(), "sum", dist.group.WORLD)
    assert isinstance(found, torch.Tensor)
    return found


def started(**options: object) -> dist.Work:
    return dist.all_reduce(x(), async_op=True, **options)


def then_chained() -> object:
    return started().get_future().then(lambda done: done.value())


def waited_by_another() -> None:
    import threading

    other = threading.Thread(target=started().wait)
    other.start()
    other.join()


class Holder:
    """Keeps what it started, and never asks."""

    def __init__(self) -> None:
        self.works = [dist.broadcast(x(), src=0, async_op=True), dist.all_gather(many(), x(), async_op=True)]


LEFT: dict[str, Callable[[], object]] = {
    "all_reduce": started,
    "all_reduce, kept": Holder,
    "barrier": lambda: dist.barrier(async_op=True),
    "isend and irecv": lambda: [dist.isend(x(), 0), dist.irecv(x(), 3)],
    "batch": lambda: dist.batch_isend_irecv(p2p()),
    "reduce_scatter": lambda: dist.reduce_scatter(x(), many(), async_op=True),
    "all_to_all_single": lambda: dist.all_to_all_single(x(8), x(8), async_op=True),
    "functional": reduced_by_function,
    "functional, in place": lambda: torch.ops._c10d_functional.all_reduce_(x(), "sum", dist.group.WORLD.group_name),
    "coalesced": lambda: coalesced(is_waited=False),
}
WAITED: dict[str, Callable[[], object]] = {
    "wait": lambda: started().wait(),
    "another thread": waited_by_another,
    "each of several": lambda: [work.wait() for work in Holder().works],
    "barrier": lambda: dist.barrier(async_op=True).wait(),
    "isend and irecv": lambda: [work.wait() for work in (dist.isend(x(), 0), dist.irecv(x(), 3))],
    "batch": lambda: [work.wait() for work in dist.batch_isend_irecv(p2p())],
    "future": lambda: started().get_future().wait(),
    "then": then_chained,
    "all of several futures": lambda: torch.futures.collect_all([w.get_future() for w in Holder().works]).wait(),
    "asked whether it is over": lambda: started().is_completed(),
    "coalesced": lambda: coalesced(is_waited=True),
    "functional, used": lambda: reduced_by_function() + 1,
    "functional, waited for": lambda: functional.wait_tensor(reduced_by_function()),
    "functional, reused memory": lambda: [reduced_by_function() + 1 for _ in range(3)],
    "gathered as objects": lambda: dist.broadcast_object_list([1], src=ME),
    "not asynchronous": lambda: dist.all_reduce(x()),
}


@pytest.mark.parametrize("call", LEFT)
def test_a_collective_that_nobody_waits_for_is_marked(observer: Observer, call: str) -> None:
    kept = LEFT[call]()

    assert observer.notes
    assert all(note.with_wait.how.endswith(NOT_WAITED) for note in observer.notes if note.with_wait.how is not None), (
        kept
    )


@pytest.mark.parametrize("call", WAITED)
def test_a_collective_that_somebody_waits_for_is_not_marked(observer: Observer, call: str) -> None:
    kept = WAITED[call]()

    assert observer.notes
    assert [note.with_wait for note in observer.notes] == [note.collective for note in observer.notes], kept


def test_a_dropped_result_is_marked_next_to_a_used_one_whatever_its_memory(observer: Observer) -> None:
    for _ in range(3):
        reduced_by_function()
        reduced_by_function() + 1

    assert [note.is_waited_for for note in observer.notes] == [False, True] * 3


def test_buckets_of_ddp_and_what_a_hook_makes_of_them_are_waited_for(observer: Observer) -> None:
    def hook(_, bucket):  # type: ignore[no-untyped-def] # torch reads annotations, and wants no texts
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    for is_hooked in (False, True):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        if is_hooked:
            model.register_comm_hook(None, hook)
        model(x(4)).sum().backward()

    assert observer.notes
    assert all(note.is_waited_for for note in observer.notes)


def test_what_is_sent_while_it_is_paused_or_looks_away_is_passed_over(observer: Observer) -> None:
    observer.is_paused = True
    dist.all_reduce(x())
    observer.is_paused = False
    observer.look_away()
    dist.all_reduce(x())

    assert observer.notes == []


def test_the_parts_of_a_sharded_model_are_waited_for(observer: Observer) -> None:
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (SIZE,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
    model(x(8).reshape(1, 8)).sum().backward()

    assert {note.collective.op for note in observer.notes} >= {"all_gather_into_tensor", "reduce_scatter_tensor"}
    assert all(note.is_waited_for for note in observer.notes)

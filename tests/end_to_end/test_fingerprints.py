"""Fingerprints: injected defects are caught in one launch, and a run says what an iteration does differently."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable

import pytest
from support.fingerprints import MIB, of, reduce
from support.launching import Launch, MadeLauncher
from support.projects import run

from pytest_distbench.judging.fingerprint_rule import differences
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.records.iteration import (
    NOT_RECORDED,
    NOT_WAITED,
    PICKLE,
    Collective,
    Course,
    Fingerprint,
    StepKind,
)
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import BodyReference
from pytest_distbench.records.record import replace

BARRIER_OF_ONE = Collective("barrier", "", 0, "group 2", 1, "")

BODIES = """
    import time

    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from pytest_distbench.worker import torch_internals
    from torch.nn.parallel import DistributedDataParallel

    def bf16_hook(_, bucket):  # torch's own refuses gloo
        work = dist.all_reduce(bucket.buffer().bfloat16() / dist.get_world_size(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0].to(bucket.buffer().dtype))

    def train(rank, fault):
        torch.manual_seed(0)
        widths = [64, 400, 400, 400, 400, 400, 10]
        net = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:])))
        if fault == "dtype":
            net = net.double()
        if fault == "layer not synced":
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["2.weight", "2.bias"])
        options = {"bucket_cap_mb": 0.1} if fault == "buckets" else {}
        options |= {"find_unused_parameters": True} if fault == "unused" else {}
        options |= {"init_sync": False} if fault == "no broadcast" else {}
        model = net if fault == "no sync" else DistributedDataParallel(net, **options)
        if fault == "bf16":
            model.register_comm_hook(None, bf16_hook)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        goal = rank.goal("accuracy", target=2.0, every=3, max_steps=3)
        for _ in goal.steps(samples_per_step=8):
            x = torch.ones(4, 64, dtype=torch.float64 if fault == "dtype" else torch.float32)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if fault == "second step":
                optimizer.step()
            if fault == "extra all_reduce":
                dist.all_reduce(loss.detach())
            if fault == "extra barrier":
                dist.barrier()
            goal.check(lambda: rank.sum_over_ranks(0.0))

    def trainings(rank):
        for fault in rank.params["faults"]:
            with rank.point(fault=fault):
                train(rank, fault)

    def loops(rank):
        x = torch.ones(16)
        for _ in rank.timed("latency", warmup=2, iterations=3):
            dist.all_reduce(x)
            rank.barrier()
            rank.agree(1.0)
            rank.sum_over_ranks(1.0)
        for i in rank.timed("long", warmup=1, iterations=1):
            for _ in range(12 if i < 0 else 1):
                dist.all_reduce(x)
        for _ in rank.timed("late", warmup=1, iterations=1):
            time.sleep(0.03 * rank.rank)
            dist.all_reduce(x)
        alone = [dist.new_group([member]) for member in range(2)][rank.rank]
        for _ in rank.timed("uneven", warmup=1, iterations=1):
            dist.all_reduce(x[:1])
            dist.all_reduce(x[:2])
            if rank.rank == 1:
                dist.barrier(alone)
        for i in rank.timed("cold", warmup=0, iterations=3):
            for _ in range(i + 1):
                dist.all_reduce(x)
        for _ in rank.timed("ring", warmup=1, iterations=2):
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, x, 1 - rank.rank), dist.P2POp(dist.irecv, torch.ones(16), 1 - rank.rank)
            ])
            for work in works:
                work.wait()
        for i in rank.timed("fifth", warmup=1, iterations=30):
            dist.all_reduce(x)
            if i % 5 == 2:
                dist.all_reduce(x)
        goal = rank.goal("accuracy", target=2.0, every=3, max_steps=9)
        for _ in goal.steps(samples_per_step=1):
            dist.all_reduce(x)
            goal.check(lambda: [dist.all_gather([torch.ones(1)] * 2, torch.ones(1)), rank.agree(0.5)][1])

    def left(x):
        return dist.all_reduce(x, async_op=True)

    def waited(x):
        dist.all_reduce(x, async_op=True).wait()

    def late(x, works=[]):  # waits for what the iteration before it has started
        for work in works:
            work.wait()
        works[:] = [dist.all_reduce(x, async_op=True)]

    def by_function(x):
        functional.all_reduce(x, "sum", dist.group.WORLD)

    def used(x):
        functional.all_reduce(x, "sum", dist.group.WORLD) + 1

    def waits(rank):
        x = torch.ones(16)
        for call in (left, waited, late, by_function, used):
            for _ in rank.timed(call.__name__, warmup=2, iterations=4):
                call(x)
            dist.barrier()

    def own_loop(rank):
        rank.barrier()
        rank.agree(1.0)
        for _ in range(rank.params["steps"]):
            dist.all_reduce(torch.ones(1))
        rank.record("sum", 1.0, better="exact")

    def objects(rank):
        for length in (10, 1000):
            text, found = "x" * length, [None, None]
            with rank.point(length=length):
                for i in rank.timed("exchange", warmup=1, iterations=6):
                    dist.broadcast_object_list([text, text], src=0)
                    dist.all_gather_object(found, text * rank.rank)
                    dist.gather_object(text, found if rank.rank == 0 else None, dst=0)
                    dist.scatter_object_list([None], [text, text] if rank.rank == 0 else None, src=0)
                    (dist.recv_object_list if rank.rank else dist.send_object_list)([text], 1 - rank.rank)
                    if i in (2, 5):
                        dist.broadcast_object_list([text], src=0)

    def sharded(rank):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (rank.world_size,))
        for fault in ("", "all_reduce", "all_gather"):
            model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 8))
            for part in (*model, model):
                fully_shard(part, mesh=mesh)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with rank.point(fault=fault):
                for i in rank.timed("step", warmup=1, iterations=8):
                    loss = model(torch.ones(4, 32)).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    dist.all_reduce(torch.ones(2112))  # gloo's own of a gradient is as large
                    if i > 0 and i % 4 == 3 and fault == "all_reduce":
                        dist.all_reduce(torch.ones(1000))
                    if i > 0 and i % 4 == 3 and fault == "all_gather":
                        dist.all_gather([torch.ones(5)] * 2, torch.ones(5))

    def starts(rank):
        for _ in range(2001):
            dist.all_reduce(torch.ones(1))
        for name in ("full", "blind"):
            if name == "blind":
                torch_internals.recordings = lambda whole: {}
            with rank.point(name=name):
                goal = rank.goal("accuracy", target=2.0, every=1, max_steps=1)
                for _ in goal.steps(samples_per_step=1):
                    goal.check(lambda: 0.0)
"""

BUCKETS = "2 all_reduce of 1.239 MiB to 1.323 MiB"

FAULTS = {
    "no sync": [f"{BUCKETS} float32 were removed", "2.562 MiB sent per rank became 0 B"],
    "layer not synced": ["1 all_reduce of 1.323 MiB became 1 of 728.1 KiB", "2.562 MiB sent per rank became 1.95 MiB"],
    "buckets": [f"{BUCKETS} became 5 of 101.6 KiB to 642.2 KiB"],
    "unused": [f"{BUCKETS} became 2 of 1.241 MiB to 1.321 MiB", "1 all_reduce of 48 B int32 was added"],
    "extra all_reduce": ["1 all_reduce of 4 B float32 was added"],
    "extra barrier": ["1 barrier was added"],
    "bf16": [
        f"{BUCKETS} float32 became 2 of 634.4 KiB to 677.3 KiB bfloat16 (sum)",
        "2.562 MiB sent per rank became 1.281 MiB",
    ],
    "dtype": [
        f"{BUCKETS} float32 became 2 of 1.254 MiB to 3.87 MiB float64",
        "2.562 MiB sent per rank became 5.124 MiB",
        "2.562 MiB of parameters per rank became 5.124 MiB",
    ],
    "second step": ["2 optimizer steps of all ranks became 4"],
}
"""Defects of a training step, with their texts."""


@pytest.fixture(scope="module")
def launcher(made_launcher: MadeLauncher) -> Launcher:
    return made_launcher("warm")


@pytest.fixture(scope="module")
def launch(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("fingerprints")
    (folder / "bodies.py").write_text(textwrap.dedent(BODIES))
    return Launch(launcher, folder, folder / "bodies.py")


@pytest.fixture(scope="module")
def trainings(launch: Launch) -> dict[str, Fingerprint]:
    """Fingerprints of one launch: a healthy training twice, and one with each fault."""
    record = launch("trainings", params={"faults": ["none", *FAULTS, "no broadcast", "none again"]})
    assert record.outcome == "passed", record.reason
    return record.fingerprints


@pytest.mark.spawn
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_training_step_is_caught_in_one_launch(trainings: dict[str, Fingerprint], fault: str) -> None:
    assert differences(trainings["step_time[fault=none]"], trainings[f"step_time[fault={fault}]"]) == FAULTS[fault]


@pytest.mark.spawn
def test_parameters_that_are_not_broadcast_at_the_start_are_caught(trainings: dict[str, Fingerprint]) -> None:
    told = differences(trainings["training_start[fault=none]"], trainings["training_start[fault=no broadcast]"])

    assert told[1] == "2 broadcast of 288 B to 2.562 MiB float32 and int64 were removed"


@pytest.mark.spawn
@pytest.mark.parametrize("key", ["step_time", "training_start"])
def test_the_same_training_has_the_same_fingerprint(trainings: dict[str, Fingerprint], key: str) -> None:
    healthy = trainings[f"{key}[fault=none]"]

    assert differences(healthy, trainings[f"{key}[fault=none again]"]) == []
    assert healthy.collectives["all"]


@pytest.fixture(scope="module")
def looped(launch: Launch) -> LaunchRecord:
    record = launch("loops")
    assert record.outcome == "passed", record.reason
    return record


@pytest.mark.spawn
def test_an_iteration_shows_what_each_rank_sends_and_how_often_and_not_what_the_plugin_does(
    looped: LaunchRecord,
) -> None:
    latency = of(reduce(64, how="sum"), is_full=True, course={"all": Course(steps=3)})
    assert looped.fingerprints["latency"] == latency
    assert looped.fingerprints["long"].collectives["all"] == [reduce(64, 12, how="sum")]
    assert looped.fingerprints["long"].beyond["all"] == (-11, 1)

    ranks = looped.fingerprints["uneven"].collectives
    alike = [reduce(4, how="sum"), reduce(8, how="sum")]
    assert [ranks["0"], ranks["1"]] == [alike, [*alike, BARRIER_OF_ONE]]

    first, second = looped.late_s["late"]
    assert second - first > 0.02

    # A partner is a distance, so that the ranks of a ring do the same
    send, recv = looped.fingerprints["ring"].collectives["all"]
    assert (send.op, send.message_bytes, send.how) == ("send", 64, "to +1")
    assert (recv.op, recv.message_bytes, recv.how) == ("recv", 64, "from +1")

    assert looped.fingerprints["fifth"].collectives["all"] == [reduce(64, how="sum")]
    assert looped.fingerprints["fifth"].beyond == {"all": (6, 30)}
    kind = StepKind(collectives=[reduce(64, 2)], entered=2, steps=6, first=3, last=28, every=5)
    assert looped.fingerprints["fifth"].course == {"all": Course(steps=30, others=[kind])}

    told = looped.fingerprints["step_time"]
    gather = Collective("all_gather", "float32", 4, "default", 1)
    kind = StepKind(collectives=[reduce(64), gather], entered=2, steps=3, first=3, last=9, every=3)
    assert (told.collectives["all"], told.beyond) == ([reduce(64, how="sum")], {})
    assert told.course == {"all": Course(steps=9, others=[kind])}


@pytest.fixture(scope="module")
def waiting(launch: Launch) -> dict[str, Fingerprint]:
    record = launch("waits")
    assert record.outcome == "passed", record.reason
    return record.fingerprints


@pytest.mark.spawn
@pytest.mark.parametrize(
    ("loop", "ways"),
    [
        ("left", [f"sum, {NOT_WAITED}"]),
        ("waited", ["sum"]),
        ("late", [f"sum, {NOT_WAITED}"]),
        ("by_function", [f"sum, {NOT_WAITED}"]),
        ("used", ["sum"]),
    ],
)
def test_a_collective_that_its_iteration_does_not_wait_for_is_marked(
    waiting: dict[str, Fingerprint], loop: str, ways: list[str]
) -> None:
    assert [row.how for row in waiting[loop].collectives["all"]] == ways


@pytest.mark.spawn
def test_what_a_loop_of_the_bodys_own_sends_is_counted_and_has_no_fingerprint(launch: Launch) -> None:
    sends, silent = launch("own_loop", params={"steps": 3}), launch("own_loop", params={"steps": 0})

    assert (sends.fingerprints, sends.undescribed_collectives) == ({}, 3)
    assert (silent.fingerprints, silent.undescribed_collectives) == ({}, 0)


@pytest.mark.spawn
def test_pickled_objects_are_counted_without_their_sizes(launch: Launch) -> None:
    record = launch("objects")
    assert record.outcome == "passed", record.reason
    short, long = record.fingerprints.values()

    assert differences(short, replace(long, pickled_bytes=short.pickled_bytes)) == []
    sent = [(c.op.removesuffix("_into_tensor"), c.message_bytes) for c in short.collectives["0"] if c.dtype == PICKLE]
    assert sent == [("broadcast", 0), ("all_gather", 0), ("gather", 0), ("scatter", 0), ("send", 0)]
    assert 0 < short.pickled_bytes < long.pickled_bytes
    [every_third] = short.course["0"].others  # what is sent and received is not told of these steps
    assert (every_third.every, [c.dtype for c in every_third.collectives or ()].count(PICKLE)) == (3, 5)


@pytest.fixture(scope="module")
def sharded(launch: Launch) -> dict[str, Fingerprint]:
    record = launch("sharded")
    assert record.outcome == "passed", record.reason
    return record.fingerprints


@pytest.mark.spawn
@pytest.mark.parametrize(
    ("fault", "text", "size"),
    [
        ("all_reduce", "1 all_reduce of 3.906 KiB float32 was added", "32.72 KiB"),
        ("all_gather", "1 all_gather of 20 B float32 was added", "28.83 KiB"),
    ],
)
def test_a_change_in_undescribed_steps_is_reported_alone_for_sharded_trainings(
    sharded: dict[str, Fingerprint], fault: str, text: str, size: str
) -> None:
    """Gloo does a reduce_scatter_tensor with an all_reduce, and the recorder says so."""
    healthy, faulty = sharded["step[fault=]"], sharded[f"step[fault={fault}]"]
    [kind] = faulty.course["all"].others
    when = "every 4th step (2 of 8)"

    assert differences(healthy, faulty) == [f"{when}: {text}", f"{when}: 28.81 KiB sent per rank became {size}"]
    assert kind.collectives is not None
    assert {"all_gather_into_tensor", "reduce_scatter_tensor"} < {row.op for row in kind.collectives}


@pytest.mark.spawn
def test_the_start_of_a_training_is_recorded_as_far_as_torch_remembers(launch: Launch) -> None:
    found = launch("starts").fingerprints

    assert found["training_start[name=full]"].missing == (
        "more than the 2000 collectives torch remembers (TORCH_FR_BUFFER_SIZE)"
    )
    assert found["training_start[name=blind]"].missing.startswith(NOT_RECORDED)


SCRIPT = """
import os

import torch
import torch.distributed as dist

fault = os.environ.get("FAULT", "")
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
weights = [torch.nn.Parameter(torch.ones(16, 16)), torch.nn.Parameter(torch.ones(16))]
for w in weights:
    dist.broadcast(w.data, src=0)
optimizer = torch.optim.SGD(weights, lr=0.01)
for step in range(1, 31 - 10 * (fault == "ends early")):
    sum(w.sum() for w in weights).backward()
    optimizer.step()
    if step % 10 == 0:
        for w in weights:
            if fault != "outer step without matrices" or w.ndim < 2:
                dist.all_reduce(w.data, op=dist.ReduceOp.MAX if fault == "outer step by max" else dist.ReduceOp.SUM)
    if step % (5 if fault == "evaluated more often" else 6) == 0 and fault != "not evaluated":
        for _ in range(1 + (fault == "evaluated twice")):
            dist.all_gather([torch.ones(1)] * 2, torch.ones(1))
dist.barrier()
if fault != "not destroyed":
    dist.destroy_process_group()
"""

GONE = "every 10th step (2 of 30): 1 all_reduce of 1 KiB float32 was removed"

FAULTS_OF_SCRIPT = {
    "not destroyed": "",
    "outer step without matrices": GONE,
    "outer step by max": "2 all_reduce of 64 B to 1 KiB (sum) became 2 of 64 B to 1 KiB (max)",
    "not evaluated": "every 6th step (4 of 30): 1 all_gather of 4 B float32 was removed",
    "evaluated twice": "every 6th step (4 of 30): 1 all_gather of 4 B float32 was added",
    "evaluated more often": "all_gather float32 of the whole run: 5, 20 B became 6, 24 B",
    "ends early": "30 steps of the whole run became 20",
}
"""Defects of what a script does now and then, each with a line of its text; the first is none."""


@pytest.fixture(scope="module")
def scripted(launch: Launch) -> Callable[[str], Fingerprint]:
    """What a script does with a fault."""
    path = launch.directory / "script.py"
    path.write_text(SCRIPT)

    @functools.cache
    def run_with(fault: str) -> Fingerprint:
        body = BodyReference(file=str(path))
        record = launch("", body=body, backend="gloo", variables={"FAULT": fault}, params={})
        assert record.outcome == "passed", record.reason
        return record.fingerprints["optimizer_step"]

    return run_with


@pytest.mark.spawn
@pytest.mark.parametrize("fault", FAULTS_OF_SCRIPT)
def test_a_change_in_some_steps_of_a_script_is_reported(scripted: Callable[[str], Fingerprint], fault: str) -> None:
    healthy = scripted("")
    told = differences(healthy, scripted(fault))

    assert healthy.collectives == {"all": []}
    assert [kind.first for kind in healthy.course["all"].others] == [0, 6, 10, 30]
    assert any(line.endswith(FAULTS_OF_SCRIPT[fault]) for line in told or [""])
    assert not told or "of the whole run: " in told[-1] or "max" in fault


ACCUMULATING = """
import contextlib, os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

fault = os.environ.get("FAULT", "")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)))
model = torch.compile(model, backend="aot_eager") if fault == "compiled" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
micro_batches = 3
for step in range(8):
    for i in range(micro_batches):
        is_last = i == {"the first is reduced": 0, "the second is reduced": 1}.get(fault, micro_batches - 1)
        if fault == "all are reduced":
            is_last = True
        with contextlib.nullcontext() if is_last else model.no_sync():
            model(torch.ones(4, 8)).sum().backward()
    if step == 0 and fault == "sizes are sent":
        dist.broadcast(torch.ones(5, dtype=torch.int32), src=0)
        dist.broadcast(torch.ones(1, dtype=torch.int32), src=0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

OF_REDUCER = {
    "": [],
    "compiled": [],
    "the first is reduced": [],
    "the second is reduced": [],
    "all are reduced": ["2 all_reduce of 848 B float32 were added"],
    "sizes are sent": ["before the first step: 2 broadcast of 4 B to 20 B int32 were added"],
}
"""Fault -> its lines. The step in which DDP's reducer sends its rebuilt buckets depends on where it reduces."""


@pytest.mark.spawn
@pytest.mark.parametrize("fault", OF_REDUCER)
def test_the_rebuilding_of_a_reducers_buckets_is_no_difference(launch: Launch, fault: str) -> None:
    path = launch.directory / "accumulating.py"
    path.write_text(ACCUMULATING)

    @functools.cache
    def run_with(fault: str) -> Fingerprint:
        record = launch("", body=BodyReference(file=str(path)), backend="gloo", variables={"FAULT": fault}, params={})
        assert record.outcome == "passed", record.reason
        return record.fingerprints["optimizer_step"]

    told = differences(run_with(""), run_with(fault))

    assert [line for line in OF_REDUCER[fault] if line not in told] == []
    assert any("int32" in line for line in told) == (fault == "sizes are sent")
    assert bool(told) == bool(OF_REDUCER[fault])


SHARDING = """
import os

import torch
import torch.distributed as dist

fault = os.environ.get("FAULT", "")
dist.init_process_group("gloo")
mine = dist.new_group(group_desc="mine")
weights = [torch.nn.Parameter(torch.ones(size)) for size in (8, 4)]
optimizer = torch.optim.SGD([{"params": [w]} for w in weights], lr=0.01)
groups = list(optimizer.param_groups)
for step in range(1, 9):
    optimizer.zero_grad()
    sum(w.sum() for w in weights).backward()
    for w in weights:
        op = dist.ReduceOp.MAX if fault == "another reduction" else dist.ReduceOp.SUM
        dist.reduce_scatter_tensor(torch.empty(w.numel() // 2), w.grad, op=op, group=mine)
    for group in groups if fault != "all groups at once" else [None]:
        optimizer.param_groups = [group] if group else groups
        optimizer.step()
    optimizer.param_groups = groups
    for w in weights:
        dist.all_gather_into_tensor(w.data, w.data.chunk(2)[dist.get_rank()].clone(), group=mine)
    if step % 4 == 0:
        dist.reduce_scatter_tensor(torch.empty(2), weights[1].data, group=mine)
dist.destroy_process_group()
"""

OF_SHARDING = {
    "another reduction": ["2 reduce_scatter_tensor of 16 B to 32 B (sum) in mine became 2 of 16 B to 32 B (max)"],
    "all groups at once": ["4 optimizer steps of all ranks became 2"],
}


@pytest.mark.spawn
def test_a_sharding_framework_that_steps_per_group_has_a_fingerprint(
    launch: Launch,
) -> None:
    """Gloo does a reduce_scatter_tensor with an all_reduce."""
    path = launch.directory / "sharding.py"
    path.write_text(SHARDING)

    def run_with(fault: str) -> Fingerprint:
        record = launch("", body=BodyReference(file=str(path)), backend="gloo", variables={"FAULT": fault}, params={})
        assert record.outcome == "passed", record.reason
        return record.fingerprints["optimizer_step"]

    healthy = run_with("")
    rows = [(row.op, row.message_bytes, row.group, row.how) for row in healthy.collectives["all"]]
    gathered = [("all_gather_into_tensor", size, "mine", "") for size in (16, 8)]
    scattered = [("reduce_scatter_tensor", size, "mine", "sum") for size in (32, 16)]

    assert rows == gathered + scattered
    assert (healthy.course["all"].steps, healthy.facts["parameter_bytes"]) == (8, {"all": 48})
    kinds = [kind.collectives for kind in healthy.course["all"].others]
    assert {row.op for rows in kinds for row in rows or ()} == {"all_gather_into_tensor", "reduce_scatter_tensor"}
    assert {fault: differences(healthy, run_with(fault)) for fault in OF_SHARDING} == OF_SHARDING


TEST = """
    def body(rank):
        pass

    def test_step(distbench):
        distbench.run(body, params={"stand_in": {"step": [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]}})
"""


@pytest.fixture
def recorded(project: Callable[[str], pytest.Pytester], monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The test above with a baseline: two all_reduce of 25 MiB."""
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", f"2x{25 * MIB}")
    made = project(TEST)
    assert run(made, "--distbench-update").ret == 0
    return made


def stored_text(project: pytest.Pytester) -> str:
    [path] = (project.path / "baselines").rglob("*.json")
    return path.read_text()


def test_a_fingerprint_is_one_line_of_the_baseline(recorded: pytest.Pytester) -> None:
    assert '          "all": [["all_reduce", "float32", 26214400, "default", 2, null]]\n' in stored_text(recorded)
    assert run(recorded).ret == 0


def test_a_changed_fingerprint_fails_and_says_how(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", "214x104858")
    monkeypatch.setenv("DISTBENCH_STAND_IN_SOFTWARE", "torch=2.14.0")
    result = run(recorded)

    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "communication changed: step: 2 all_reduce of 25 MiB became 214 * and 1 more * torch 2.13.0 -> 2.14.0)",
            "Communication per step changed:",
            "  step: 2 all_reduce of 25 MiB became 214 of 102.4 KiB",
            "  step: 50 MiB sent per rank became 21.4 MiB",
            "* metric* (1 changed, * unchanged), 1 launch* in *",
        ]
    )


def test_a_changed_fingerprint_is_the_likely_cause_of_a_slowdown(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", "214x104858")
    monkeypatch.setenv("DISTBENCH_STAND_IN_FACTOR", "1.5")

    run(recorded, "--distbench-launches=3").stdout.fnmatch_lines(
        [
            "step +50.* % (threshold +10%); communication changed",
            "likely cause: communication per step changed",
            "  step: 2 all_reduce of 25 MiB became 214 of 102.4 KiB",
        ]
    )


@pytest.mark.parametrize("mode", ["changed", "failed", "all"])
def test_an_update_takes_the_changed_fingerprint(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", "214x104858")

    assert run(recorded, f"--distbench-update={mode}").ret == 0
    assert '["all_reduce", "float32", 104858, "default", 214, null]' in stored_text(recorded)
    assert run(recorded).ret == 0


def test_a_baseline_without_fingerprint_says_so_and_passes(
    project: Callable[[str], pytest.Pytester], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = project(TEST)
    run(made, "--distbench-update")
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", "1x4")
    result = run(made)

    result.stdout.fnmatch_lines(["* metric* (* unchanged, 1 new), 1 launch* in *"])
    assert result.ret == 0


@pytest.mark.spawn
def test_without_warm_up_the_first_timed_iteration_is_described(looped: LaunchRecord) -> None:
    assert looped.fingerprints["cold"].collectives["all"] == [reduce(64, how="sum")]
    assert looped.fingerprints["cold"].beyond["all"] == (1 + 2, 3)


@pytest.mark.spawn
def test_a_timing_has_cpu_time_waits_and_peak_memory(looped: LaunchRecord) -> None:
    [latency, *_] = looped.measurements

    assert latency.companions["cpu_s"] > 0
    assert latency.companions["waits"] > 0
    assert looped.peak_memory_bytes > 0


@pytest.mark.spawn
def test_that_nobody_waits_any_more_is_a_difference(waiting: dict[str, Fingerprint]) -> None:
    told = differences(waiting["waited"], waiting["left"])

    assert told == ["1 all_reduce of 64 B (sum) became 1 of 64 B (sum, not waited for)"]


def test_a_marker_that_lists_other_metrics_leaves_the_fingerprint_unjudged(
    recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTBENCH_STAND_IN_COLLECTIVES", "1x4")
    marked = "import pytest\n" + textwrap.dedent(TEST).replace(
        "def test_", "@pytest.mark.distbench(metrics=['step'])\ndef test_"
    )
    (recorded.path / "test_it.py").write_text(marked)

    assert run(recorded).ret == 0

"""Layouts on real ranks: what is equal passes, and what is not is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from support.launching import RunInside
from support.processes import LIMIT_S

from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import SAID
from pytest_distbench.store.files import read_run_record

pytestmark = [pytest.mark.spawn, pytest.mark.timeout(LIMIT_S)]

Compare = Callable[..., tuple[pytest.RunResult, str]]

FAULTY = Path(__file__).parents[3] / "benchmarks" / "equivalence" / "faulty.py"

SOUND = ["tensor_parallel", "reshard_from_one", "parts of the sequence"]
WRONG = {
    "one bias not synchronised": "ranks hold different gradients, so it was not reduced",
    "weights saved in bf16": "before step 3 deviates first, with 28 others of 29: check what was saved and loaded",
    "a stage clips by its own norm": "its gradient is right, so check clipping, the optimizer and its schedule",
    "TP output not reduced": "blocks.0.up (Linear), forward: each rank's slice is off by ",
    "a stage has others' targets": "the loss, backward: what it passes back to head (Linear): rank 1's slice is ",
    "DP ranks drop out the same units": "ranks 0 and 1 have other samples, and the same random numbers for dropout",
}

BROKEN = """
import dataclasses, sys
sys.path.insert(0, {folder!r})
import faulty
import torch

still = dataclasses.replace(faulty.gpt, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
frozen = dataclasses.replace(faulty.gpt, loss=lambda scores, targets: 0 * scores.sum() + targets.sum() / 64)
bare = dataclasses.replace(faulty.gpt, tensor_parallel=None)
plain = dataclasses.replace(faulty.gpt, tensor_parallel=lambda model: {{}})
number = 7
no_loss = dataclasses.replace(faulty.gpt, loss=None)
no_norm = dataclasses.replace(faulty.gpt, max_norm=-1)
no_pair = dataclasses.replace(faulty.gpt, batch=lambda step: torch.ones(8))
unseeded = dataclasses.replace(faulty.gpt, batch=lambda step: (torch.randint(9, (8, 9)), torch.randint(9, (8, 9))))


class Noisy(faulty.Gpt):
    def forward(self, x):
        return super().forward(x) + torch.rand(1)


class Complex(faulty.Gpt):
    def __init__(self):
        super().__init__()
        self.register_buffer("cis", torch.ones(4, dtype=torch.complex64))


noisy = dataclasses.replace(faulty.gpt, model=Noisy)
turning = dataclasses.replace(faulty.gpt, model=Complex)
"""
REFUSED = {
    ("still", "ddp"): "nothing is trained, so under any layout it is equal: on one rank no weight changes",
    ("frozen", "ddp"): "nothing is trained, so under any layout it is equal: on one rank every gradient is 0",
    ("bare", "tensor_parallel"): "this layout needs TrainSpec(tensor_parallel=...)",
    ("plain", "tensor_parallel"): "no rank sent all_reduce in a step, as it should; they sent nothing",
    ("number", "ddp"): "wanted a TrainSpec, found 7",
    ("no_loss", "ddp"): "TrainSpec(loss=...): wanted a function, found None",
    ("no_norm", "ddp"): "TrainSpec(max_norm=...): wanted a number above 0, or None, found -1",
    ("no_pair", "ddp"): "TrainSpec(batch=...): wanted a pair of tensors, found ",
    ("unseeded", "ddp"): "two calls for step 0 give other samples: seed a generator by the step",
    ("noisy", "ddp"): "the network or its loss draws random numbers, so no two passes are equal",
    ("turning", "ddp"): "cis: complex tensors cannot be compared; wanted real ones",
    ("still", "dpp"): "unknown layout 'dpp': known are one, ddp, accumulation",
}


def layouts_of(training: str, layouts: Iterable[str], **options: object) -> str:
    """The text of a test of each of these layouts of a training."""
    given = "".join(f", {name}={value}" for name, value in options.items())
    return f"""
@pytest.mark.parametrize("layout", {[*layouts]!r})
def test_{re.sub(r"[^a-z]", "_", training.rpartition("/")[2] + given)}(equivalent, layout):
    equivalent({training!r}, layout{given})
"""


@pytest.fixture
def compare(pytester: pytest.Pytester, run_inside: RunInside) -> Compare:
    """Runs the texts of tests, with modules next to them; returns the result, and what was printed as one line."""

    def run(*tests: str, options: Sequence[str] = ("--world-size=2",), **modules: str) -> tuple[pytest.RunResult, str]:
        pytester.makeini("[pytest]\n")
        pytester.makepyfile("\n".join(["import pytest", *tests]), **modules)
        found = run_inside(*options)
        return found, " ".join(found.stdout.str().split())

    return run


def test_what_is_equal_passes_and_what_is_not_is_named(pytester: pytest.Pytester, compare: Compare) -> None:
    options = ["--world-size=2", "--distbench-json=run.json"]
    found, _ = compare(layouts_of(f"{FAULTY}::gpt", [*SOUND, *WRONG]), options=options)
    results = {result.case.params["layout"]: result for result in read_run_record(pytester.path / "run.json").results}
    told = {
        name: [str(m.facts[SAID]) for m in result.launches[0].measurements if SAID in m.facts]
        for name, result in results.items()
    }

    found.assert_outcomes(passed=len(SOUND), failed=len(WRONG))
    assert {name: told[name] for name in SOUND} == {name: [] for name in SOUND}
    assert [name for name, sentence in WRONG.items() if sentence not in told[name][0]] == []


def test_what_proves_nothing_is_refused(compare: Compare) -> None:
    layouts = grouped(REFUSED)
    tests = [layouts_of(f"trainings.py::{row}", layouts[row]) for row in layouts]
    found, text = compare(*tests, trainings=BROKEN.format(folder=str(FAULTY.parent)))

    found.assert_outcomes(failed=len(REFUSED))
    assert [sentence for sentence in REFUSED.values() if sentence not in text] == []


OWN = """
import dataclasses, os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytest_distbench.layouts.training import TrainSpec


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.Linear(16, 512)
        self.idle = torch.nn.Linear(4, 4)
        self.count = torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
        self.head = torch.nn.Linear(512, 4)
        self.gate = torch.nn.Parameter(torch.ones(1))
        torch.nn.init.zeros_(self.idle.weight)
        torch.nn.init.zeros_(self.idle.bias)

    def forward(self, x):
        return self.head(torch.relu(self.module(x))) * self.gate


class Busy(Net):
    def forward(self, x):
        return super().forward(x) + self.idle(x[:, :4])


def batch(step):
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(8, 16, generator=drawn), torch.randint(4, (8,), generator=drawn)


def twice(graph, inputs):
    return lambda *args: tuple(2 * output for output in graph(*args))


def by_hand(run, *, idle=False, spoils=False, backend=None, times=1):
    model = run.model()
    if times != 1:
        model.head.register_forward_hook(lambda module, args, output: times * output)
    if backend is not None:
        model.compile(backend=backend)
    updates = run.updates(model)
    for step in run.steps():
        [part] = step.share(run.index, run.of)
        loss = step.loss(model, part)
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
        if idle:
            model.idle.weight.grad = torch.ones_like(model.idle.weight)
        if spoils and dist.get_rank() == 1:
            model.gate.grad *= 3
        step.has_gradients(model, loss, shares=run.of)
        updates.update()
        step.is_over(model)


net = TrainSpec(
    model=Net,
    batch=batch,
    loss=F.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.125),
    layouts={
        "by hand": by_hand,
        "tripled": lambda run: by_hand(run, times=3),
        "a gradient where there is none": lambda run: by_hand(run, idle=True),
        "compiled wrongly": lambda run: by_hand(run, backend=twice),
        "spoilt on one rank": lambda run: by_hand(run, spoils=True),
    },
)
busy = dataclasses.replace(net, model=Busy)
# Of the number of ranks a specification knows nothing.
rate = dataclasses.replace(net, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1 * int(os.environ["WORLD_SIZE"])))
halved = dataclasses.replace(net, loss=lambda scores, targets: F.cross_entropy(scores, targets) / dist.get_world_size())


def summed(scores, targets):
    ranks = torch.ones(())
    dist.all_reduce(ranks)
    return F.cross_entropy(scores, targets) * ranks


doubled = dataclasses.replace(net, loss=summed)


class Narrow(Net):
    def forward(self, x):
        assert self.gate.dtype == torch.float32, "a kernel for float32"
        return super().forward(x)


narrow = dataclasses.replace(net, model=Narrow)
"""
OF_OWN = {
    "by hand": "",
    "a gradient where there is none": "the gradient of idle.weight in step 1 deviates first",
    "compiled wrongly": "the number of ranks; without the compiler no module deviates, so the fault is the",
    "spoilt on one rank": "on rank 1 alone: other ranks hold the right one, so check what changes it after the",
}


OF_RANKS = {
    "rate": "head.weight after the update of step 1 deviates first",
    "halved": "the loss of step 1 deviates first",
    "doubled": "each rank's slice is 2 times what it should be, the number of ranks",
}


ON_ONE_RANK = """
@pytest.mark.world_size(1)
def test_one(equivalent):
    equivalent("own.py::net", "by hand")
"""


def test_the_float64_training_runs_in_a_world_of_one_rank(compare: Compare) -> None:
    """A rate or a loss that the number of ranks scales is reported; on one rank there is nothing to compare."""
    tests = [layouts_of(f"own.py::{row}", ["by hand"]) for row in OF_RANKS]
    found, text = compare(*tests, ON_ONE_RANK, options=["--world-size=2", "-rs"], own=OWN)
    nothing = "nothing is spread over one rank, so nothing is compared: give --world-size=2"

    found.assert_outcomes(failed=len(OF_RANKS), skipped=1)
    assert [sentence for sentence in (*OF_RANKS.values(), nothing) if sentence not in text] == []


def test_a_training_of_ones_own_is_compared(compare: Compare) -> None:
    """It has a module called module, a whole number among its parameters, and some without a gradient."""
    found, text = compare(
        layouts_of("own.py::net", OF_OWN),
        layouts_of("own.py::busy", ["ddp"]),
        layouts_of("own.py::narrow", ["by hand", "spoilt on one rank"]),
        layouts_of("own.py::net", ["spoilt on one rank"], simulated_ranks=4),
        own=OWN,
    )

    found.assert_outcomes(passed=3, failed=5, warnings=1)
    assert "rank 0: the values of one rank are in float32, as the network has no float64" in text
    assert [sentence for sentence in OF_OWN.values() if sentence not in text] == []
    assert "asks which rank it is needs real ranks" in text or "no LocalTensorMode" in text


SIMULATED = {
    "tensor_parallel": "",
    "one flat buffer": "",
    "nothing synchronised": "ranks hold different gradients, so it was not reduced",
    "TP gradient scaled by its size": "4 times that of one rank",
    "one rank skips a step": "a layout that asks which rank it is needs real ranks",
    "gradients summed": "DDP, FSDP2, a pipeline and parts of unequal size need real ranks",
    "fsdp2": "torch cannot simulate its ranks: leave simulated_ranks= out",
}


def test_one_process_simulates_ranks(compare: Compare) -> None:
    ours = layouts_of(f"{FAULTY}::gpt", SIMULATED, simulated_ranks=4)
    found, text = compare(ours, layouts_of("own.py::net", ["tripled"], simulated_ranks=4), options=(), own=OWN)
    if "this torch has no LocalTensorMode" in text:
        pytest.skip("this torch has no LocalTensorMode")
    tripled = "head (Linear), forward: each rank's slice is 3 times what it should be"

    found.assert_outcomes(passed=2, failed=len(SIMULATED) - 2 + 1)
    assert [sentence for sentence in (*SIMULATED.values(), tripled) if sentence not in text] == []

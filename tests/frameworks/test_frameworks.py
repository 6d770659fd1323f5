"""Training frameworks, each unchanged in an environment of its own: what counts as a step, and a silent fault."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_distbench.store.files import read_run_record

pytestmark = [pytest.mark.spawn, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]

DEEPSPEED = """
    import deepspeed, os, torch
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled
    rank, stage = int(os.environ["RANK"]), int(os.environ["STAGE"])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    groups = [{"params": [p for p in model.parameters() if p.ndim == n], "weight_decay": n / 10} for n in (2, 1)]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 1000 if os.environ.get("FAULT") else 500_000_000,
            **({"sub_group_size": 100} if stage == 3 else {}),
        },
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01), config=config)
    for step in range(12):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = (engine(x) - x[:, :8]).square().mean()
        engine.backward(loss)
        engine.step()
        print(f"loss {loss.item():.6f}")
"""

LIGHTNING = """
    import os, torch
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x.sum(1, keepdim=True))

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(8, 1)

        def training_step(self, batch, index):
            loss = (self.net(batch[0]) - batch[1]).square().mean()
            print(f"loss {loss.item():.6f}")
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    lightning.seed_everything(0)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 2}
    options["use_distributed_sampler"] = not os.environ.get("FAULT")
    trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=2, **options)
    trainer.fit(Model(), DataLoader(data, batch_size=4, shuffle=True))
"""

ACCELERATE = """
    import contextlib, os, torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    x, model = torch.randn(192, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        with contextlib.nullcontext() if os.environ.get("FAULT") else accelerator.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"loss {loss.item():.6f}")
    accelerator.end_training()
"""

TRANSFORMERS = """
    import os, torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class Unwrapped(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **others):
            return super().compute_loss(self.model, inputs, return_outputs, **others)

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes))
    tokens = torch.randint(64, (192, 8))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    options = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "seed": 0, "logging_steps": 1}
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 12}
    make = Unwrapped if os.environ.get("FAULT") else Trainer
    make(model=model, args=TrainingArguments("out", use_cpu=True, **batches, **options), train_dataset=data).train()
"""


@dataclass(frozen=True)
class Framework:
    """A training of 12 or 24 steps.

    Attributes:
        optimizer_steps: of both ranks in one of them.
        sent: operations of one.
        told: of its fault; that of the script has an environment variable.
    """

    requirement: str
    script: str
    steps: int
    optimizer_steps: int
    sent: set[str]
    told: str
    environment: tuple[tuple[str, str], ...] = ()


_ZERO = "deepspeed==0.19.8"
_GATHERED = {"all_gather_into_tensor", "all_reduce"}
FRAMEWORKS = {
    **{
        f"deepspeed, stage {stage}": Framework(
            _ZERO, DEEPSPEED, 12, steps, sent, f"1 {op} of 18.28 KiB", (("STAGE", stage),)
        )
        for stage, steps, sent, op in [
            ("1", 4, _GATHERED, "all_reduce"),
            ("2", 4, _GATHERED, "all_reduce"),
            ("3", 6, {*_GATHERED, "reduce_scatter_tensor"}, "reduce_scatter_tensor"),
        ]
    },
    "lightning": Framework(
        "lightning==2.6.6", LIGHTNING, 24, 2, {"all_reduce", "broadcast"}, "24 steps of the whole run became 48"
    ),
    "accelerate": Framework(
        "accelerate==1.15.0", ACCELERATE, 12, 2, {"all_reduce"}, "12 steps of the whole run became 24"
    ),
    "transformers": Framework(
        "transformers[torch]==5.24.0",
        TRANSFORMERS,
        12,
        2,
        {"all_gather", "all_reduce", "broadcast"},
        "all_reduce float32 of the whole run: 12, ",
    ),
}

TEST = """
    from pytest_distbench.read import NUMBER, stdout

    def test_train(distbench):
        loss = stdout("loss'?:? '?" + NUMBER, better="curve", first=10)
        distbench.run("train.py", read={"loss_curve": loss})
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Python of an environment that has a framework, and this one's packages behind it."""

    @functools.cache
    def install(requirement: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, symlinks=True)
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
        python = folder / "bin" / "python"
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{requirement} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        return python

    return install


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_counted_by_iterations_and_its_silent_fault_is_red(
    name: str, installed: Callable[[str], Path], tmp_path: Path
) -> None:
    framework = FRAMEWORKS[name]
    python = installed(framework.requirement)
    (tmp_path / "train.py").write_text(textwrap.dedent(framework.script))
    (tmp_path / "test_train.py").write_text(textwrap.dedent(TEST))

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "pytest", "--world-size=2", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, **dict(framework.environment), **variables}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    new = run("--distbench-update=new", "--distbench-launches=2:2", "--distbench-json=run.json")
    assert new.returncode == 0, new.stdout
    [result] = read_run_record(tmp_path / "run.json").results
    found = result.launches[0].fingerprints["optimizer_step"]
    faulty = run(FAULT="1")

    assert found.course["all"].steps == framework.steps
    assert found.totals["optimizer_steps"] == framework.optimizer_steps
    assert {row.op for row in found.collectives["all"]} == framework.sent
    assert faulty.returncode == 1
    assert framework.told in faulty.stdout

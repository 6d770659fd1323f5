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

pytestmark = [pytest.mark.spawn, pytest.mark.nightly, pytest.mark.timeout(1800.0)]  # Ray starts for a minute

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


FABRIC = """
    import os, torch
    from lightning_fabric import Fabric
    from torch.utils.data import DataLoader, TensorDataset

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0)
    x = torch.randn(192, 8)
    model = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    if not os.environ.get("FAULT"):
        loader = fabric.setup_dataloaders(loader)
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        fabric.print(f"loss {loss.item():.6f}")
"""

LITGPT = """
    import os
    from pathlib import Path

    import torch
    from lightning import Fabric
    from litgpt import GPT, Config
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.pretrain import fit

    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0)
    sizes = {"block_size": 8, "vocab_size": 64, "padded_vocab_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 16}
    model = fabric.setup(GPT(Config(name="tiny", **sizes)))
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    tokens = torch.randint(64, (96, 9), generator=torch.Generator().manual_seed(0))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(tokens, batch_size=4))
    state = {"model": model, "optimizer": optimizer, "iter_num": 0, "step_count": 0}
    train = TrainArgs(
        global_batch_size=8 if os.environ.get("FAULT") else 16,
        micro_batch_size=4,
        max_tokens=24 * 2 * 4 * 8,
        max_norm=0.5,
        lr_warmup_steps=1,
        min_lr=0.01,
        save_interval=None,
        log_interval=1,
    )
    fit(fabric, 2, state, loader, loader, Path("out"), None, train, EvalArgs(interval=1000, max_iters=1))
"""

MEGATRON = """
    import os

    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
    from megatron.core.transformer.transformer_config import TransformerConfig

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True)
    plain = {"config": config, "init_method": torch.nn.init.xavier_normal_}
    linear = {**plain, "bias": True, "skip_bias_add": False}
    embedding = VocabParallelEmbedding(64, 16, **plain)
    up = ColumnParallelLinear(16, 32, **linear, gather_output=False)
    down = RowParallelLinear(32, 16, **linear, input_is_parallel=True)
    head = ColumnParallelLinear(16, 64, **linear, gather_output=False)
    layers = torch.nn.ModuleList([embedding, up, down, head])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for step in range(12):
        reader = dist.get_rank() if os.environ.get("FAULT") else parallel_state.get_data_parallel_rank()
        tokens = torch.randint(64, (4, 9), generator=torch.Generator().manual_seed(2 * step + reader))
        hidden = down(up(embedding(tokens[:, :-1]))[0].tanh())[0]
        loss = vocab_parallel_cross_entropy(head(hidden)[0], tokens[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
"""

TORCHFT = """
    import datetime
    import os

    import torch
    import torch.distributed as dist
    from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo
    from torchft.coordination import LighthouseServer

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shared = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    if rank == 0:
        lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=10000)
        shared.set("lighthouse", lighthouse.address())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=30)),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=2,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=shared.get("lighthouse").decode(),
        replica_id=f"replica_{rank}",
        hostname="127.0.0.1",
        use_async_quorum=False,
    )
    x = torch.randn(96, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    reader = 0 if os.environ.get("FAULT") else rank
    sampler = DistributedSampler(data, reader, num_replica_groups=world, group_rank=0, num_replicas=1, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    net = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.05))
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = (net(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
    manager.shutdown(wait=False)
    shared.set(f"done{rank}", "1")
    shared.wait(["done0", "done1"])
    if rank == 0:
        lighthouse.shutdown()
"""

TORCHREC = """
    import os

    import torch
    import torch.distributed as dist
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.model_parallel import get_default_sharders
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
    from torchrec.optim.optimizers import in_backward_optimizer_filter


    class Clicks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            names = ["user", "item"]
            tables = [EmbeddingBagConfig(name=n, embedding_dim=8, num_embeddings=64, feature_names=[n]) for n in names]
            self.tables, self.top = EmbeddingBagCollection(tables=tables), torch.nn.Linear(16, 1)

        def forward(self, features):
            return self.top(self.tables(features).values())


    def same(parameters):
        return torch.optim.SGD(parameters, lr=0.1)


    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Clicks()
    if not os.environ.get("FAULT"):
        apply_optimizer_in_backward(torch.optim.SGD, net.tables.parameters(), {"lr": 0.1})
    constraints = {name: ParameterConstraints(sharding_types=["table_wise"]) for name in ("user", "item")}
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=2, compute_device="cpu"), constraints=constraints)
    model = DistributedModelParallel(net, device=torch.device("cpu"), plan=planner.plan(net, get_default_sharders()))
    dense = KeyedOptimizerWrapper(dict(in_backward_optimizer_filter(model.named_parameters())), same)
    optimizer = CombinedOptimizer([model.fused_optimizer, dense])
    for step in range(12):
        made = torch.Generator().manual_seed(2 * step + dist.get_rank())
        values, lengths = torch.randint(64, (8,), generator=made), torch.ones(8, dtype=torch.int64)
        features = KeyedJaggedTensor(["user", "item"], values, lengths=lengths)
        loss = (model(features) - (values[:4] % 2).view(4, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
    dist.destroy_process_group()
"""

RAY = """
    import os

    import ray
    import torch
    from ray import train
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


    def loop(config):
        torch.manual_seed(0)
        x = torch.randn(96, 8)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
        model = torch.nn.Linear(8, 1)
        loader = prepare_data_loader(loader)
        model = model if os.environ.get("FAULT") else prepare_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train.report({"loss": loss.item()})
            if train.get_context().get_world_rank() == 0:
                with open(config["file"], "a") as file:
                    print(f"curve {loss.item():.6f}", file=file)


    ray.init(num_cpus=2, include_dashboard=False)
    kept = {"run_config": train.RunConfig(storage_path=os.path.abspath("results"))}
    open("losses", "w").close()
    file = {"file": os.path.abspath("losses")}
    TorchTrainer(loop, train_loop_config=file, scaling_config=train.ScalingConfig(num_workers=2), **kept).fit()
    print(open("losses").read())
"""


@dataclass(frozen=True)
class Framework:
    """A training of 12 or 24 steps; a command has no fingerprint.

    Attributes:
        requirement: what pip installs.
        optimizer_steps: per training step, of both ranks.
        sent: operations per training step.
        told: text about its fault; an environment variable switches the script's on.
        run: how a test runs it.
    """

    requirement: str
    script: str
    steps: int
    optimizer_steps: int
    sent: set[str]
    told: str
    environment: tuple[tuple[str, str], ...] = ()
    run: str = '"train.py"'
    prints: str = "loss'?:? '?"


_ZERO = "deepspeed==0.19.8"
_TORCHREC = (  # without dependencies: one of them is a build for GPUs
    "--no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 tensordict==0.15.3 torchmetrics==1.0.3 "
    "lightning-utilities pyre-extensions pyvers setuptools tqdm typing-inspect"
)
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
    "fabric": Framework(
        "lightning-fabric==2.6.6", FABRIC, 24, 2, {"all_reduce"}, "24 steps of the whole run became 48"
    ),
    "litgpt": Framework(
        "litgpt==0.5.13",
        LITGPT,
        12,
        2,
        {"all_reduce", "broadcast"},
        "12 steps of the whole run became 24",
        prints="loss train: ",
    ),
    "megatron-core": Framework(
        "megatron-core==0.16.1", MEGATRON, 12, 2, {"all_reduce"}, "loss_curve: diverges at value 1 "
    ),
    "torchft": Framework(
        "torchft==0.2.0",
        TORCHFT,
        12,
        2,
        {"all_reduce"},
        "loss_curve: diverges at value 2 ",
        run='"train.py", makes_group=False',
    ),
    "torchrec": Framework(
        _TORCHREC, TORCHREC, 12, 8, {"all_reduce", "all_to_all_single"}, "CombinedOptimizer: lr 0.1 -> 0.01"
    ),
    "ray": Framework(
        "ray[train]==2.60.0",
        RAY,
        0,
        0,
        set(),
        "loss_curve: diverges at value ",
        run='[sys.executable, "train.py"]',
        prints="curve ",
    ),
}

TEST = """
    import sys

    from pytest_distbench.read import NUMBER, stdout

    def test_train(distbench):
        loss = stdout("{prints}" + NUMBER, better="curve", first=10)
        distbench.run({run}, read={{"loss_curve": loss}})
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
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *requirement.split()]
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
    (tmp_path / "test_train.py").write_text(textwrap.dedent(TEST.format(prints=framework.prints, run=framework.run)))

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "pytest", "--world-size=2", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, **dict(framework.environment), **variables}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    new = run("--distbench-update=new", "--distbench-launches=2:2", "--distbench-json=run.json")
    assert new.returncode == 0, new.stdout
    [result] = read_run_record(tmp_path / "run.json").results
    found = result.launches[0].fingerprints.get("optimizer_step")
    healthy, faulty = run(), run(FAULT="1")

    if found is None:
        assert not framework.sent
    else:
        assert found.course["all"].steps == framework.steps
        assert found.totals["optimizer_steps"] == framework.optimizer_steps
        assert {row.op for row in found.collectives["all"]} == framework.sent
    assert healthy.returncode == 0, healthy.stdout
    assert faulty.returncode == 1
    assert framework.told in faulty.stdout

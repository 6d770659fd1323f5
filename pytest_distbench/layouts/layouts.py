"""LAYOUTS: a row for each way to spread a training over ranks. A layout of your own is a function of a Pass."""

from __future__ import annotations

import shutil
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pytest_distbench.errors import BodyError
from pytest_distbench.layouts.training import Pass, Step, Updates


class Layout(NamedTuple):
    """A way to spread a training over ranks.

    Attributes:
        train: function that trains under it.
        proof: collectives that a step must send to be what the name says.
        needs: fields of the TrainSpec that it cannot train without.
        can_be_simulated: whether torch's ``LocalTensorMode`` can compute its ranks.
    """

    train: Callable[[Pass], object]
    proof: tuple[str, ...] = ()
    can_be_simulated: bool = False
    needs: tuple[str, ...] = ()


def one(run: Pass) -> None:
    """Train without a layout."""
    run.train(run.model())


def ddp(run: Pass) -> None:
    """Train with DDP: every rank has the network and a share of the batch; gradients are averaged."""
    run.train(_ddp(run, run.model()), index=run.index, of=run.of)


def accumulation(run: Pass) -> None:
    """Train with DDP in two micro-batches, of which the first sends nothing."""
    model = _ddp(run, run.model())

    def around(is_last: bool) -> AbstractContextManager[object]:  # noqa: FBT001 the only argument
        return nullcontext() if is_last else model.no_sync()

    run.train(model, index=run.index, of=run.of, micro_batches=2, around=around)


def checkpointing(run: Pass) -> None:
    """Train with DDP, and compute blocks again in the backward pass."""
    model = run.model()
    blocks = list(_asked(run, "blocks")(model))
    if not blocks:
        raise unittest.SkipTest("not run: there are no blocks to compute again")
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    run.train(_ddp(run, model), index=run.index, of=run.of)


def compiled(run: Pass, backend: str = "aot_eager") -> None:
    """Train a compiled network with DDP."""
    model = run.model()
    model.compile(backend=backend)
    run.train(_ddp(run, model), index=run.index, of=run.of)


def fsdp2(run: Pass) -> None:
    """Train with FSDP2: every rank has a shard of each tensor, and gathers the others block by block."""
    run.train(_fsdp2(run, run.model()), index=run.index, of=run.of)


def tensor_parallel(run: Pass) -> None:
    """Train with matrices sharded over ranks; each rank has the whole batch."""
    from torch.distributed.tensor.parallel import parallelize_module

    model = run.model()
    styles = dict(_asked(run, "tensor_parallel")(model))
    run.train(parallelize_module(model, _mesh(run), styles))


def pipeline(run: Pass) -> None:
    """Train with GPipe: every rank has some of the layers; as many micro-batches as ranks go through them."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    own = _asked(run, "stages")(run.model(), run.of)[run.index]
    plain = own.forward

    def forward(*inputs: torch.Tensor) -> Any:
        with run.arithmetic():  # and not around the schedule, which runs the backward pass too
            return plain(*inputs)

    own.forward = forward
    stage = PipelineStage(own, run.index, run.of, run.rank.device)
    updates = run.updates(own)
    for step in run.steps():
        inputs, targets = step.batch
        step.expect_samples(run.of, f"one for each of {run.of} micro-batches")
        scale = updates.scaled(torch.ones((), device=run.rank.device))

        def loss(outputs: torch.Tensor, targets: torch.Tensor, step: Step = step) -> torch.Tensor:
            with run.arithmetic():
                return updates.scaled(step.weigh(outputs, targets))

        schedule = ScheduleGPipe(stage, run.of, loss_fn=loss, scale_grads=False)
        losses: list[torch.Tensor] = []
        schedule.step(*[inputs] * (run.index == 0), target=targets, losses=losses)
        updates.unscale()
        step.has_gradients(own, torch.stack(losses).sum() / scale if losses else None)
        updates.update(norm=_norm_over_ranks)
        step.is_over(own, updates.averages)


def resume(run: Pass) -> None:
    """Train with FSDP2; after half of the steps save, load into a new network and optimizer, and go on."""
    _train_in_two(run, _fsdp2, _fsdp2)


def reshard_to_one(run: Pass) -> None:
    """Train with FSDP2; after half of the steps save, load on rank 0, and go on without a layout."""
    _train_in_two(run, _fsdp2, None)


def reshard_from_one(run: Pass) -> None:
    """Train on rank 0 without a layout; after half of the steps save, load on all ranks, and go on with FSDP2."""
    _train_in_two(run, None, _fsdp2)


Wrap = Callable[[Pass, nn.Module], nn.Module] | None  # wraps a network for all ranks; None: rank 0 has it, alone


def _train_in_two(run: Pass, first: Wrap, second: Wrap) -> None:
    """Train under ``first``, save at ``run.half``, load into ``second``, and go on; without a half train under one."""
    from torch.distributed.checkpoint.state_dict_saver import save

    here = dist.new_group([0])
    wrap = first if run.half else first or second
    model, updates = _begin(run, wrap, run.rank.seed)
    for step in run.steps():
        shares = 1 if wrap is None else run.of
        if model is None or updates is None:
            step.has_gradients(None, None)
            step.is_over(None)
        else:
            loss = step.loss(model, step.share(0 if wrap is None else run.index, shares)[0])
            updates.scaled(shares * loss).backward()
            updates.unscale()
            step.has_gradients(model, loss.detach(), shares=shares)
            updates.update()
            step.is_over(model, updates.averages)
        if step.number == run.half:
            folder = run.rank.data_dir / f"layout-{run.rank.launch}"
            if run.rank.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)  # of a launch that failed
            run.rank.barrier()
            if model is not None and updates is not None:
                with _phase(run, "checkpoint_save"):
                    save(_states(model, updates), checkpoint_id=folder, process_group=None if wrap else here)
            run.rank.barrier()
            wrap = second
            model, updates = _begin(run, wrap, run.rank.seed + 1)
            if model is not None and updates is not None:
                with _phase(run, "checkpoint_load"):
                    _load(model, updates, folder, None if wrap else here)
            if run.rank.rank == 0 and run.recorder is None:
                size = sum(file.stat().st_size for file in folder.rglob("*.distcp"))
                run.rank.record("checkpoint_bytes", size, unit="B", better="info")
            run.rank.barrier()
            if run.rank.rank == 0:
                shutil.rmtree(folder)


def _begin(run: Pass, wrap: Wrap, seed: int) -> tuple[nn.Module, Updates] | tuple[None, None]:
    if wrap is None and run.index:
        return None, None
    model = run.model(seed)
    model = model if wrap is None else wrap(run, model)
    torch.manual_seed(run.rank.seed + 1 + run.index)
    return model, run.updates(model)


def _phase(run: Pass, name: str) -> AbstractContextManager[object]:
    return run.rank.phase(name) if run.recorder is None else nullcontext()  # a search trains again, and is not timed


def _states(model: nn.Module, updates: Updates) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, optimizer = get_state_dict(model, updates.optimizer)
    schedule = {} if updates.schedule is None else {"schedule": updates.schedule.state_dict()}
    averages = {"averages": updates.averages} if updates.averages else {}
    return {"model": weights, "optimizer": optimizer, **schedule, **averages}


def _load(model: nn.Module, updates: Updates, folder: Any, group: dist.ProcessGroup | None) -> None:
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict import set_state_dict

    found = _states(model, updates)
    # A parameter without a gradient has no state in the old optimizer, and one in the new: pytorch/pytorch#192202.
    planner = DefaultLoadPlanner(allow_partial_load=True)
    state_dict_loader.load(found, checkpoint_id=folder, planner=planner, process_group=group)
    set_state_dict(model, updates.optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    if updates.schedule is not None:
        updates.schedule.load_state_dict(found["schedule"])


def _asked(run: Pass, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = getattr(run.training, name)
    if found is None:
        raise BodyError(f"this layout needs TrainSpec({name}=...)")
    return found


def _mesh(run: Pass) -> DeviceMesh:
    return init_device_mesh(run.rank.device.type, (run.of,))


def _ddp(run: Pass, model: nn.Module) -> DistributedDataParallel:
    devices = [run.rank.device] if run.rank.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, find_unused_parameters=run.training.has_unused)


def _fsdp2(run: Pass, model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(run)
    for block in [] if run.training.blocks is None else run.training.blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _norm_over_ranks(own: torch.Tensor) -> torch.Tensor:
    squares = own.square()
    dist.all_reduce(squares)
    return squares.sqrt()


_GATHERS = ("all_gather_into_tensor", "reduce_scatter_tensor")

LAYOUTS: dict[str, Layout] = {
    "one": Layout(one),
    "ddp": Layout(ddp, ("all_reduce",)),
    "accumulation": Layout(accumulation, ("all_reduce",)),
    "checkpointing": Layout(checkpointing, ("all_reduce",), needs=("blocks",)),
    "compiled": Layout(compiled, ("all_reduce",)),
    "inductor": Layout(partial(compiled, backend="inductor"), ("all_reduce",)),
    "fsdp2": Layout(fsdp2, _GATHERS),
    "tensor_parallel": Layout(tensor_parallel, ("all_reduce",), can_be_simulated=True, needs=("tensor_parallel",)),
    "pipeline": Layout(pipeline, ("send", "recv"), needs=("stages",)),
    "resume": Layout(resume, _GATHERS),
    "reshard_to_one": Layout(reshard_to_one, _GATHERS),
    "reshard_from_one": Layout(reshard_from_one, _GATHERS),
}
"""Layouts by the name that ``equivalent`` takes."""

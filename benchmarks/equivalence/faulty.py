"""A small GPT, with layouts that are wrong and changes that are harmless, for ``layout_faults.py``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.layouts import layouts
from pytest_distbench.layouts.training import Pass, TrainSpec

TOKENS, WIDTH, HEADS, BLOCKS, LENGTH, SAMPLES = 64, 32, 2, 2, 16, 8
IGNORED = -100


def plainly(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, after: int = 0) -> torch.Tensor:
    """Causal attention by hand, of queries whose first comes after so many keys."""
    scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
    is_later = torch.arange(key.shape[-2]) > after + torch.arange(query.shape[-2])[:, None]
    return scores.masked_fill(is_later, -torch.inf).softmax(-1) @ value


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.attend = functools.partial(F.scaled_dot_product_attention, is_causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = self.attend(*parts)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    def __init__(self, *, dropout: float = 0.0, is_tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.register_buffer("scale", torch.full((WIDTH,), 2.0))
        self.first = 0
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Stage(self, 0, BLOCKS)(x, self.first)


class Stage(nn.Module):
    """Some of the blocks, with what is before the first and behind the last."""

    def __init__(self, of: Gpt, first: int, last: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): of.blocks[i] for i in range(first, last)})
        if first == 0:
            self.embedding, self.position = of.embedding, of.position
            self.register_buffer("scale", of.scale)
        if last == BLOCKS:
            self.norm, self.head = of.norm, of.head

    def forward(self, x: torch.Tensor, first: int = 0) -> torch.Tensor:
        if hasattr(self, "embedding"):
            x = (self.embedding(x) + self.position[first : first + x.shape[1]]) * self.scale
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens, of whose targets the first samples lack more than the last."""
    tokens = torch.randint(TOKENS, (SAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    targets = tokens[:, 1:].clone()
    for i in range(SAMPLES):
        targets[i, : SAMPLES - i] = IGNORED
    return tokens[:, :-1], targets


def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def styles(model: Gpt) -> dict[str, ColwiseParallel | RowwiseParallel]:
    names = [f"blocks.{i}" for i in range(BLOCKS)]
    return {f"{n}.up": ColwiseParallel() for n in names} | {f"{n}.down": RowwiseParallel() for n in names}


def stages(model: Gpt, of: int) -> list[nn.Module]:
    return [Stage(model, BLOCKS * i // of, BLOCKS * (i + 1) // of) for i in range(of)]


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def warmup(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 6))


# Faults. Each is a training loop, as somebody might write it.


def with_ddp(run: Pass, model: nn.Module, **options) -> DistributedDataParallel:
    return DistributedDataParallel(model, **options)


def of_ddp(change: Callable[[Pass, DistributedDataParallel], object], **options) -> Callable[[Pass], None]:
    def train(run: Pass) -> None:
        model = with_ddp(run, run.model(), **options)
        change(run, model)
        run.train(model, index=run.index, of=run.of)

    return train


def by_hand(
    run: Pass, reduce: Callable[[Pass, nn.Module, int], object], *, model=None, share=None, update=None
) -> None:
    """Data parallelism that somebody wrote without DDP."""
    model = run.model() if model is None else model
    torch.manual_seed(run.rank.seed + 1 + run.index)
    updates = run.updates(model)
    for step in run.steps():
        index, of = share or (run.index, run.of)
        loss = step.loss(model, step.share(index, of)[0])
        loss.backward()
        reduce(run, model, step.number)
        step.has_gradients(model, loss.detach(), shares=run.of)
        (update or (lambda run, updates, model, number: updates.update()))(run, updates, model, step.number)
        step.is_over(model)


def summed(run: Pass, model: nn.Module, number: int = 0) -> None:
    """Right: each loss is weighed by its share of the terms."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def hook_sum(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


def hook_bf16(state, bucket):
    small = bucket.buffer().bfloat16()
    done = dist.all_reduce(small.div_(dist.get_world_size()), async_op=True).get_future()
    return done.then(lambda f: bucket.buffer().copy_(f.value()[0]))


def one_layer_not_synced(run: Pass) -> None:
    model = run.model()
    names = ["blocks.1.up.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    run.train(with_ddp(run, model), index=run.index, of=run.of)


def fsdp_root_not_wrapped(run: Pass) -> None:
    model, mesh = run.model(), init_device_mesh("cpu", (run.of,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    run.train(model, index=run.index, of=run.of)


def fsdp_bf16_reduction(run: Pass) -> None:
    model, mesh = run.model(), init_device_mesh("cpu", (run.of,))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    run.train(model, index=run.index, of=run.of)


def tp(run: Pass, change: Callable[[nn.Module], object], plan=styles) -> None:
    model = run.model()
    model = parallelize_module(model, init_device_mesh("cpu", (run.of,)), plan(model))
    change(model)
    run.train(model)


def tp_gradient_scaled(run: Pass) -> None:
    tp(run, lambda model: model.blocks[0].up.weight.register_hook(lambda grad: grad * run.of))


def tp_forward_not_reduced(run: Pass) -> None:
    model = run.model()
    block = model.blocks[0]
    up, down, of, i = block.up, block.down, run.of, run.index

    def forward(x):
        w, b = up.weight.chunk(of)[i], up.bias.chunk(of)[i]
        return F.linear(F.gelu(F.linear(x, w, b)), down.weight.chunk(of, 1)[i], down.bias)

    block.up.forward, block.down.forward = (lambda x: x), (lambda x: x)
    plain = F.gelu
    block.up.forward = lambda x: forward(x)
    block.forward = _block_without_gelu(block)
    del plain
    run.train(model)


def _block_without_gelu(block: Block):
    def forward(x):
        n, length, _ = x.shape
        parts = block.qkv(block.norm1(x)).view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + block.out(y.transpose(1, 2).flatten(2))
        return x + block.up(block.norm2(x))

    return forward


def tp_seeds(run: Pass) -> None:
    """Ranks that share matrices, and the batch, drop out other units."""
    model = run.model()
    model = parallelize_module(model, init_device_mesh("cpu", (run.of,)), styles(model))
    updates = run.updates(model)
    torch.manual_seed(run.index)
    for step in run.steps():
        loss = step.loss(model, step.share(0, 1)[0])
        loss.backward()
        step.has_gradients(model, loss.detach())
        updates.update()
        step.is_over(model)


def over_shares(
    run: Pass, model: nn.Module, *, seed: int, after: Callable[..., tuple] = lambda step, *states: states
) -> None:
    """Data parallelism by a wrapper that averages; ``after`` may give another model and optimizer for the next step."""
    updates = run.updates(model)
    torch.manual_seed(seed)
    for step in run.steps():
        loss = step.loss(model, step.share(run.index, run.of)[0])
        (loss * run.of).backward()
        step.has_gradients(model, loss.detach(), shares=run.of)
        updates.update()
        step.is_over(model)
        model, updates = after(step, model, updates)


def dp_seeds(run: Pass) -> None:
    """Ranks with other samples drop out the same units."""
    over_shares(run, with_ddp(run, run.model()), seed=0)


def micro(
    run: Pass, *, weigh: bool = True, parts: int = 2, skip: int | None = None, sync_at: int | None = None
) -> None:
    """Accumulation over micro-batches of unequal tokens."""
    model = with_ddp(run, run.model())
    updates = run.updates(model)
    for step in run.steps():
        pieces = step.share(run.index, run.of, parts)
        total = torch.zeros(())
        for i, (inputs, targets) in enumerate(pieces):
            if i == skip:
                continue
            last = parts - 1 if sync_at is None else sync_at
            with contextlib.nullcontext() if i == last else model.no_sync():
                one = step.weigh(model(inputs), targets) * run.of
                if not weigh:
                    one = run.training.loss(model(inputs), targets) / parts
                one.backward()
            total += one.detach() / run.of
        step.has_gradients(model, total, shares=run.of)
        updates.update()
        step.is_over(model)


def pipe(
    run: Pass,
    *,
    schedule_of=ScheduleGPipe,
    model=None,
    stale: bool = False,
    own_norm: bool = False,
    turned: bool = False,
    scale_grads: bool = False,
) -> None:
    own = stages(run.model() if model is None else model, run.of)[run.index]
    stage = PipelineStage(own, run.index, run.of, run.rank.device)
    updates = run.updates(own)
    for step in run.steps():
        inputs, targets = step.batch
        schedule = schedule_of(
            stage, run.of, loss_fn=lambda out, t, step=step: step.weigh(out, t), scale_grads=scale_grads
        )
        losses: list[torch.Tensor] = []
        fed = targets.roll(1, 0) if turned else targets
        schedule.step(*[inputs] * (run.index == 0), target=fed, losses=losses)
        step.has_gradients(own, torch.stack(losses).sum() if losses else None)
        kept = [p.grad.clone() for p in own.parameters()] if stale and run.index == 1 else []
        updates.update(**({} if own_norm else {"norm": layouts._norm_over_ranks}))
        for parameter, gradient in zip(own.parameters(), kept, strict=False):
            parameter.grad = gradient
        step.is_over(own)


def resumed(run: Pass, spoil: Callable[[dict], object]) -> None:
    """FSDP2, whose checkpoint is loaded with something lost."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    def resume(step, model, updates):
        if step.number != run.half:
            return model, updates
        folder = run.rank.data_dir / f"spoilt-{run.rank.params['layout'].replace(' ', '-')}"
        dcp.save(layouts._states(model, updates), checkpoint_id=folder)
        model = layouts._fsdp2(run, run.model(7))
        updates = run.updates(model)
        found = layouts._states(model, updates)
        dcp.load(found, checkpoint_id=folder)
        spoil(found)
        if "optimizer" in found:
            states = {"model_state_dict": found["model"], "optim_state_dict": found["optimizer"]}
            set_state_dict(model, updates.optimizer, **states)
        else:
            model.load_state_dict(found["model"])
        if updates.schedule is not None and "schedule" in found:
            updates.schedule.load_state_dict(found["schedule"])
        return model, updates

    over_shares(run, layouts._fsdp2(run, run.model()), seed=1 + run.index, after=resume)


def to_bf16(found: dict) -> None:
    found["model"] = {name: value.bfloat16().to(value.dtype) for name, value in found["model"].items()}


def one_step_off(found: dict) -> None:
    found["schedule"]["last_epoch"] += 1
    found["schedule"]["_last_lr"] = [lr * 1.2 for lr in found["schedule"]["_last_lr"]]
    for group in found["optimizer"]["param_groups"]:
        group["lr"] *= 3 / 4 * 4 / 3 * 4 / 3


def no_broadcast(run: Pass) -> None:
    by_hand(run, summed, model=run.model(run.index))


def buffer_differs(run: Pass) -> None:
    model = run.model()
    model.scale += run.index / 100
    by_hand(run, summed, model=model)


def wrong_group(run: Pass, model: nn.Module, number: int) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= run.of


def last_ranks_only(run: Pass, model: nn.Module, number: int) -> None:
    for parameter in model.parameters():
        dist.broadcast(parameter.grad, run.of - 1)
        parameter.grad *= run.of


def late_sum(run: Pass, updates, model: nn.Module, number: int) -> None:
    """The optimizer steps before gradients have arrived: they are those of the step before."""
    updates.update()


def every_second(run: Pass, updates, model: nn.Module, number: int) -> None:
    """Gradients are forgotten in every second step only."""
    kept = [p.grad.clone() for p in model.parameters()]
    updates.update()
    if number % 2:
        for parameter, gradient in zip(model.parameters(), kept, strict=True):
            parameter.grad = gradient / run.of


def scaled_rate(run: Pass, updates, model: nn.Module, number: int) -> None:
    for group in updates.optimizer.param_groups:
        group["lr"] = 1e-2 * run.of if run.of > 1 else group["lr"]
    updates.update()


def no_bias_decay(run: Pass, updates, model: nn.Module, number: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 and run.of > 1:
                parameter /= 1 - 1e-4
    updates.update()


def moments_of_own(run: Pass) -> None:
    """The gradients are averaged after the optimizer has taken its step, and weights are averaged instead."""

    def update(run, updates, model, number):
        updates.update()
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter /= run.of

    by_hand(run, lambda run, model, number: None, update=update)


def norm_before_reduction(run: Pass) -> None:
    """Each rank clips by the norm of its own gradient, before the sum."""

    def reduce(run, model, number):
        nn.utils.clip_grad_norm_(model.parameters(), run.training.max_norm / 4)
        summed(run, model)

    by_hand(run, reduce)


def skipped_step(run: Pass, updates, model: nn.Module, number: int) -> None:
    """One rank finds an overflow, and skips the step."""
    if number == 2 and run.index == 1:
        updates.optimizer.zero_grad()
    else:
        updates.update()


def frozen(run: Pass) -> None:
    model = run.model()
    model.position.requires_grad_(run.of == 1)
    run.train(with_ddp(run, model), index=run.index, of=run.of)


def sparse_embedding(run: Pass, model: nn.Module, number: int) -> None:
    """Rows of the embedding that another rank has read are lost."""
    for parameter in model.parameters():
        if parameter is model.embedding.weight:
            mine = parameter.grad.abs().sum(1, keepdim=True) > 0
            dist.all_reduce(parameter.grad)
            parameter.grad *= mine
        else:
            dist.all_reduce(parameter.grad)


def tied_lost(run: Pass) -> None:
    """Two stages have the tied weight, each with its own part of the gradient."""
    pipe(run)


FAULTS: dict[str, Callable[[Pass], None]] = {
    "gradients summed": of_ddp(lambda run, model: model.register_comm_hook(None, hook_sum)),
    "one bias not synchronised": one_layer_not_synced,
    "nothing synchronised": lambda run: by_hand(run, lambda run, model, number: None),
    "FSDP root not wrapped": fsdp_root_not_wrapped,
    "FSDP reduces in bf16": fsdp_bf16_reduction,
    "DDP reduces in bf16": of_ddp(lambda run, model: model.register_comm_hook(None, hook_bf16)),
    "TP gradient scaled by its size": tp_gradient_scaled,
    "TP output not reduced": tp_forward_not_reduced,
    "TP ranks drop out other units": tp_seeds,
    "DP ranks drop out the same units": dp_seeds,
    "loss scaled by the wrong group": lambda run: by_hand(run, wrong_group),
    "a micro-batch lost": lambda run: micro(run, skip=0),
    "synchronised with the first micro-batch": lambda run: micro(run, sync_at=0),
    "gradient of one rank only": lambda run: by_hand(run, last_ranks_only),
    "all ranks have the same share": lambda run: by_hand(run, summed, share=(0, 2)),
    "no initial broadcast": no_broadcast,
    "a buffer not broadcast": buffer_differs,
    "gradients kept every second step": lambda run: by_hand(run, summed, update=every_second),
    "rate scaled by the ranks": lambda run: by_hand(run, summed, update=scaled_rate),
    "biases without weight decay": lambda run: by_hand(run, summed, update=no_bias_decay),
    "weights averaged, not gradients": moments_of_own,
    "clipped by the norm of a rank": norm_before_reduction,
    "one rank skips a step": lambda run: by_hand(run, summed, update=skipped_step),
    "a parameter frozen": frozen,
    "embedding rows of others lost": lambda run: by_hand(run, sparse_embedding),
    "a stage keeps its gradient": lambda run: pipe(run, stale=True),
    "a stage clips by its own norm": lambda run: pipe(run, own_norm=True),
    "a stage has others' targets": lambda run: pipe(run, turned=True),
    "pipeline divides by its micro-batches": lambda run: pipe(run, scale_grads=True),
    "tied weight lost across stages": tied_lost,
    "optimizer state dropped at resume": lambda run: resumed(run, lambda found: found.pop("optimizer")),
    "schedule one step off at resume": lambda run: resumed(run, one_step_off),
    "schedule dropped at resume": lambda run: resumed(run, lambda found: found.pop("schedule")),
    "weights saved in bf16": lambda run: resumed(run, to_bf16),
}


# Bugs that others have published, each in a loop of ours.


class Gathered(torch.autograd.Function):
    """What all ranks have, along the sequence; a rank's gradient is the sum of what all of them ask of its part."""

    @staticmethod
    def forward(ctx, own):
        each = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(each, own.contiguous())
        return torch.cat(each, 2)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 2)[dist.get_rank()]


def in_sequence(
    run: Pass,
    *,
    part: int | None = None,
    is_gathered: bool = True,
    weight: float = 1.0,
    left_out: Callable[[str], bool] = lambda name: False,
) -> None:
    """Each rank has a part of every sequence, and the keys and values of all (context parallelism by hand)."""
    model = run.model()
    updates = run.updates(model)
    size, index = LENGTH // run.of, run.index if part is None else part
    model.first = index * size

    def attend(query, key, value):
        if is_gathered:
            keys, values = Gathered.apply(key), Gathered.apply(value)
        else:  # what other ranks' queries ask of this rank's keys has no gradient
            before, after = index * size, LENGTH - (index + 1) * size
            keys, values = (
                F.pad(one - one.detach(), (0, 0, before, after)) + Gathered.apply(one.detach()) for one in (key, value)
            )
        return plainly(query, keys, values, after=index * size)

    for block in model.blocks:
        block.attend = attend
    for step in run.steps():
        step.share(0, 1)
        inputs, targets = (one[:, index * size : (index + 1) * size] for one in step.batch)
        loss = step.weigh(model(inputs), targets)
        (loss * weight).backward()
        for name, parameter in model.named_parameters():
            if not left_out(name):
                dist.all_reduce(parameter.grad)
        step.has_gradients(model, loss.detach(), shares=run.of)
        updates.update()
        step.is_over(model)


def biases_of_keys(run: Pass) -> None:
    """Of a matrix for queries, keys and values the weight is reduced, and of its bias the part for queries."""

    def reduce(run: Pass, model: nn.Module, number: int) -> None:
        for name, parameter in model.named_parameters():
            part = parameter.grad[:WIDTH] if name.endswith("qkv.bias") else parameter.grad
            dist.all_reduce(part)

    by_hand(run, reduce)


def left_out_of_norm(run: Pass) -> None:
    """The norm that gradients are clipped by is that of all parameters but some that are sharded."""

    def update(run, updates, model, number):
        gradients = {name: p.grad for name, p in model.named_parameters()}
        kept = torch.stack([g.norm() for name, g in gradients.items() if not name.endswith("qkv.weight")]).norm()
        for gradient in gradients.values():
            gradient.mul_((run.training.max_norm / kept).clamp(max=1))
        updates.optimizer.step()
        updates.schedule.step()
        updates.optimizer.zero_grad()

    by_hand(run, summed, update=update)


def second_loss(run: Pass) -> None:
    """Each rank adds all of an auxiliary loss, which so weighs as many times as much as there are ranks."""
    model = run.model()
    updates = run.updates(model)
    for step in run.steps():
        [(inputs, targets)] = step.share(run.index, run.of)
        scores = model(inputs)
        extra = run.training.loss(scores, targets) - loss(scores, targets)
        one = step.weigh(scores, targets) + extra * (1 - 1 / run.of)
        one.backward()
        summed(run, model)
        step.has_gradients(model, step.weigh(scores, targets).detach(), shares=run.of)
        updates.update()
        step.is_over(model)


def with_second(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    kept = scores[targets != IGNORED]
    return loss(scores, targets) + 0.1 * kept.logsumexp(-1).square().mean()


PUBLISHED: dict[str, Callable[[Pass], None]] = {
    "bias of keys and values not reduced (bigcode-project/Megatron-LM#11)": biases_of_keys,
    "last norm not reduced over sequence parts (Megatron-LM#1446)": lambda run: in_sequence(
        run, left_out=lambda name: name.startswith("norm.")
    ),
    "gate not reduced over sequence parts (Pai-Megatron-Patch#397)": lambda run: in_sequence(
        run, left_out=lambda name: name == "blocks.0.up.weight"
    ),
    "loss scaled by context ranks (Megatron-LM#673)": lambda run: in_sequence(run, weight=run.of),
    "keys of other ranks without gradient (Megatron-LM#1464)": lambda run: in_sequence(run, is_gathered=False),
    "scattered over another group (Megatron-LM#7452, 7)": lambda run: in_sequence(run, part=0),
    "left out of the clipping norm (Megatron-LM#7452, 8)": left_out_of_norm,
    "auxiliary loss of each rank (Megatron-LM#3672)": second_loss,
    "mean of micro-batches of unequal tokens (transformers#34191)": lambda run: micro(run, weigh=False),
}
"""With the threads."""

MODULES = {
    "TP output not reduced": "blocks.0.up (Linear), forward",
    "a buffer not broadcast": "in forward (Gpt), behind embedding, forward",
    "all ranks have the same share": "ranks 0 and 1 have the same part",
    "a micro-batch lost": "all ranks together have 4 of 8 of dimension 0",
    "a stage has others' targets": "the loss, backward",
    "keys of other ranks without gradient (Megatron-LM#1464)": "in blocks.1.forward (Block), before blocks.1.out",
    "scattered over another group (Megatron-LM#7452, 7)": "ranks 0 and 1 have the same part",
    "auxiliary loss of each rank (Megatron-LM#3672)": "the loss, backward",
    "mean of micro-batches of unequal tokens (transformers#34191)": "the loss, backward",
}
"""What is said of the module, of faults in a forward or backward pass. Of all others no module is named."""


def in_reverse(run: Pass) -> None:
    by_hand(run, lambda run, model, number: [dist.all_reduce(p.grad) for p in reversed(list(model.parameters()))])


def plain_attention(run: Pass) -> None:
    model = run.model()
    for block in model.blocks:
        block.attend = plainly
    run.train(with_ddp(run, model), index=run.index, of=run.of)


def flat(run: Pass, model: nn.Module, number: int) -> None:
    whole = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(whole)
    for parameter, part in zip(model.parameters(), whole.split([p.numel() for p in model.parameters()]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def gathered(run: Pass, model: nn.Module, number: int) -> None:
    for parameter in model.parameters():
        each = [torch.empty_like(parameter) for _ in range(run.of)]
        dist.all_gather(each, parameter.grad)
        parameter.grad = torch.stack(each).sum(0)


def fsdp_kept(run: Pass) -> None:
    model, mesh = run.model(), init_device_mesh("cpu", (run.of,))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
    run.train(model, index=run.index, of=run.of)


HEALTHY: dict[str, Callable[[Pass], None]] = {
    "small buckets": of_ddp(lambda run, model: None, bucket_cap_mb=0.01),
    "gradients as views": of_ddp(lambda run, model: None, gradient_as_bucket_view=True),
    "static graph": of_ddp(lambda run, model: None, static_graph=True),
    "reduced from the last to the first": in_reverse,
    "one flat buffer": lambda run: by_hand(run, flat),
    "gathered and added": lambda run: by_hand(run, gathered),
    "four micro-batches": lambda run: micro(run, parts=4),
    "plain attention": plain_attention,
    "1F1B": lambda run: pipe(run, schedule_of=Schedule1F1B),
    "FSDP keeps what it gathered": fsdp_kept,
    "parts of the sequence": in_sequence,
}

_GPT = TrainSpec(
    model=Gpt,
    batch=batch,
    loss=loss,
    optimizer=adamw,
    terms=lambda targets: int((targets != IGNORED).sum()),
    schedule=warmup,
    max_norm=0.1,
    blocks=lambda model: model.blocks,
    tensor_parallel=styles,
    stages=stages,
)
gpt = replace(_GPT, model=lambda: Gpt(dropout=0.1), layouts={**FAULTS, **PUBLISHED, **HEALTHY})
two_losses = replace(gpt, loss=with_second)
tied = replace(gpt, model=lambda: Gpt(is_tied=True))

"""Small models of transformers, with their own plans. All that is private to transformers is in this file.

A model is built from its configuration. Sizes are reduced; what is particular to the model stays: tied weights,
windows, experts, norms, and one layer of each kind. Weights are random; nothing is downloaded.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import json
import math
import os
import re
import unittest
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import

import torch
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.distributed import DistributedConfig
from transformers.distributed.pipeline_parallel import PipelineIdentityLayer
from transformers.distributed.tensor_parallel import apply_tensor_parallelism
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from pytest_distbench.errors import BodyError
from pytest_distbench.layouts.strangers import CANNOT_TRAIN, blocks_of, skipping
from pytest_distbench.layouts.training import Batch, Pass, TrainSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_distbench.worker.context import RankContext

_WIDTH, _HEADS, _HEAD, _HALF = 64, 4, 16, 32
_SAMPLES, _LENGTH, _WINDOW = 8, 16, 8
_SEEDS = 1_000_000  # of each step
_MAX_NORM = 1.0
_NEAR = 1e-4  # of the best score: further apart than what roundings make of four steps of AdamW
_ROUNDS = 8
_MASKED = -1e30  # what masks put below every score
_MOST_PARAMETERS = 5_000_000  # of a model that did get small
_FIRST_TOKEN, _TOKENS = 3, _WIDTH  # no special ones; as many as a model without a head has features

_SIZES = {
    name: size
    for size, names in {
        _WIDTH: "hidden_size n_embd moe_hidden_size max_position_embeddings n_positions n_ctx codebook_size "
        "original_max_position_embeddings model_max_length",
        2 * _WIDTH: "intermediate_size intermediate_size_mlp ffn_hidden_size dense_intermediate_size mamba_d_ssm "
        "shared_intermediate_size vocab_size vocab_size_per_layer_input unpadded_vocab_size vision_vocab_size",
        _HALF: "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size q_lora_rank kv_lora_rank "
        "shared_experts_intermediate_size moe_shared_expert_intermediate_size share_expert_dim o_lora_rank "
        "ple_embed_dim embedding_dim rel_extent",
        _HEAD: "head_dim swa_head_dim qk_head_dim query_pre_attn_scalar v_head_dim index_head_dim linear_key_head_dim "
        "linear_value_head_dim linear_head_dim mamba_d_head mamba_head_dim mamba_d_state ssm_state_size hc_lowrank "
        "hidden_size_per_layer_input embedding_rank",
        _WINDOW: "sliding_window sliding_window_size attention_chunk_size keep_window_size qk_rope_head_dim "
        "qk_nope_head_dim rotary_dim index_topk mamba_n_heads mamba_num_heads mamba_chunk_size chunk_size "
        "mamba_dt_rank laurel_rank loop_gate_rank gated_norm_rank d_rel block_size split_ngram_parts index_kpool",
        _HEADS: "num_attention_heads n_head swa_num_attention_heads num_sliding_attention_heads num_heads num_experts "
        "n_routed_experts num_local_experts moe_num_experts index_n_heads linear_num_value_heads linear_num_heads "
        "index_block_size",
        2: "num_experts_per_tok num_experts_per_token moe_topk moe_k n_group num_expert_group zero_expert_num "
        "linear_num_key_heads mamba_n_groups n_groups num_layers_per_stack index_topk_blocks o_groups",
        1: "n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace num_dense_layers "
        "moe_layer_start_index topk_group",
        0: "num_kv_shared_layers pad_token_id",
    }.items()
    for name in names.split()
}
"""Name of a size in transformers' configurations -> its largest value in a small model."""

_UNSET = {"head_dim": _HEAD, "num_key_value_heads": _HEADS, "num_experts_per_tok": 2}  # where a default is None
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_PERIODS = ("sliding_window_pattern", "attn_layer_period", "global_attn_every_n_layers", "no_rope_layer_interval")
_MOST_LAYERS = 6
_NUMBERS_OF_LAYERS = ("full_attn_idxs", "moe_layers", "kv_source_layers")  # lists that hold layers, not one value each


def maker_of(name: str) -> tuple[Any, Callable[[], Any]]:
    """Return a model's configuration, made small, and a function that makes the model.

    Raises:
        BodyError: transformers has no such model.
        SkipTest: it cannot be built small, or takes more than tokens.
    """
    if name not in CONFIG_MAPPING_NAMES:
        near = " or ".join(difflib.get_close_matches(name, CONFIG_MAPPING_NAMES, n=3, cutoff=0))
        raise BodyError(f"transformers {transformers.__version__} has no model {name}; did you mean {near}?")
    with skipping("it cannot be built small"):
        text = CONFIG_MAPPING[name]().get_text_config(decoder=True).model_type
    if text != name and text in CONFIG_MAPPING_NAMES:
        raise unittest.SkipTest(f"it takes more than tokens; its text part is transformers:{text}")
    with skipping("it cannot be built small"):
        module = importlib.import_module(CONFIG_MAPPING[name].__module__.replace(".configuration_", ".modeling_"))
        config = _small(name, Path(str(module.__file__)).read_text(encoding="utf-8"))
        make = _maker(name, config, module)
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in make().parameters())
    if parameters > _MOST_PARAMETERS:
        raise unittest.SkipTest(f"its configuration was made small, and it still has {parameters:,} parameters")
    return config, make


def training(rank: RankContext, name: str) -> TrainSpec:
    """Return a training that predicts the next token of random sequences.

    Raises:
        BodyError: transformers has no such model.
        SkipTest: it cannot be built small, or takes more than tokens.
    """
    config, make = maker_of(name)

    def drawn() -> Any:
        made = make()
        for parameter in made.parameters():
            if parameter.dim() > 1 and not parameter.any():  # a router that begins with zeros finds all experts equal
                nn.init.normal_(parameter, std=0.02)
        return made

    def model() -> nn.Module:
        made = drawn()
        plain = made.forward
        made.forward = lambda tokens: _outputs(plain(input_ids=tokens))
        found: nn.Module = made
        return found

    data = _Data(max(_SAMPLES, 2 * rank.world_size))
    steps = rank.params["steps"]
    kept = rank.data_dir / f"draws-{name}-{steps}-{rank.seed}-{rank.world_size}.json"
    with skipping(CANNOT_TRAIN):
        if not data.read(kept):
            data.leave_out_near_ties(drawn, rank.seed, steps)
            data.write(kept)
    if data.left_out:
        rank.record("samples_left_out", data.left_out, better="info")
    plan = getattr(config, "base_model_pp_plan", None)
    return TrainSpec(
        model=model,
        batch=data.batch,
        loss=_loss,
        optimizer=_optimizer,
        max_norm=_MAX_NORM,
        blocks=lambda model: getattr(_base(model), "layers", None) or blocks_of(model) or [],
        stages=functools.partial(_stages, plan=plan) if plan else None,
        layouts=layouts_of(config),
        has_unused=True,
    )


def layouts_of(config: Any) -> dict[str, Callable[[Pass], object]]:
    """Return the layouts that a configuration of transformers has a plan for."""
    return {"tensor_parallel": _own_plan} if getattr(config, "base_model_tp_plan", None) else {}


def _loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten() % outputs.shape[-1])


def _optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


class _Data:
    """Samples of random tokens: enough for two micro-batches of each rank.

    Attributes:
        left_out: number of samples that were replaced.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.left_out = 0
        self._draws: Counter[tuple[int, int]] = Counter()  # of each sample of a step, how many were left out

    def batch(self, step: int) -> Batch:
        rows = []
        for sample in range(self._samples):
            drawn = torch.Generator().manual_seed(_SEEDS * step + self._samples * self._draws[step, sample] + sample)
            rows.append(torch.randint(_FIRST_TOKEN, _TOKENS, (_LENGTH + 1,), generator=drawn))
        tokens = torch.stack(rows)
        return tokens[:, :-1], tokens[:, 1:]

    def read(self, kept: Path) -> bool:
        """Read the draws that an earlier launch of this run stored; return whether there are any."""
        if not kept.exists():
            return False
        self.left_out, draws = json.loads(kept.read_text())
        self._draws.update({(step, sample): count for step, sample, count in draws})
        return True

    def write(self, kept: Path) -> None:
        made = kept.with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps([self.left_out, [[*at, count] for at, count in self._draws.items()]]))
        made.replace(kept)  # whole, or not there; ranks find the same

    def leave_out_near_ties(self, make: Callable[[], Any], seed: int, steps: int) -> None:
        """Draw samples again for which a router scores two experts almost equally: rounding would choose.

        Each round trains a new model, seeded with ``seed``, for ``steps`` steps, and a round without near ties ends it.

        Raises:
            SkipTest: samples with near ties are left after all rounds.
        """
        for _ in range(_ROUNDS):
            torch.manual_seed(seed)
            model = make()
            optimizer = _optimizer(model.parameters())
            before = self.left_out
            for step in range(steps):
                tokens, targets = self.batch(step)
                with _NearTies(self._samples) as ties:
                    loss = _loss(_outputs(model(input_ids=tokens)), targets)
                if not ties.has_choices:
                    return
                for sample in ties.samples:
                    self._draws[step, sample] += 1
                self.left_out += len(ties.samples)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
            if self.left_out == before:
                return
        raise unittest.SkipTest(
            f"in each of {_ROUNDS} draws of its samples two of its experts were about equally good for one, so "
            "roundings choose between them"
        )


class _NearTies(TorchFunctionMode):
    """Records the samples for which a ``topk`` is close to a tie.

    Attributes:
        samples: indices of such samples in the batch.
        has_choices: whether ``topk`` was called.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self._count = samples
        self.samples: set[int] = set()
        self.has_choices = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.topk, torch.Tensor.topk):
            self._see(args[0].detach(), kwargs["k"] if "k" in (kwargs or {}) else args[1])
        return func(*args, **(kwargs or {}))

    def _see(self, scores: torch.Tensor, most: int) -> None:
        self.has_choices = True
        if most < scores.shape[-1] and scores.numel() % self._count == 0:
            masked = scores < _MASKED
            ranked = scores.masked_fill(masked, -math.inf).topk(most + 1).values
            size = scores.masked_fill(masked, 0.0).abs().amax(-1)
            apart = ranked[..., most - 1] - ranked[..., most]
            is_near = (apart > 0) & (apart <= _NEAR * size)  # those that are equal are so in every precision
            self.samples.update(is_near.reshape(self._count, -1).any(1).nonzero().flatten().tolist())


def _outputs(found: Any) -> torch.Tensor:
    logits: torch.Tensor | None = getattr(found, "logits", None)
    return found[0] if logits is None else logits


def _small(name: str, modeling: str) -> Any:
    """Return a model's configuration, made small; ``modeling`` is the source of its module."""
    kind = CONFIG_MAPPING[name]
    usual: dict[str, Any] = kind().to_dict()
    given: dict[str, Any] = {
        key: min(value, _SIZES[key]) for key, value in usual.items() if key in _SIZES and type(value) is int
    }
    given |= {key: size for key, size in _UNSET.items() if key in usual and usual[key] is None}
    for key in ("num_key_value_heads", "swa_num_key_value_heads"):
        if type(heads := usual.get(key)) is int:
            given[key] = _HEADS // 2 if heads < (usual.get("num_attention_heads") or 0) else _HEADS
    if usual.get("kv_lora_rank") and usual.get("head_dim") == usual.get("qk_rope_head_dim"):
        given["head_dim"] = given["qk_rope_head_dim"]
    given |= _few_layers(usual)
    given |= {key: 0.0 for key, value in usual.items() if ("drop" in key or "jitter" in key) and value}
    given |= {key: i for i, key in enumerate(("bos_token_id", "eos_token_id"), 1) if usual.get(key) is not None}
    rope = usual.get("rope_parameters")
    if (
        isinstance(rope, dict)
        and rope
        and "mrope_section" in modeling
        and not any(isinstance(v, dict) for v in rope.values())
    ):
        share = rope.get("partial_rotary_factor") or usual.get("partial_rotary_factor") or 1.0
        half = int(given.get("qk_rope_head_dim", _HEAD) * share) // 2
        side = (half - half // 4) // 2
        sections = [side] * 3
        default = re.search(r'"mrope_section", \[(\d+), (\d+), (\d+)\]', modeling)
        usually = list(rope.get("mrope_section") or (default.groups() if default else ()))
        time = next((i for i, size in enumerate(usually) if usually.count(size) == 1), 0)  # others are height and width
        sections[time] = half - 2 * side
        given["rope_parameters"] = {**rope, "mrope_section": sections}
    config = kind(**given, use_cache=False)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # it has float64, and grouped_mm has not
    return config


def _few_layers(usual: Mapping[str, Any]) -> dict[str, Any]:
    """Keep one layer of each kind, at least two; kinds differ in lists with a value per layer, or follow a period."""
    count = next((usual[key] for key in _LAYERS if type(usual.get(key)) is int), 0)
    lists = {
        key: value
        for key, value in usual.items()
        if isinstance(value, list | tuple) and len(value) == count > 2 and key not in _NUMBERS_OF_LAYERS
    }
    kinds = [str([value[i] for value in lists.values()]) for i in range(count)]
    picked = sorted(map(kinds.index, set(kinds)))[:_MOST_LAYERS]
    if len(picked) < 2:
        period = max((usual[key] for key in _PERIODS if type(usual.get(key)) is int), default=2)
        picked = list(range(min(max(period, 2), _MOST_LAYERS, count)))
    few = {key: [value[i] for i in picked] for key, value in lists.items()}
    return {**few, **{key: len(picked) for key in _LAYERS if type(usual.get(key)) is int}}


def _maker(name: str, config: Any, module: Any) -> Callable[[], Any]:
    if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return lambda: transformers.AutoModelForCausalLM.from_config(config)
    if name in MODEL_MAPPING_NAMES:
        return lambda: transformers.AutoModel.from_config(config)
    of_config: list[Any] = [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, transformers.PreTrainedModel)
        and not found.__name__.endswith(("PreTrainedModel", "PretrainedModel"))
        and getattr(found, "config_class", None) is type(config)
    ]
    if not of_config:
        raise unittest.SkipTest("no model class has its configuration")
    return lambda: of_config[-1]._from_config(config)


def _base(model: Any) -> Any:
    return getattr(model, model.base_model_prefix, model)


def _own_plan(run: Pass) -> None:
    """Train with tensor parallelism by the model's own ``tp_plan``."""
    model: Any = run.model()
    mesh = init_device_mesh(run.rank.device.type, (run.of,), mesh_dim_names=("tp",))
    for name in model.all_tied_weights_keys:  # as in from_pretrained: what is tied is sharded twice, and tied then
        module, _, weight = name.rpartition(".")
        setattr(model.get_submodule(module), weight, nn.Parameter(model.get_parameter(name).detach().clone()))
    plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=run.of))
    model._tp_size = run.of
    apply_tensor_parallelism(model, mesh, plan)
    model.tie_weights()
    run.train(model)


def _check_layers(base: Any) -> None:
    """Skip, on all ranks alike, unless hidden states alone go into the layers as they came, and out of them.

    A stage gets the hidden states of the one before as ``inputs_embeds``.
    """

    def check_input(_layer: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not torch.equal(args[0] if args else kwargs["hidden_states"], embedded):
            raise unittest.SkipTest("its forward pass changes inputs_embeds, which are what a stage gets")

    def check_output(_layer: nn.Module, _args: object, output: object) -> None:
        if not isinstance(output, torch.Tensor):
            raise unittest.SkipTest(
                "its layers pass more to each other than hidden states, which are what a stage gets"
            )

    hooks = [base.layers[0].register_forward_pre_hook(check_input, with_kwargs=True)]
    hooks += [layer.register_forward_hook(check_output) for layer in base.layers]
    with torch.no_grad():
        tokens = torch.full((1, _LENGTH), _FIRST_TOKEN, device=next(base.parameters()).device)
        embedded = base.get_input_embeddings()(tokens)
        type(base).forward(base, inputs_embeds=embedded)
    for hook in hooks:
        hook.remove()


def _stages(model: Any, ranks: int, plan: Mapping[str, object]) -> Any:
    return _Stages(model, ranks, plan)


class _Stages:
    """Pipeline stages of a model, each made on access: modules of other stages become identities.

    Modules before the layers in its ``pp_plan`` are in the first stage; those behind them, and the head, in the last.
    """

    def __init__(self, model: Any, ranks: int, plan: Mapping[str, object]) -> None:
        self._model, self._ranks, self._plan = model, ranks, list(plan)

    def __getitem__(self, stage: int) -> nn.Module:
        model = self._model
        base, last = _base(model), self._ranks - 1
        if "layers" not in self._plan:
            raise unittest.SkipTest("its pp_plan names no layers")
        at = self._plan.index("layers")
        others = [*self._plan[:at] * (stage > 0), *self._plan[at + 1 :] * (stage < last)]
        if unknown := {name for name, part in base.named_children() if [*part.parameters()]} - {*self._plan}:
            raise unittest.SkipTest(f"its pp_plan has no place for {', '.join(sorted(unknown))}")
        if "inputs_embeds" not in inspect.signature(type(base).forward).parameters:
            raise unittest.SkipTest("its forward pass takes no inputs_embeds, which are what a stage gets")
        if getattr(model.config, "tie_word_embeddings", False) and base is not model:
            raise unittest.SkipTest("its embedding and its head are one weight, which no stage holds alone")
        _check_layers(base)
        for name in others:
            setattr(base, name, PipelineIdentityLayer())
        bounds = [len(base.layers) * i // self._ranks for i in (stage, stage + 1)]
        for i in range(len(base.layers)):
            if not bounds[0] <= i < bounds[1]:
                base.layers[i] = PipelineIdentityLayer()
        if base is not model and stage < last:
            for name, _ in list(model.named_children()):
                if name != model.base_model_prefix:
                    setattr(model, name, PipelineIdentityLayer())
        inner = model if stage == last else base
        plain = type(inner).forward.__get__(inner)
        model.forward = lambda found: _outputs(
            plain(**{"inputs_embeds" if found.is_floating_point() else "input_ids": found})
        )
        made: nn.Module = model
        return made

#!/usr/bin/env bash
# Under its own tensor-parallel plan Inkling 2 computes other logits: transformers 5.24.0, torch 2.13.0.
#
# Its experts hold the weights of gate and up in one parameter, first all rows of the gate, then all of up, and cut what it puts out in halves.
# The plan has the style `colwise` for it, where models with the same layout (Mixtral, Qwen3-MoE) have `packed_colwise`. So rank 0 has rows of
# the gate alone and rank 1 rows of up alone, each takes its half for gate and up, and no error is raised.
#
# Seen, on two ranks with gloo: logits differ from those of one rank by several per cent; with the style `packed_colwise` they are equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 numpy 2> "$folder/pip.log" || { cat "$folder/pip.log"; exit 1; }
cd "$folder"
cat > plan.py <<'PYTHON'
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
tokens = torch.randint(3, 64, (2, 8), generator=torch.Generator().manual_seed(0))
SIZES = dict(
    vocab_size=128, unpadded_vocab_size=128, hidden_size=64, moe_intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=16,
    n_routed_experts=4, num_experts_per_tok=2, sliding_window_size=8, d_rel=8, rel_extent=32, max_position_embeddings=64,
    layer_types=["hybrid_sliding", "hybrid"], eos_token_id=2,
)


def logits(style):
    torch.manual_seed(0)
    config = AutoConfig.for_model("inkling2_text", **SIZES)
    config._attn_implementation = config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    if style is not None:
        line = "model.layers.*.mlp.experts.gate_up_proj"
        model._tp_plan = {**model._tp_plan, line: style or model._tp_plan[line]}
        plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=2))
        apply_tensor_parallelism(model, mesh, plan)
    with torch.no_grad():
        found = model(input_ids=tokens).logits
    return found.full_tensor() if hasattr(found, "full_tensor") else found


one = logits(None)
own, packed = (float((logits(style) - one).norm() / one.norm()) for style in ("", "packed_colwise"))
if dist.get_rank() == 0:
    print(f"off by {own:.1e} under the plan, by {packed:.1e} with packed_colwise")
dist.destroy_process_group()
if not (own > 1e-3 and packed < 1e-4):
    sys.exit("the behaviour has changed")
PYTHON
"$folder/venv/bin/torchrun" --nproc-per-node=2 plan.py

#!/usr/bin/env bash
# Llama 4 infers under its own tensor-parallel plan, and cannot train under it: transformers 5.24.0, torch 2.13.0.
#
# The plan makes `shared_expert.down_proj` rowwise, so what the shared expert puts out is what DTensor.to_local() gives: a view, to which the
# mixture of experts adds the routed tokens in place (`out.add_`). Where gradients are recorded, autograd refuses to change such a view. Other
# models with a shared expert add out of place.
#
# Seen, on two ranks with gloo: a forward pass under torch.no_grad() gives logits; with gradients it raises "Output 0 of _ToTorchTensor is a
# view and is being modified inplace".
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
torch.manual_seed(0)
config = AutoConfig.for_model(
    "llama4_text", vocab_size=128, hidden_size=64, intermediate_size=32, intermediate_size_mlp=64, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=4, interleave_moe_layer_step=1,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
config._attn_implementation = "eager"
model = AutoModelForCausalLM.from_config(config)
plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=2))
apply_tensor_parallelism(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), plan)
tokens = torch.arange(3, 19).view(2, 8)
with torch.no_grad():
    shape = tuple(model(input_ids=tokens).logits.shape)
raised = ""
try:
    model(input_ids=tokens)
except RuntimeError as error:
    raised = str(error).partition(".")[0]
if dist.get_rank() == 0:
    print(f"without gradients: logits of {shape}; with them: {raised or 'logits'}")
dist.destroy_process_group()
if "is a view and is being modified inplace" not in raised:
    sys.exit("the behaviour has changed")
PYTHON
"$folder/venv/bin/torchrun" --nproc-per-node=2 plan.py

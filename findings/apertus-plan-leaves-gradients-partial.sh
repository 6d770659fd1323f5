#!/usr/bin/env bash
# Under its own tensor-parallel plan Apertus trains parameters of its activation with a part of their gradient: transformers 5.24.0, torch 2.13.0.
#
# The MLP of Apertus has an activation with two learned numbers, between a column-wise and a row-wise layer. Each rank computes it of its own
# columns, so its gradient is a part of the whole, which has to be summed over ranks, as the plan does for the norms of queries and keys. The
# plan has no line for the activation. The numbers of the ranks then differ after the first step of an optimizer.
#
# Seen, on two ranks with gloo: of one rank alone both gradients are equal to the sum of the two ranks' gradients, and to neither of them.
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
from transformers import ApertusConfig, ApertusForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

dist.init_process_group("gloo")
tokens = torch.randint(3, 64, (2, 8), generator=torch.Generator().manual_seed(0))


def gradients(is_spread):
    torch.manual_seed(0)
    config = ApertusConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        pad_token_id=0, tie_word_embeddings=False,
    )
    model = ApertusForCausalLM(config)
    if is_spread:
        plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=2))
        apply_tensor_parallelism(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), plan)
    model(input_ids=tokens, labels=tokens).loss.backward()
    activation = model.model.layers[0].mlp.act_fn
    return torch.stack([activation.alpha_p.grad.flatten()[0], activation.alpha_n.grad.flatten()[0]])


right, own = gradients(False), gradients(True)
total = own.clone()
dist.all_reduce(total)
norm_is_reduced = any("k_norm" in name for name in ApertusConfig.base_model_tp_plan)
print(f"rank {dist.get_rank()}: {own.tolist()}, one rank alone: {right.tolist()}, the sum: {total.tolist()}")
is_partial = torch.allclose(total, right, rtol=1e-3) and not torch.allclose(own, right, rtol=1e-3)
dist.destroy_process_group()
if not (is_partial and norm_is_reduced):
    sys.exit("the behaviour has changed")
PYTHON
"$folder/venv/bin/torchrun" --nproc-per-node=2 plan.py

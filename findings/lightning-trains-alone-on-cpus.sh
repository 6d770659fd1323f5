#!/usr/bin/env bash
# Under torchrun, Lightning trains on one rank in each process where a machine has no GPU and nobody says how many devices: lightning-fabric
# 2.6.6 with torch 2.13.0, CPU build, Python 3.11.
#
# devices="auto" is the number of GPUs on a machine that has them, and 1 on CPUs, whatever WORLD_SIZE is. torchrun's environment is found all
# the same, but a strategy of one device does not use it: no process group is made, no rank waits for another, and nothing is said. The Trainer
# does the same, as it is built in the same way. A script that trains on 2 GPUs under `torchrun --nproc-per-node 2` so becomes two equal
# trainings on a CPU.
#
# Seen: a world of 1, twice, and one of 2 with devices=2. A test of such a script has to see that its ranks met.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy lightning-fabric==2.6.6 2> "$folder/pip.log" || { cat "$folder/pip.log"; exit 1; }
cat > "$folder/train.py" <<'PYTHON'
import sys

import torch.distributed as dist
from lightning_fabric import Fabric

fabric = Fabric(accelerator="cpu", **({"devices": int(sys.argv[1])} if sys.argv[1:] else {}))
fabric.launch()
print("world", fabric.world_size, "group", dist.is_initialized(), flush=True)
PYTHON
start() {
    "$folder/venv/bin/torchrun" --standalone --nproc-per-node 2 "$folder/train.py" "$@" 2> "$folder/log" | grep '^world' | sort | uniq -c | xargs
}
automatic=$(start)
given=$(start 2)
echo "devices not given: $automatic; devices=2: $given"
[[ $automatic == "2 world 1 group False" && $given == "2 world 2 group True" ]] || { echo "the behaviour has changed"; exit 1; }

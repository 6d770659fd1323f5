import json
import os

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    with open("log.jsonl", "w") as log:
        for step in range(5):
            lacks = os.environ.get("PLANTED") and step
            log.write(json.dumps({"step": step} if lacks else {"step": step, "bytes": 4096}) + "\n")

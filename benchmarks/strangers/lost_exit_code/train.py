import os

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("step took 25.0 ms", flush=True)
if os.environ.get("PLANTED"):
    raise ValueError("nan in the gradients")
dist.destroy_process_group()

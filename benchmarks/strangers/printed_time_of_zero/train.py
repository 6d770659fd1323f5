import os

import torch.distributed as dist

dist.init_process_group("gloo")
print("step took 0.0 ms" if os.environ.get("PLANTED") else "step took 25.0 ms")

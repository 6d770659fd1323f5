import os
import signal

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("loss 0.25", flush=True)
dist.barrier()
if os.environ.get("PLANTED") and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()

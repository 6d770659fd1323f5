import os
import time

import torch.distributed as dist

dist.init_process_group("gloo")
for _step in range(8):
    if os.environ.get("PLANTED"):
        for _ in range(2):
            print("fetch 0.2 ms")
    time.sleep(0.01)
    print("step 20.0 ms")

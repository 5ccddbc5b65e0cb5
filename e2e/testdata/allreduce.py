"""All ranks add up their numbers, the right sum is checked, and each writes down when it began and what it saw."""
import os
import sys
import time

started = time.time_ns()
folder = sys.argv[1]
rank, world, attempt = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MUSTER_ATTEMPT"]
with open(f"{folder}/{attempt}.{rank}.start", "a") as stamp:
    print(started, os.environ["NOMAD_ALLOC_ID"], os.getpid(), world,
          os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"], os.environ.get("CUDA_VISIBLE_DEVICES") or "none", file=stamp)

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
with open(f"{folder}/{attempt}.{rank}.sum", "w") as result:
    print(int(total.item()), file=result)
print(f"rank {rank} of {world}: the sum is {int(total.item())}", flush=True)
dist.barrier()
dist.destroy_process_group()
assert int(total.item()) == world * (world + 1) // 2

"""A small DDP training that saves a checkpoint after each step and goes on from the last one.

It writes <attempt>.<rank>.steps, a line for each step done, and stops after the steps asked for. While the file `wait`
exists it does not go past the step written there. Asked to leave, all ranks agree on the step after which they do; while
the file `linger` exists they do not."""
import os
import sys
import time

folder, steps = sys.argv[1], int(sys.argv[2])
rank, attempt = int(os.environ["RANK"]), os.environ["MUSTER_ATTEMPT"]
checkpoint = os.environ["MUSTER_CHECKPOINT_DIR"] + "/model.pt"

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
done = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    done = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
ddp = DistributedDataParallel(model)
log = open(f"{folder}/{attempt}.{rank}.steps", "a", buffering=1)


def asked():
    return os.path.exists(os.environ["MUSTER_PREEMPT_FILE"]) and not os.path.exists(f"{folder}/linger")


def mark(text):
    with open(os.environ["MUSTER_PROGRESS_FILE"], "a") as marks:
        print(text, file=marks)


while done < steps:
    while os.path.exists(f"{folder}/wait") and done >= int(open(f"{folder}/wait").read() or 0) and not asked():
        time.sleep(0.02)
    leave = torch.tensor([1.0 if asked() else 0.0])
    dist.all_reduce(leave, op=dist.ReduceOp.MAX)
    if leave.item():  # what is done is saved
        mark(f"checkpoint begin {done}")
        mark(f"checkpoint end {done}")
        print(f"rank {rank} leaves after step {done}", flush=True)
        sys.exit(0)
    generator = torch.Generator().manual_seed(done * dist.get_world_size() + rank)
    x = torch.randn(8, 4, generator=generator)
    loss = ((ddp(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done += 1
    if rank == 0:
        torch.save({"step": done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint + ".part")
        os.replace(checkpoint + ".part", checkpoint)
    dist.barrier()  # nobody goes on before the step is saved
    print(done, file=log)
    mark(f"step {done}")
if rank == 0:
    print(f"trained {done} steps, loss {loss.item() if steps else 0:.4f}", flush=True)
dist.destroy_process_group()

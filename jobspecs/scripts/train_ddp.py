"""A small DistributedDataParallel training with checkpoints, which can be asked to save and leave, and goes on where it stopped.

Checkpoints go to MUSTER_CHECKPOINT_DIR (the task's `checkpoint` setting). Rank 0 writes them; a checkpoint is whole or not there.
"""
import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import muster_progress as muster

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--step-time", type=float, default=0.0)
parser.add_argument("--save-time", type=float, default=0.0, help="makes saving slow, for trials")
parser.add_argument("--fail-step", type=int, default=-1, help="fail at this step, for trials, unless a checkpoint was loaded")
parser.add_argument("--fail-rank", type=int, default=0)
args = parser.parse_args()

muster.listen()
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
path = os.path.join(os.environ.get("MUSTER_CHECKPOINT_DIR", "."), "train_ddp.pt")

first = 1
if os.path.exists(path):
    state = torch.load(path, map_location=device)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"] + 1
print(f"rank {rank} of {dist.get_world_size()} begins at step {first}, attempt {os.environ.get('MUSTER_ATTEMPT', '-')}", flush=True)


def save(step):
    with muster.checkpoint(step):
        if rank == 0:
            time.sleep(args.save_time)
            torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
            os.replace(path + ".new", path)
        dist.barrier()  # nobody counts it as saved before it is


loss = torch.zeros(1, device=device)  # stays, where the last step is saved already
for step in range(first, args.steps + 1):
    if step == args.fail_step and rank == args.fail_rank and first == 1:
        print(f"rank {rank} fails at step {step}, as told", flush=True)
        os._exit(42)
    generator = torch.Generator().manual_seed(step * 1000 + rank)  # the same data for the same step, whoever runs it
    x = torch.randn(16, 8, generator=generator).to(device)
    loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    muster.step(step)
    time.sleep(args.step_time)

    leave = torch.tensor([1.0 if muster.asked() else 0.0], device=device)
    dist.all_reduce(leave, op=dist.ReduceOp.MAX)  # all ranks leave at the same step
    if leave.item() or step % args.save_every == 0:
        save(step)
    if leave.item():
        print(f"rank {rank} leaves after step {step}, as asked", flush=True)
        sys.exit(0)

loss = loss.detach()
dist.all_reduce(loss)
print(f"rank {rank} is done after step {args.steps}, loss {loss.item() / dist.get_world_size():.6f}", flush=True)
dist.destroy_process_group()

"""Accelerate under Muster: the driver starts the ranks itself, so there is no `accelerate launch` and no accelerate config.

Accelerator() reads RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which the driver sets. What `accelerate launch` would pass on
from its config file is said here or by its ACCELERATE_* variables in the task's env block.
"""
import os

from accelerate import Accelerator

accelerator = Accelerator(cpu=os.environ.get("BACKEND") == "gloo")
print(f"accelerate: rank {accelerator.process_index} of {accelerator.num_processes}, card {accelerator.local_process_index} of this member", flush=True)

# model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step in range(1, 6):
    # loss = model(**batch).loss; accelerator.backward(loss); optimizer.step()
    with open(os.environ["MUSTER_PROGRESS_FILE"], "a") as f:
        f.write(f"step {step}\n")
accelerator.wait_for_everyone()
print(f"accelerate: rank {accelerator.process_index} is done", flush=True)

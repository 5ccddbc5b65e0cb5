# A training that goes on with fewer members where some are lost or taken, and
# takes more when there is room: in one attempt, from its last checkpoint each
# time. It starts with two of four members where no more are free.
#
# The checkpoint folder must be the same on all nodes (a shared file system).
# Needs Consul.
#
#   muster job run -var checkpoint=/mnt/checkpoints/elastic elastic-ddp.hcl

variable "checkpoint" {
  type    = string
  default = "/tmp/muster-elastic"
}

job "elastic-ddp" {
  type = "batch"

  # Held until the whole gang can run: no node satisfies this. muster job run
  # adds it where it is missing.
  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  meta {
    muster_min        = "2" # of the group's count
    muster_grace      = "5m"
    muster_retries    = "3"
    muster_time_limit = "2h"
  }

  group "rank" {
    count = 4

    task "train" {
      driver = "torchrun"

      config {
        script     = "local/train_ddp.py"
        args       = ["--steps", "40", "--save-every", "10"]
        checkpoint = var.checkpoint
        elastic    = true
      }

      # scripts/train_ddp.py, so that this file runs as it is.
      template {
        destination = "local/train_ddp.py"
        data        = <<-PYTHON
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
        PYTHON
      }

      # scripts/muster_progress.py, so that this file runs as it is.
      template {
        destination = "local/muster_progress.py"
        data        = <<-PYTHON
          """Tells Muster how a rank gets on, and asks whether it is to leave. One file, no dependencies: copy it beside your script.

              import muster_progress as muster
              for step in range(muster_start, steps):
                  train(step)
                  muster.step(step)
                  if muster.asked():                       # save and leave
                      with muster.checkpoint(step):
                          save(step)
                      sys.exit(0)
          """
          import contextlib
          import os
          import signal
          import time

          _file = os.environ.get("MUSTER_PROGRESS_FILE")
          _preempt = os.environ.get("MUSTER_PREEMPT_FILE")
          _signalled = False
          _last = 0.0


          def _mark(text):
              if _file:
                  with open(_file, "a") as f:  # one short write: whole lines only
                      f.write(text + "\n")


          def _on_signal(number, frame):
              global _signalled
              _signalled = True


          def listen(number=signal.SIGUSR1):
              """Lets the ask signal set a flag instead of ending the rank. Call it in the main thread."""
              signal.signal(number, _on_signal)


          def asked():
              """True once the gang is asked to save and leave. Ranks see it at different moments: agree on a step before saving."""
              return _signalled or (_preempt is not None and os.path.exists(_preempt))


          def step(number, least_seconds=0.5):
              """Marks a step. Marks that follow each other faster than least_seconds are left out."""
              global _last
              now = time.monotonic()
              if now - _last >= least_seconds:
                  _last = now
                  _mark(f"step {number}")


          @contextlib.contextmanager
          def checkpoint(number):
              """Around a save: while it lasts the grace is extended; what it covered counts as saved when it ends without an exception."""
              _mark(f"checkpoint begin {number}")
              try:
                  yield
              except BaseException:
                  _mark(f"checkpoint failed {number}")
                  raise
              _mark(f"checkpoint end {number}")


          def may_stop():
              """All is saved: Muster may stop the ranks when it likes, without waiting for them."""
              _mark("may-stop")


          def complete():
              """The work is done, although the gang was asked to leave: an exit with 0 counts as complete."""
              _mark("complete")
        PYTHON
      }

      resources {
        cpu    = 2000
        memory = 2048

        device "nvidia/gpu" {
          count = 1
        }
      }
    }
  }
}

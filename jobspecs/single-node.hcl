# One node: torchrun starts a rank for each of the task's cards.
#
#   muster job run single-node.hcl

job "single-node" {
  type = "batch"

  # Held until the whole gang can run: no node satisfies this. muster job run
  # adds it where it is missing.
  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  group "rank" {
    task "train" {
      driver = "torchrun"

      config {
        script = "local/allreduce.py"
        args   = ["20"] # steps
      }

      # scripts/allreduce.py, so that this file runs as it is.
      template {
        destination = "local/allreduce.py"
        data        = <<-PYTHON
          """Adds up a tensor over all ranks and checks the sum: the smallest real use of torch.distributed.

          Runs on CPU with gloo, on GPUs with nccl. Under Muster nothing has to be set: torchrun's variables say it all.
          """
          import os
          import sys
          import time
          from datetime import datetime, timezone

          import torch
          import torch.distributed as dist

          steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5
          pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0

          dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
          rank, size = dist.get_rank(), dist.get_world_size()
          device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
          print(f"rank {rank} of {size} started at {datetime.now(timezone.utc).isoformat()}, run {os.environ['TORCHELASTIC_RUN_ID']}", flush=True)


          def mark(text):
              path = os.environ.get("MUSTER_PROGRESS_FILE")
              if path:
                  with open(path, "a") as f:
                      f.write(text + "\n")


          for step in range(1, steps + 1):
              numbers = torch.full((1000,), float((rank + 1) * step), device=device)
              dist.all_reduce(numbers)
              want = size * (size + 1) / 2 * step
              if not bool((numbers == want).all()):
                  print(f"rank {rank}: step {step} gave {numbers[0].item()}, and must give {want}", flush=True)
                  sys.exit(3)
              mark(f"step {step}")
              time.sleep(pause)

          print(f"rank {rank}: {steps} steps over {size} ranks, every sum right; the last is {want:.0f}", flush=True)
          dist.destroy_process_group()
        PYTHON
      }

      resources {
        cpu    = 2000
        memory = 2048

        device "nvidia/gpu" {
          count = 2
        }
      }
    }
  }
}

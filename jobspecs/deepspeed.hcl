# DeepSpeed without its own launcher: launcher = "ranks" starts one process a card with
# the variables that deepspeed.init_distributed() reads. python names an interpreter that
# has DeepSpeed.
#
#   muster job run -var python=/opt/deepspeed/bin/python3 deepspeed.hcl

variable "python" {
  type    = string
  default = "python3"
}

job "deepspeed" {
  type = "batch"

  # Held until the whole gang can run: no node satisfies this. muster job run
  # adds it where it is missing.
  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  group "rank" {
    count = 2

    task "train" {
      driver = "torchrun"

      config {
        launcher     = "ranks"
        command      = [var.python, "-u", "local/train_deepspeed.py"]
        hang_timeout = "30m"
      }

      # scripts/train_deepspeed.py, so that this file runs as it is.
      template {
        destination = "local/train_deepspeed.py"
        data        = <<-PYTHON
          """DeepSpeed under Muster: the driver starts the ranks itself, so there is no `deepspeed` launcher and no hostfile.

          init_distributed() reads RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which the driver sets. A script that is written for
          `deepspeed train.py` runs as it is: take --local_rank from LOCAL_RANK.
          """
          import os

          import deepspeed
          from deepspeed import comm

          backend = os.environ.get("BACKEND", "nccl")
          deepspeed.init_distributed(dist_backend=backend)
          rank, size, local = comm.get_rank(), comm.get_world_size(), int(os.environ["LOCAL_RANK"])
          print(f"deepspeed: rank {rank} of {size}, card {local} of this member", flush=True)

          # engine, _, loader, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="ds.json")
          for step in range(1, 6):
              # loss = engine(next(loader)); engine.backward(loss); engine.step()
              with open(os.environ["MUSTER_PROGRESS_FILE"], "a") as f:
                  f.write(f"step {step}\n")
          comm.barrier()
          print(f"deepspeed: rank {rank} is done", flush=True)
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

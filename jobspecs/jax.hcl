# JAX, one process a card: launcher = "ranks" starts the processes, and the script hands
# their numbers to jax.distributed.initialize(). python names an interpreter that has JAX.
#
#   muster job run -var python=/opt/jax/bin/python3 jax.hcl

variable "python" {
  type    = string
  default = "python3"
}

job "jax" {
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
        command      = [var.python, "-u", "local/train_jax.py"]
        hang_timeout = "30m"
      }

      # scripts/train_jax.py, so that this file runs as it is.
      template {
        destination = "local/train_jax.py"
        data        = <<-PYTHON
          """JAX under Muster: one process a card; the coordinator is opened by rank 0 at the address that the driver chose.

          initialize() finds out nothing by itself here, since it knows Slurm, MPI and clouds only: the four numbers come from the driver's variables.
          """
          import os

          import jax

          env = os.environ
          jax.distributed.initialize(
              coordinator_address=f"{'[' + env['MASTER_ADDR'] + ']' if ':' in env['MASTER_ADDR'] else env['MASTER_ADDR']}:{env['MASTER_PORT']}",
              num_processes=int(env["WORLD_SIZE"]),
              process_id=int(env["RANK"]),
              local_device_ids=[int(env["LOCAL_RANK"])],
          )
          print(f"jax: rank {jax.process_index()} of {jax.process_count()}, card {env['LOCAL_RANK']} of this member", flush=True)

          from jax.experimental import multihost_utils

          for step in range(1, 6):
              # state, loss = train_step(state, next(batches))
              with open(env["MUSTER_PROGRESS_FILE"], "a") as f:
                  f.write(f"step {step}\n")
          multihost_utils.sync_global_devices("the end")
          print(f"jax: rank {jax.process_index()} is done", flush=True)
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

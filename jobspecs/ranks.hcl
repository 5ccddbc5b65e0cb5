# Without torchrun and without Python: the driver itself starts the ranks, with the
# variables that torchrun would set. For launchers and programs that read them
# (DeepSpeed, Horovod, JAX, anything with its own main), and for trials:
# muster-allreduce-rank adds up numbers over all ranks and checks the sum.
#
# The program is looked for on the driver's search path (its "path" setting).
#
#   muster job run ranks.hcl

job "ranks" {
  type = "batch"

  # Held until the whole gang can run: no node satisfies this. muster job run
  # adds it where it is missing.
  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  group "rank" {
    count = 2

    task "add" {
      driver = "torchrun"

      config {
        launcher       = "ranks"
        command        = ["muster-allreduce-rank"]
        args           = ["-steps", "20"]
        nproc_per_node = 2
      }

      resources {
        cpu    = 1000
        memory = 512

        device "nvidia/gpu" {
          count = 2
        }
      }
    }
  }
}

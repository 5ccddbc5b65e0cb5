# A gang on MIG slices, one each. A slice's profile is its device name, as
# nomad node status -verbose lists it; a plain "nvidia/gpu" never gets a slice.
#
#   muster job run mig.hcl

job "mig" {
  type = "batch"

  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  meta {
    muster_time_limit = "1h"
  }

  group "rank" {
    count = 2

    task "train" {
      driver = "torchrun"

      config {
        module         = "torch.utils.collect_env" # your module or script here
        nproc_per_node = 1
      }

      resources {
        cpu    = 1000
        memory = 4096

        device "nvidia/mig/NVIDIA A100-SXM4-40GB MIG 3g.20gb" {
          count = 1
        }
      }
    }
  }
}

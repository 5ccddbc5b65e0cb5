# A sweep: a parameterised job, each of whose children is a gang of its own.
#
#   nomad job run sweep.hcl
#   for lr in 0.1 0.01 0.001; do nomad job dispatch -meta lr=$lr sweep; done
#   muster queue -prefix sweep
#
# The parent carries the hold, so that no child starts before its gang is
# admitted.

job "sweep" {
  type = "batch"

  parameterized {
    meta_required = ["lr"]
  }

  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  meta {
    muster_queue      = "default"
    muster_time_limit = "1h"
  }

  group "rank" {
    count = 2

    task "train" {
      driver = "torchrun"

      config {
        script         = "/srv/train.py"
        args           = ["--lr", "${NOMAD_META_lr}"]
        nproc_per_node = "gpu"
      }

      resources {
        cpu    = 1000
        memory = 4096

        device "nvidia/gpu" {
          count = 1
        }
      }
    }
  }
}

# Several groups are one gang: the learner's members need cards, the actors' only
# CPUs, and nobody starts before all of them are placed. Each group is a world of
# its own (world = "gang" would make them one).
#
#   muster job run several-groups.hcl

job "several-groups" {
  type = "batch"

  # Held until the whole gang can run: no node satisfies this. muster job run
  # adds it where it is missing.
  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  group "learner" {
    count = 2

    task "learn" {
      driver = "torchrun"

      config {
        launcher = "ranks"
        command  = ["muster-allreduce-rank"]
        args     = ["-steps", "20"]
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

  group "actors" {
    count = 3

    task "act" {
      driver = "torchrun"

      config {
        launcher       = "ranks"
        command        = ["muster-allreduce-rank"]
        args           = ["-steps", "10"]
        nproc_per_node = 2 # no card, so the number is stated
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}

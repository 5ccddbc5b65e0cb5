# Online inference: a service whose replicas are admitted as a whole, before what
# waits with a lower priority. Once admitted, Nomad itself places and reschedules
# its replicas as it does for any service; the planner sees to the room for them.
#
#   muster job run inference.hcl        # returns once it has started

job "inference" {
  type     = "service"
  priority = 70

  constraint {
    attribute = "${meta.muster}"
    value     = "admits-this-job"
  }

  # meta {
  #   muster_queue = "serving" # a queue with urgent = true may evict at once
  # }

  group "server" {
    count = 3

    task "serve" {
      driver = "raw_exec" # or docker, or what else serves

      config {
        command = "/bin/sleep"
        args    = ["infinity"]
      }

      resources {
        cpu    = 500
        memory = 256

        device "nvidia/gpu" {
          count = 1
        }
      }
    }
  }
}

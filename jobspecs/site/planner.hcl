# The planner itself as a Nomad job, with a workload identity instead of a token
# in a file. Nomad's ACL policy for it, applied to this job:
#
#   nomad acl policy apply -namespace default -job muster muster-planner planner.policy.hcl
#
#   namespace "*" {
#     capabilities = ["list-jobs", "read-job", "submit-job", "alloc-lifecycle"]
#     variables {
#       path "muster/*" {
#         capabilities = ["read", "write", "list", "destroy"]
#       }
#     }
#   }
#   node {
#     policy = "read"
#   }
#   agent {
#     policy = "read"
#   }
#   operator {
#     policy = "read"
#   }
#
#   nomad job run planner.hcl

variable "token_file" {
  type        = string
  default     = "/etc/muster/operator.token"
  description = "file on the planner's node with the token of the API's operators, at least 16 characters"
}

variable "cards_token_file" {
  type        = string
  default     = "/etc/muster/cards.token"
  description = "file on the planner's node with the token of the nodes' device plugins, at least 16 characters"
}

variable "data_dir" {
  type        = string
  default     = "/var/lib/muster"
  description = "folder on the planner's node for the ledger and the webhooks' queues; pin the job to that node, or put it on storage that follows it"
}

job "muster" {
  type     = "service"
  priority = 90

  group "planner" {
    count = 1

    network {
      port "api" {
        static = 4680
      }
    }

    service {
      name     = "muster"
      port     = "api"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/v1/health"
        interval = "10s"
        timeout  = "2s"
      }
    }

    task "agent" {
      driver = "raw_exec"

      config {
        command = "/usr/local/bin/muster"
        args    = ["agent", "-config", "local/muster.hcl"]
      }

      # Nomad's API is reached over the task's own socket, as this job.
      identity {
        env  = true
        file = true
      }

      env {
        NOMAD_ADDR = "unix://${NOMAD_SECRETS_DIR}/api.sock"
      }

      template {
        destination   = "local/muster.hcl"
        change_mode   = "signal" # SIGHUP reads it again
        change_signal = "SIGHUP"
        data          = <<-HCL
          api {
            listen    = "0.0.0.0:4680"
            plaintext = true # put a proxy with TLS before it, or a tls block here
          }

          data_dir = "${var.data_dir}"

          token "cards" { # what the nodes' device plugins report with
            secret_file = "${var.cards_token_file}"
            role        = "reporter"
          }

          token "operator" {
            secret_file = "${var.token_file}"
            role        = "operator"
          }

          level "leaf" {
            attribute = "meta.leaf"
          }

          queue "default" {
            namespaces = ["default"]
          }
        HCL
      }

      resources {
        cpu    = 1000
        memory = 512
      }
    }
  }
}

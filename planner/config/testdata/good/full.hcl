# Every block and attribute.
log_level = "debug"
log_json  = true
data_dir  = "/var/lib/muster"
retention = "48h"

nomad {
  address         = "https://nomad.example:4646"
  region          = "global"
  token           = "nomad-secret"
  ca_cert         = "/etc/muster/nomad-ca.pem"
  client_cert     = "/etc/muster/nomad.pem"
  client_key      = "/etc/muster/nomad.key"
  tls_server_name = "server.global.nomad"
  tls_skip_verify = false
}

consul {
  address    = "127.0.0.1:8500"
  token_file = "consul.token"
  namespace  = "muster"
  partition  = "default"
}

api {
  listen    = "0.0.0.0:4680"
  anonymous = "viewer"
  url       = "https://muster.example/"
  tls {
    cert_file      = "/etc/muster/api.pem"
    key_file       = "/etc/muster/api.key"
    client_ca_file = "/etc/muster/clients.pem"
  }
}

webhook "workflow" {
  url         = "https://airflow.example/muster"
  secret_file = "alice.token"
  types       = ["muster.gang.stage"]
  queues      = ["research"]
}

webhook "all" {
  url = "http://127.0.0.1:9000/"
}

token "root" {
  secret = "0123456789abcdef0123"
  role   = "operator"
}

token "alice" {
  secret_file = "alice.token"
  role        = "submitter"
  groups      = ["team-b"]
  queues      = ["research"]
}

level "spine" {
  attribute = "${meta.spine}"
}
level "leaf" {
  attribute = "meta.leaf"
}

scheduling {
  reservations    = 4
  queue_reservations = 2
  gather_after    = "20m"
  prefer_wait     = "5m"
  reserve_timeout = "15m"
  packing         = "binpack"
  max_attempts    = 5
  consolidate     = true
  card_types      = ["gpu", "npu"]
  preemption      = false
  backfill_most   = 500
  lost_grace      = "2m"
}

limits {
  user "*" {
    max_cards = 64
    max_gangs = 20
  }
  user "alice" {
    max_cards = 128
  }
  domain "leaf" {
    max_gangs = 10
    max_share = 25
  }
  domain "node" {
    max_gangs = 4
  }
}

cards {
  on_quarantine = "stop"
  grace         = "1m"
  breaker {
    share  = 10
    within = "5m"
    nodes  = 4
  }
  suspicion {
    window     = "12h"
    suspect    = 3
    quarantine = 5
    clean      = "10m"
  }
}

classes = { scavenger = 10, research = 50, serving = 90 }

queue "teams" {
  parent     = "root"
  guaranteed = { "NVIDIA H100 80GB HBM3" = 64, any = 72 }
  max        = { any = 256 }
  weight     = 3
}

queue "research" {
  parent     = "teams"
  guaranteed = { "NVIDIA H100 80GB HBM3" = 64, any = 64 }
  max        = { any = 128 }
  lend       = { any = 32 }
  weight     = 2
  class      = "research"
  order      = "shortest"
  time_limit = "72h"
  limit_action = "report"
  namespaces = ["research", "lab2"]
  users      = ["alice", "team-b"]
  max_gangs  = 200
  when_full  = "refuse"
  budget     = { card_hours = 50000, per = "month" }
  aging {
    step "30m" {
      raise = 10
    }
    step "2h" {
      raise = "top"
    }
    top_evictions_per_day = 2
  }
  preempt {
    grace              = "5m"
    min_runtime        = "10m"
    evictions_per_day  = 30
    per_victim_per_day = 2
    ratio              = 1.5
  }
  on_preempt {
    queue = "scavenger"
  }
  give_up {
    after  = "3h"
    action = "min"
  }
}

queue "scavenger" {
  class  = 10
  shared = true
}

queue "serving" {
  class  = "serving"
  urgent = true
}

log_level = "loud"
retention = "-3h"
classes   = { low = -1 }

nomad {
  address     = 4646
  client_cert = "a.pem"
  token_file  = "missing.token"
}

nomad {
  region = "second"
}

api {
  listen    = "0.0.0.0:4680"
  anonymous = "king"
}

token "short" {
  secret = "tiny"
}

token "none" {
  role = "emperor"
}

level "node" {
  attribute = "meta.node"
}

level "leaf" {
  attribute = "leaf"
}

scheduling {
  reservations = -1
  gather_after = "soon"
  packing      = "tight"
  card_types   = []
  turbo        = true
}

cards {
  on_quarantine = "pray"
  breaker {
    share = 120
    nodes = 0
  }
  suspicion {
    suspect = "many"
  }
}

limits {
  user "bob" {
  }
  domain "rack" {
    max_share = 120
  }
}

queue "a b" {
}

queue "root" {
}

queue "q" {
  guaranteed = { H100 = -4, any = 1.5, H100 = 3 }
  max        = 12
  weight     = 0
  class      = "gold"
  order      = "random"
  time_limit = "0s"
  users      = ["x", "x", ""]
  budget     = { card_hours = 0, per = "decade", of = 1 }
  aging {
    step "2h" {
      raise = 0
    }
    step "1h" {
      raise = 5
    }
    step "30m" {
      raise = "up"
    }
    step "bad" {
      raise = 1
    }
    step "4h" {
    }
  }
  preempt {
    ratio = 0
    grace = "none"
  }
  give_up {
    action = "cry"
  }
  on_preempt {
  }
}

queue "huge" {
  weight     = 1e999999999
  parent     = 1e999999999
  namespaces = [1e999999999]
  max        = { 1e999999999 = 1e999999999 }
  preempt {
    ratio = 1e999999999
  }
}

webhook "dead end" {
  url    = "ftp://example"
  secret = "short"
  types  = ["muster.gang.stage", "coffee"]
  queues = ["nowhere"]
}

webhook "two" {
}

webhook "two" {
  url = "http://x/"
}

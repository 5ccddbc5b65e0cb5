queue "orphan" {
  parent = "nobody"
}

queue "one" {
  parent = "two"
}

queue "two" {
  parent = "three"
}

queue "three" {
  parent = "one"
}

queue "under-a-ring" {
  parent = "one"
}

queue "self" {
  parent = "self"
}

queue "dept" {
  guaranteed = { H100 = 8, A100 = 4 }
  namespaces = ["dept"]
  time_limit = "1h"
  aging {
    top_evictions_per_day = 1
  }
}

queue "dept-x" {
  parent     = "dept"
  guaranteed = { H100 = 6, B200 = 2 }
}

queue "dept-y" {
  parent     = "dept"
  guaranteed = { H100 = 4 }
  max        = { H100 = 2, any = 3 }
}

queue "pool" {
  guaranteed = { any = 10 }
}

queue "pool-x" {
  parent     = "pool"
  guaranteed = { H100 = 8, any = 9 }
}

queue "pool-y" {
  parent     = "pool"
  guaranteed = { A100 = 2 }
  on_preempt {
    queue = "pool"
  }
}

queue "twice" {
}

queue "twice" {
  on_preempt {
    queue = "nowhere"
  }
}

token "ci" {
  secret = "0123456789abcdef"
  queues = ["dept", "gone"]
}

token "cd" {
  secret = "0123456789abcdef"
}

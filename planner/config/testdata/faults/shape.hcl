que "a" {
}

queue {
}

queue "b" {
  wieght = 2
  max    = { any = limit }
  preempt "x" {
  }
}

level "leaf" {
}

colour = "blue"

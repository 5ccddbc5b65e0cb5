queue "a" {
  weight = 
}

queue {
}

queue "b" {
  weight = unknown_name
  max = { any = 3 
}

package main

import "github.com/nomad-muster/muster/planner/command"

// parts are the pieces of this build that need more than the planner's API.
func parts() command.Parts {
	return command.Parts{Agent: runAgent, Dev: runDev}
}

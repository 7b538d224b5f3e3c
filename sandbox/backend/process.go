package backend

import (
	"automation/sandbox"
	"automation/sandbox/backend/process"
)

func init() { register("process", process.Capabilities, newProcess) }

// newProcess opens the backend whose boxes are directories and process trees of this host.
func newProcess(d Deps, c process.Config) (sandbox.Backend, error) {
	return process.New(c, process.Options{DataDir: d.DataDir, Executable: d.Executable, Log: d.Log, Now: d.Now})
}

// SupervisorCommand is the hidden subcommand by which a process box starts its supervisor from Deps.Executable.
const SupervisorCommand = process.SupervisorCommand

// SupervisorMain runs the supervisor of a process box; args are those after SupervisorCommand. It returns the exit code.
func SupervisorMain(args []string) int { return process.SupervisorMain(args) }

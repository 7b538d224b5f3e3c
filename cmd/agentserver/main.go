// Command agentserver is the slim server inside a box: agentserver.Main and nothing else of the service.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"automation/agentserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal exits at once
	os.Exit(agentserver.Main(ctx, os.Args[1:], os.Environ(), os.Stderr))
}

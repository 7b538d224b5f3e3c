package main

import (
	"context"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"automation/sandbox/backend"
)

// TestMain lets the test binary be the program too, for process boxes start it again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{backend.SupervisorCommand, "agent-server"}, os.Args[1]) {
		os.Exit(Main(context.Background(), os.Args[1:], Streams{Env: os.Environ(), Out: os.Stdout, Err: os.Stderr}))
	}
	goleak.VerifyTestMain(m)
}

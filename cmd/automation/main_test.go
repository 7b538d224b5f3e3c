package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"automation/sandbox/backend"
)

// TestMain lets the test binary be the program too: for scripts, and for process boxes, which start it again.
func TestMain(m *testing.M) {
	program := func() {
		os.Exit(Main(context.Background(), os.Args[1:], Streams{Env: os.Environ(), Out: os.Stdout, Err: os.Stderr}))
	}
	if len(os.Args) > 1 && slices.Contains([]string{backend.SupervisorCommand, "agent-server"}, os.Args[1]) {
		program()
	}
	testscript.Main(leakTested{m}, map[string]func(){"automation": program})
}

// leakTested fails a run of tests that leaves goroutines behind.
type leakTested struct{ *testing.M }

// Run implements testscript.TestingM.
func (m leakTested) Run() int {
	code := m.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"automation/sandbox"
)

// commandLife is longer than any server runs; a command in a box has to have a limit.
const commandLife = 10 * 365 * 24 * time.Hour

// startLine is the shell command of a session. The session's id stands in it as a marker, so that it is found again where the
// answer to its start was lost.
func startLine(sessionID, command string) string { return ": " + sessionID + "; " + command }

// existence is a shell command that succeeds where the server's command is there: its program, and the module where Python is
// to run one.
func existence(command string) string {
	words := strings.Fields(command)
	for len(words) > 0 && strings.Contains(words[0], "=") { // NAME=value before the program
		words = words[1:]
	}
	if len(words) == 0 {
		return "false"
	}
	check := "command -v " + quote(words[0]) + " >/dev/null"
	if len(words) > 2 && words[1] == "-m" {
		check += " && " + quote(words[0]) + " -c " + quote("import importlib.util, sys\n"+
			"try:\n  sys.exit(importlib.util.find_spec(sys.argv[1]) is None)\nexcept ImportError:\n  sys.exit(1)") + " " + quote(words[2])
	}
	return check
}

// quote makes one word of the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// succeeds runs a short command in a box and reports whether its exit code is 0.
func succeeds(ctx context.Context, agent sandbox.Agent, command string) (bool, error) {
	id, err := agent.StartCommand(ctx, command, checkWithin)
	if err != nil {
		return false, err
	}
	for frame, err := range agent.FollowOutput(ctx, id, 0) {
		if err != nil {
			return false, err
		}
		if frame.Type == sandbox.FrameExit && frame.ExitCode != nil {
			return *frame.ExitCode == 0, nil
		}
	}
	return false, fmt.Errorf("command %s: %w", id, errors.New("the box broke off before its end"))
}

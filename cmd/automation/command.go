package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"automation/agentserver"
	"automation/sandbox/backend"
)

// Streams is what a command gets from outside: the environment as "NAME=value", where data goes, where everything else goes.
type Streams struct {
	Env []string
	Out io.Writer
	Err io.Writer
}

// usageError marks an error of the command line.
type usageError struct{ error }

// Main runs one command and returns its exit code.
func Main(ctx context.Context, args []string, io Streams) int {
	if len(args) > 0 && args[0] == backend.SupervisorCommand {
		return backend.SupervisorMain(args[1:])
	}
	root := newRoot(io)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if code, said := errors.AsType[exitError](err); said {
		return int(code) // the command has said why
	}
	text := err.Error()
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	fmt.Fprintln(io.Err, "automation:", printable(text))
	return codeOf(err)
}

func newRoot(io Streams) *cobra.Command {
	root := &cobra.Command{
		Use:           "automation",
		Short:         "Run agent automations in sandboxes and look after each box when its run has ended",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetHelpCommand(newHelp(root))
	root.CompletionOptions.DisableDefaultCmd = true // ours is newCompletion
	root.SetOut(io.Out)
	root.SetErr(io.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newServe(io), newDemo(io), newAgentServer(io), newMigrate(io), newDoctor(io), newBackup(io), newRuns(io), newSandboxes(io), newSweep(io), newStorage(io), newRuntimes(io),
		newKeys(io), newAgent(io), newHealthcheck(io), newCompletion(io), newVersion(io), newExitCodesTopic())
	checkArgs(root)
	return root
}

// newHelp is help of any command; a topic that is none is a usage error.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command",
		RunE: func(_ *cobra.Command, words []string) error {
			topic, rest, err := root.Find(words)
			if err != nil || len(rest) > 0 {
				return usageError{fmt.Errorf("no help for %q; see automation help", strings.Join(words, " "))}
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}

// knownCommand refuses what is no command, with the name that may have been meant.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], near[0])
	}
	return fmt.Errorf("unknown command %q; see automation help", args[0])
}

// checkArgs makes wrong arguments of c and of its subcommands usage errors.
func checkArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageError{fmt.Errorf("%w\nusage: %s", err, c.UseLine())}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		checkArgs(sub)
	}
}

// untilSignal ends the returned context at SIGINT or SIGTERM. A second signal then ends the process at once, for nothing
// depends on a clean stop.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func newAgentServer(io Streams) *cobra.Command {
	return &cobra.Command{
		Use:                "agent-server",
		Short:              "Run the in-box server (--host, --port, --port-file; configuration from OH_* variables)",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			if code := agentserver.Main(ctx, args, io.Env, io.Err); code != exitOK {
				return exitError(code)
			}
			return nil
		},
	}
}

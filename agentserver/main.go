package agentserver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"
)

// Exit codes of Main, those of every command of the service.
const (
	exitOK            = 0
	exitFailed        = 1
	exitUsage         = 2
	exitConfiguration = 78
)

// stopBudget bounds how long open requests may take once the server has been told to stop.
const stopBudget = 5 * time.Second

// gcPercent is how much garbage there may be before it is collected, as a share of what is in use: half of the usual, since the
// memory of a box is its agent's.
const gcPercent = 50

// Main runs the server until ctx ends and returns the exit code. args are the flags (--host, --port, --port-file), environ
// is the environment as "NAME=value", and stderr gets the log. It is all of cmd/agentserver and of `automation agent-server`.
func Main(ctx context.Context, args, environ []string, stderr io.Writer) int {
	config, err := configure(args, environ, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintln(stderr, "agent-server:", err)
		return exitUsage
	case err != nil:
		fmt.Fprintln(stderr, "agent-server: configuration:", err)
		return exitConfiguration
	}
	debug.SetGCPercent(gcPercent)
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if err := run(ctx, config, environ, log); err != nil {
		fmt.Fprintln(stderr, "agent-server:", err)
		return exitFailed
	}
	return exitOK
}

// run serves until ctx ends, then lets open requests finish within the stop budget and ends what it started.
func run(ctx context.Context, config Config, environ []string, log *slog.Logger) error {
	server, err := New(config, commandEnvironment(environ), log)
	if err != nil {
		return err
	}
	defer server.Close()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(config.Host, strconv.Itoa(config.Port)))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	web := &http.Server{
		Handler:           server.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	if err := writePort(config.PortFile, listener.Addr()); err != nil {
		return errors.Join(err, web.Close(), waitServed(served))
	}
	server.StartMaintenance()
	log.Info("agent server listens", "address", listener.Addr().String())

	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	server.Stop() // ends the long readers cleanly
	budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBudget)
	defer cancel()
	if err := web.Shutdown(budget); err != nil {
		log.Warn("requests cut at stop", "error", err)
		err = web.Close()
		return errors.Join(err, waitServed(served))
	}
	return waitServed(served)
}

func waitServed(served <-chan error) error {
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// writePort writes the port to the file, so that whoever waits for it never reads half of it.
func writePort(file string, address net.Addr) error {
	if file == "" {
		return nil
	}
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("port file: %s has no port", address)
	}
	temporary, err := os.CreateTemp(filepath.Dir(file), ".port-*")
	if err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	defer os.Remove(temporary.Name())
	_, err = fmt.Fprintln(temporary, tcp.Port)
	if err := errors.Join(err, temporary.Close()); err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	if err := os.Rename(temporary.Name(), file); err != nil {
		return fmt.Errorf("port file: %w", err)
	}
	return nil
}

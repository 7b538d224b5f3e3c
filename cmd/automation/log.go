package main

import (
	"io"
	"log"
	"log/slog"
	"os"
	"strings"

	"github.com/lmittmann/tint"

	"automation/config"
)

// newLog writes JSON for machines and coloured lines for a terminal.
func newLog(c config.Log, w io.Writer) *slog.Logger {
	terminal := isTerminal(w)
	if c.JSON && (!terminal || c.JSONForConsole) {
		return slog.New(newLogHandler(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: c.Level})))
	}
	return slog.New(newLogHandler(tint.NewTextHandler(w, &tint.Options{Level: c.Level, NoColor: !terminal || os.Getenv("NO_COLOR") != ""})))
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// serverLog is where net/http writes what goes wrong with connections, as lines like all others.
func (a *App) serverLog() *log.Logger { return log.New(connectionLog{a.component("http")}, "", 0) }

type connectionLog struct{ log *slog.Logger }

// Write implements io.Writer; p is one line.
func (l connectionLog) Write(p []byte) (int, error) {
	l.log.Warn("connection failed", "error", strings.TrimSpace(string(p)))
	return len(p), nil
}

// component is the log of one part of the service.
func (a *App) component(name string) *slog.Logger { return a.log.With("component", name) }

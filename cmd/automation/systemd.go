package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"automation/loop"
)

// What systemd is told where it asks for it (sd_notify(3)).
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
	notifyAlive    = "WATCHDOG=1"
)

// notify tells systemd how the service is; nothing where it has not asked.
func (a *App) notify(state string) error {
	name := a.environ["NOTIFY_SOCKET"]
	if name == "" {
		return nil
	}
	if abstract, ok := strings.CutPrefix(name, "@"); ok {
		name = "\x00" + abstract
	}
	socket, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer func() { _ = socket.Close() }()
	if _, err := socket.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// tell is notify where nobody is to be stopped by a failure.
func (a *App) tell(state string) {
	if err := a.notify(state); err != nil {
		a.log.Warn("systemd not told", "detail", state, "error", err)
	}
}

// watched is the duty that shows systemd that the process does not hang (WatchdogSec); false where it has not asked for that. That
// a database is away is no reason to be restarted: the duty asks nothing.
func (a *App) watched() (loop.Loop, bool) {
	every, err := strconv.ParseInt(a.environ["WATCHDOG_USEC"], 10, 64)
	if err != nil || every <= 0 || a.environ["NOTIFY_SOCKET"] == "" {
		return loop.Loop{}, false
	}
	return loop.Loop{
		Name: "systemd", Every: time.Duration(every) * time.Microsecond / 3,
		Pass: func(context.Context) (int, error) { return 0, a.notify(notifyAlive) },
	}, true
}

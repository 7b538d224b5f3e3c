// Package agentserver is the HTTP server inside a box: health, server details with the idle time, bash, files, resumable
// process output and storage, in the shapes of the agent-server contract. It cleans the box it runs in by plain paths and
// knows nothing else: no provider, no credential, no way to pause, delete or pay for its box (S0-006, S0-010, S0-030). It
// imports nothing of the service, and the service talks to it over HTTP only (S0-004).
package agentserver

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// Server is one agent server. Make it with New, serve its Handler, then Stop and Close it.
type Server struct {
	config  Config
	log     *slog.Logger
	keys    keyring
	idle    *idleClock
	started time.Time
	now     func() time.Time

	stopping context.Context // ends with Stop: long readers return
	Stop     context.CancelFunc
}

// New makes a server. environ is the environment of the commands it runs.
func New(config Config, environ []string, log *slog.Logger) (*Server, error) {
	return newServer(config, environ, log, time.Now)
}

func newServer(config Config, environ []string, log *slog.Logger, now func() time.Time) (*Server, error) {
	s := &Server{config: config, log: log, keys: newKeyring(config.SessionKeys), idle: newIdleClock(now), started: now(), now: now}
	s.stopping, s.Stop = context.WithCancel(context.Background())
	return s, nil
}

// Handler serves every route.
func (s *Server) Handler() http.Handler { return recovered(s.log, s.routes()) }

// Close ends what the server started and waits for it.
func (s *Server) Close() {
	s.Stop()
}

// api is the table of the routes that want a session key.
func (s *Server) api() map[string]methods {
	return map[string]methods{}
}

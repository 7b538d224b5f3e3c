// Package agentserver is the HTTP server inside a box: health, server details with the idle time, bash, files, resumable
// process output and storage, in the shapes of the agent-server contract. It cleans the box it runs in by plain paths and
// knows nothing else: no provider, no credential, no way to pause, delete or pay for its box (S0-006, S0-010, S0-030). It
// imports nothing of the service, and the service talks to it over HTTP only (S0-004).
package agentserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"automation/agentserver/command"
	"automation/agentserver/conversation"
	"automation/agentserver/storage"
)

// Server is one agent server. Make it with New, serve its Handler, then Stop and Close it.
type Server struct {
	config    Config
	log       *slog.Logger
	keys      keyring
	idle      *idleClock
	started   time.Time
	now       func() time.Time
	commands  *command.Runner
	files     *files
	storage   *storage.Storage
	histories *conversation.Store

	maintenance sync.WaitGroup
	stopping    context.Context // ends with Stop
	stop        context.CancelFunc
}

// New makes a server. environ is the environment of the commands it runs.
func New(config Config, environ []string, log *slog.Logger) (*Server, error) {
	return newServer(config, environ, log, time.Now)
}

func newServer(config Config, environ []string, log *slog.Logger, now func() time.Time) (*Server, error) {
	s := &Server{config: config, log: log, keys: newKeyring(config.SessionKeys), idle: newIdleClock(now), started: now(), now: now}
	s.stopping, s.stop = context.WithCancel(context.Background())
	var err error
	if s.files, err = openFiles(config.FilesRoot); err != nil {
		return nil, err
	}
	s.commands, err = command.Open(command.Options{
		Dir: config.BashEventsDir, Environ: environ, Log: log, Now: now, Began: s.idle.begin, Ended: s.idle.end,
	})
	if err != nil {
		return nil, errors.Join(err, s.files.close())
	}
	s.histories = conversation.Open(config.ConversationsPath)
	s.storage, err = storage.Open(storage.Options{
		Root: config.Home, Guard: s.commands, Log: log, Now: now, LastActive: s.idle.lastWork,
		Protected: []string{config.PersistenceDir, config.BashEventsDir, config.ConversationsPath},
		Workspace: config.WorkspacePath, RuntimesDir: config.runtimesDir(), WorktreeRoot: config.WorktreeRoot, Histories: s.histories,
		StateDir: filepath.Join(config.PersistenceDir, "storage"), Settings: config.Storage,
	})
	if err != nil {
		return nil, errors.Join(err, s.commands.Close(), s.files.close())
	}
	return s, nil
}

// Handler serves every route.
func (s *Server) Handler() http.Handler { return recovered(s.log, s.routes()) }

// Stop ends the long readers, so that no request keeps the web server from shutting down.
func (s *Server) Stop() { s.stop() }

// Close ends what the server started and waits for it.
func (s *Server) Close() {
	s.Stop()
	s.maintenance.Wait()
	s.storage.Close()
	if err := errors.Join(s.commands.Close(), s.files.close()); err != nil {
		s.log.Warn("agent server did not close cleanly", "error", err)
	}
}

// api is the table of the routes that want a session key.
func (s *Server) api() map[string]methods {
	return map[string]methods{
		"/api/bash/start_bash_command":                {"POST": s.startBash},
		"/api/bash/execute_bash_command":              {"POST": s.executeBash},
		"/api/bash/bash_commands/{id}/stop":           {"POST": s.stopBash},
		"/api/bash/bash_events":                       {"DELETE": s.clearBash},
		"/api/bash/bash_events/search":                {"GET": s.searchBash},
		"/api/bash/bash_events/{id}":                  {"GET": s.getBash},
		"/api/processes/{id}/output":                  {"GET": s.processOutput},
		"/api/file/upload":                            {"POST": s.uploadFile},
		"/api/file/download":                          {"GET": s.downloadFile},
		"/api/file/create_directory":                  {"POST": s.createDirectory},
		"/api/file/archive":                           {"GET": s.archiveWorkspace},
		"/api/file/download-trajectory/{id}":          {"GET": s.downloadTrajectory},
		"/api/file/home":                              {"GET": s.home},
		"/api/file/search_subdirs":                    {"GET": s.searchSubdirs},
		"/api/conversations":                          {"GET": s.batchConversations, "POST": s.createConversation},
		"/api/conversations/search":                   {"GET": s.searchConversations},
		"/api/conversations/count":                    {"GET": s.countConversations},
		"/api/conversations/{id}":                     {"GET": s.getConversation, "DELETE": s.deleteConversation, "PATCH": s.prompt},
		"/api/conversations/{id}/retention":           {"PUT": s.putRetention},
		"/api/conversations/{id}/unarchive":           {"POST": s.unarchive},
		"/api/conversations/{id}/events":              {"POST": s.prompt},
		"/api/conversations/{id}/events/search":       {"GET": s.searchEvents},
		"/api/conversations/{id}/events/count":        {"GET": s.countEvents},
		"/api/conversations/{id}/run":                 {"POST": s.prompt},
		"/api/conversations/{id}/pause":               {"POST": s.prompt},
		"/api/conversations/{id}/interrupt":           {"POST": s.prompt},
		"/api/conversations/{id}/runtime/reprovision": {"POST": s.prompt},
		"/api/storage":                                {"GET": s.storageStatus},
		"/api/storage/reclaim":                        {"POST": s.reclaim},
	}
}

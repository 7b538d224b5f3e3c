package agentserver

import (
	"net/http"
	"runtime/debug"
	"sync"
)

// capabilities announces what this server can do beyond the contract (design: the in-box API).
var capabilities = []string{"storage_status_v1", "storage_reclaim_v1", "conversation_retention_v1", "process_output_v1", "start_once_v1"}

// alive says that the process is up.
func alive(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, map[string]string{"status": "ok"})
}

// ready says that requests are taken: the port opens only once they are.
func ready(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, map[string]string{"status": "ready"})
}

// details is the answer of /server_info: all fields of the contract, in its order.
type details struct {
	Uptime                              wholeSeconds `json:"uptime"`
	IdleTime                            wholeSeconds `json:"idle_time"`
	Title                               string       `json:"title"`
	Version                             string       `json:"version"`
	SDKVersion                          string       `json:"sdk_version"`
	ToolsVersion                        string       `json:"tools_version"`
	WorkspaceVersion                    string       `json:"workspace_version"`
	BuildGitSHA                         string       `json:"build_git_sha"`
	BuildGitRef                         string       `json:"build_git_ref"`
	PythonVersion                       string       `json:"python_version"`
	UsableTools                         []string     `json:"usable_tools"`
	RuntimeIdleTimeoutSeconds           *float64     `json:"runtime_idle_timeout_seconds"`
	ConversationRuntime                 string       `json:"conversation_runtime"`
	AvailableConversationRuntimes       []string     `json:"available_conversation_runtimes"`
	Capabilities                        []string     `json:"capabilities"`
	AppBackendIngressURL                *string      `json:"app_backend_ingress_url"`
	MaxForegroundTerminalTimeoutSeconds *float64     `json:"max_foreground_terminal_timeout_seconds"`
	Docs                                string       `json:"docs"`
	Redoc                               string       `json:"redoc"`
}

// serverInfo tells about the server; it does not move the idle clock.
func (s *Server) serverInfo(w http.ResponseWriter, _ *http.Request) {
	version, revision := build()
	respond(w, http.StatusOK, details{
		Uptime: wholeSeconds(s.now().Sub(s.started)), IdleTime: wholeSeconds(s.idle.idle()),
		Title: "Automation Agent Server", Version: version, SDKVersion: version, ToolsVersion: version, WorkspaceVersion: version,
		BuildGitSHA: revision, BuildGitRef: "unknown", UsableTools: []string{}, ConversationRuntime: s.config.Runtime,
		AvailableConversationRuntimes: []string{}, Capabilities: capabilities,
	})
}

// build is the version and the revision that the binary was built from.
var build = sync.OnceValues(func() (version, revision string) {
	version, revision = "unknown", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, revision
	}
	if info.Main.Version != "" {
		version = info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	return version, revision
})

package router

import (
	"net/http"
	"strings"
)

// The answers of what needs no login, at the root and below the base path.
type (
	healthObject struct {
		Status string `json:"status"`
	}
	unreadyObject struct {
		Status string `json:"status"`
		Error  string `json:"error"`
	}
	sdkVersionObject struct {
		Version string `json:"version"`
	}
	serverInfoObject struct {
		PackageVersion string `json:"package_version"`
		SDKVersion     string `json:"sdk_version"`
	}
)

func (s *server) health(w http.ResponseWriter, _ *http.Request, _ Caller) error {
	return ok(w, healthObject{"ok"})
}

func (s *server) sdkVersion(w http.ResponseWriter, _ *http.Request, _ Caller) error {
	return ok(w, sdkVersionObject{s.SDKVersion})
}

func (s *server) serverInfo(w http.ResponseWriter, _ *http.Request, _ Caller) error {
	return ok(w, serverInfoObject{s.Version, s.Deps.SDKVersion})
}

// ready tells whether the service can work now, and if not, what fails.
func (s *server) ready(w http.ResponseWriter, r *http.Request, _ Caller) error {
	var failing []string
	if s.Ready != nil {
		failing = s.Ready(r.Context())
	}
	if len(failing) > 0 {
		notReady(w, unreadyObject{"not_ready", strings.Join(failing, "; ")})
		return nil
	}
	return ok(w, healthObject{"ready"})
}

func isProbe(path string) bool {
	return strings.HasSuffix(path, "/health") || strings.HasSuffix(path, "/ready")
}

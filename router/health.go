package router

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
)

// probes mounts what answers without a login, at the root and below the base path.
func (s *server) probes(r chi.Router) {
	r.Get("/health", func(w http.ResponseWriter, _ *http.Request) { _ = ok(w, map[string]string{"status": "ok"}) })
	r.Get("/ready", s.ready)
	r.Get("/sdk-version", func(w http.ResponseWriter, _ *http.Request) {
		_ = ok(w, map[string]string{"version": s.SDKVersion})
	})
	r.Get("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		_ = ok(w, map[string]string{"package_version": s.Version, "sdk_version": s.SDKVersion})
	})
}

// ready tells whether the service can work now, and if not, what fails.
func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	var failing []string
	if s.Ready != nil {
		failing = s.Ready(r.Context())
	}
	if len(failing) > 0 {
		notReady(w, map[string]string{"status": "not_ready", "error": strings.Join(failing, "; ")})
		return
	}
	_ = ok(w, map[string]string{"status": "ready"})
}

func isProbe(path string) bool {
	return strings.HasSuffix(path, "/health") || strings.HasSuffix(path, "/ready")
}

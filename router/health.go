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
	readyObject struct {
		Status string  `json:"status"`
		Error  string  `json:"error,omitempty"`  // the problems
		Checks []Check `json:"checks,omitempty"` // with ?verbose
	}
	sdkVersionObject struct {
		Version string `json:"version"`
	}
	serverInfoObject struct {
		PackageVersion string `json:"package_version"`
		SDKVersion     string `json:"sdk_version"`
	}
)

// Check is one thing that readiness depends on.
type Check struct {
	Name    string `json:"name"`
	Problem string `json:"problem"` // what is wrong, without details that an outsider should not read; "": nothing
}

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
	answer, failing := readyObject{Status: "ready"}, []string{}
	if s.Ready != nil {
		for _, c := range s.Ready(r.Context()) {
			if answer.Checks = append(answer.Checks, c); c.Problem != "" {
				failing = append(failing, c.Problem)
			}
		}
	}
	if !r.URL.Query().Has("verbose") {
		answer.Checks = nil
	}
	if len(failing) == 0 {
		return ok(w, answer)
	}
	answer.Status, answer.Error = "not_ready", strings.Join(failing, "; ")
	notReady(w, answer)
	return nil
}

// metrics answers a scrape that comes in by the main listener.
func (s *server) metrics(w http.ResponseWriter, r *http.Request, _ Caller) error {
	if s.Metrics == nil {
		return notFound("There are no metrics here")
	}
	s.Metrics.ServeHTTP(w, r)
	return nil
}

// isProbe reports whether a path is one that machines ask all the time.
func isProbe(path string) bool {
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "health", "healthz", "livez", "ready", "readyz":
		return true
	}
	return false
}

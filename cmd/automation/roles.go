package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"automation/config"
)

// role is a part of the service's work that one process may do without the others.
type role string

// The roles.
const (
	roleAPI        role = "api"        // answers requests; without it only the probes answer
	roleScheduler  role = "scheduler"  // fires schedules
	roleDispatcher role = "dispatcher" // starts runs in boxes
	roleWatchdog   role = "watchdog"   // ends stale runs, settles, sweeps and looks for boxes, purges
)

var allRoles = []role{roleAPI, roleScheduler, roleDispatcher, roleWatchdog}

// parseRoles reads the values of --roles; none means all.
func parseRoles(words []string) ([]role, error) {
	if len(words) == 0 {
		return allRoles, nil
	}
	var roles []role
	for _, word := range words {
		r := role(strings.TrimSpace(word))
		if !slices.Contains(allRoles, r) {
			return nil, usageError{fmt.Errorf("--roles %q: want some of api, scheduler, dispatcher, watchdog", word)}
		}
		roles = append(roles, r)
	}
	return roles, nil
}

// has reports whether this process has a role.
func (a *App) has(r role) bool { return slices.Contains(a.roles, r) }

// checkRoles refuses what cannot work: boxes that are told to call back to a process that does not answer.
func checkRoles(roles []role, cfg config.Config) error {
	if slices.Contains(roles, roleDispatcher) && !slices.Contains(roles, roleAPI) && !cfg.IsSet("AUTOMATION_BASE_URL") {
		return &config.Error{Problems: []config.Problem{{
			Name: "AUTOMATION_BASE_URL", Want: "want the URL at which boxes reach the API, for this process has not the role api",
		}}}
	}
	return nil
}

// forRoles hides the API where this process has not the role.
func (a *App) forRoles(h http.Handler) http.Handler {
	if a.has(roleAPI) {
		return h
	}
	probes := []string{"/health", "/ready"}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, _ := strings.CutPrefix(r.URL.Path, a.config.HTTP.BasePath); !slices.Contains(probes, path) {
			http.Error(w, "this process has not the role api", http.StatusNotFound)
			return
		}
		h.ServeHTTP(w, r)
	})
}

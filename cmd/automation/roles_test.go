package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/sandbox/backend"
)

func TestAProcessHasTheDutiesOfItsRolesAndAnswersAccordingly(t *testing.T) {
	app := startService(t)
	for _, c := range []struct {
		roles       []role
		has, hasNot string
	}{
		{allRoles, "^(dispatch|schedule|janitor|stale|settle.*|clock)$", ""},
		{[]role{roleAPI}, "^clock$", "^(dispatch|schedule|janitor|stale|settle.*)$"},
		{[]role{roleScheduler}, "^(schedule|clock)$", "^(dispatch|janitor|stale|settle.*)$"},
		{[]role{roleDispatcher}, "^(dispatch|clock)$", "^(schedule|janitor|stale|settle.*)$"},
		{[]role{roleWatchdog}, "^(janitor|stale|settle.*|clock)$", "^(schedule|dispatch)$"},
	} {
		part := &App{
			config: app.config, roles: c.roles, log: app.log, store: app.store, backends: app.backends, location: app.location,
			choice: app.choice, nudges: app.nudges, settler: app.settler, blobs: app.blobs, leaving: newDeparture(), agents: app.agents,
		}
		var names []string
		for _, duty := range part.loops() {
			names = append(names, strings.TrimSuffix(duty.Name, "s"))
		}
		has := regexp.MustCompile(c.has)
		found := false
		for _, name := range names {
			found = found || has.MatchString(name)
			if c.hasNot != "" {
				require.NotRegexp(t, c.hasNot, name, "%v", c.roles)
			}
		}
		require.True(t, found, "%v: %v", c.roles, names)
	}
}

func TestWithoutTheRoleOfTheAPIOnlyProbesAnswer(t *testing.T) {
	app := startService(t, "AUTOMATION_BASE_URL=http://automation.example.com:8000")
	app.roles = []role{roleScheduler}
	served := app.forRoles(app.server.Handler)
	for path, answers := range map[string]bool{
		"/health": true, "/ready": true, "/api/automation/health": true, "/api/automation/ready": true,
		"/api/automation/v1/runs": false, "/api/automation/v1": false, "/metrics/ready": false,
	} {
		require.Equal(t, answers, statusOf(t, served, path) != http.StatusNotFound, path)
	}
	require.Equal(t, exitUsage, codeOf(second(parseRoles([]string{"api", "cook"}))))
	roles, err := parseRoles([]string{" api", "watchdog"})
	require.NoError(t, err)
	require.Equal(t, []role{roleAPI, roleWatchdog}, roles)
}

// statusOf asks a handler as somebody on this machine.
func statusOf(t *testing.T, h http.Handler, path string) int {
	t.Helper()
	answer := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	request.Host = "127.0.0.1"
	request.Header.Set("Authorization", "Bearer "+scriptKey)
	h.ServeHTTP(answer, request)
	return answer.Code
}

func second[T any](_ T, err error) error { return err }

func TestEveryVariableOfABackendIsDocumented(t *testing.T) {
	var pages strings.Builder
	for _, page := range []string{"../../docs/OPERATIONS.md", "../../docs/PROVIDERS.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		pages.Write(text)
	}
	for _, name := range backend.Variables() {
		require.Contains(t, pages.String(), "`"+name+"`")
	}
}

func TestAServiceThatCannotStartLeavesNothingOpen(t *testing.T) {
	app := startService(t)
	env := []string{
		"HOME=" + t.TempDir(), "AUTOMATION_DATA_DIR=" + t.TempDir(), "AUTOMATION_LISTEN=" + app.listener.Addr().String(),
		"AUTOMATION_METRICS_LISTEN=",
	}
	var out, errs strings.Builder
	require.Equal(t, exitFailed, Main(context.Background(), []string{"serve"}, Streams{Env: env, Out: &out, Err: &errs}))
	require.Contains(t, errs.String(), "address already in use")
}

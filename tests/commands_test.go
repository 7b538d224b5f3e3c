package tests

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestC_001_C_010_SixMigrationsAtOnceAllSucceed(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		env := clean(t.TempDir(), database...)
		codes := make([]result, 6)
		var all sync.WaitGroup
		for i := range codes {
			all.Go(func() { codes[i] = command(t, env, "migrate", "up") })
		}
		all.Wait()
		for _, r := range codes {
			require.Equal(t, 0, r.code, "%s", r.err)
		}
		require.Equal(t, 0, command(t, env, "migrate", "status").code)
		down := command(t, env, "migrate", "down", "--steps", "1", "--yes")
		require.Equal(t, 0, down.code, "%s", down.err)
		up := command(t, env, "migrate", "up")
		require.Equal(t, 0, up.code, "%s", up.err)
	})
}

func TestS1_002_BadSettingsEndTheStartBeforeListening(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	taken := listener.Addr().String() // would be found first, if the service listened first
	defer listener.Close()
	home := t.TempDir()
	r := command(t, clean(home, "AUTOMATION_LISTEN="+taken, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=10m", "LOG_LEVEL=LOUD",
		"AUTOMATION_SECRET_KEY=not-a-key", "AUTOMATION_SANDBOX_CLENUP_DELAY_SECONDS=5", "AUTOMATION_PROCESS_HOLD=tree"), "serve")
	require.Equal(t, 78, r.code)
	require.Contains(t, r.err, `AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS="10m": want an integer number of seconds >= 0, e.g. 600`)
	require.Contains(t, r.err, `LOG_LEVEL="LOUD"`)
	require.Contains(t, r.err, `AUTOMATION_PROCESS_HOLD="tree"`, "those of the backends too, all at once")
	require.NotContains(t, r.err, "not-a-key")
	alone := command(t, clean(home, "AUTOMATION_LISTEN="+taken, "AUTOMATION_PROCESS_MAX_PROCESSES=many"), "serve")
	require.Equal(t, 78, alone.code)
	require.Contains(t, alone.err, "AUTOMATION_PROCESS_MAX_PROCESSES")
	entries, err := os.ReadDir(home)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is written")
}

func TestWithoutSettingsTheServiceMakesAKeyAndListensOnLoopback(t *testing.T) {
	s := &server{t: t, path: build(t), args: []string{"serve"}, data: filepath.Join(t.TempDir(), ".local/share/automation")}
	s.env = clean(strings.TrimSuffix(s.data, "/.local/share/automation"), "AUTOMATION_LISTEN=127.0.0.1:0", "AUTOMATION_METRICS_LISTEN=",
		"AUTOMATION_SANDBOX_CLENUP_DELAY_SECONDS=5")
	t.Cleanup(func() { s.stop() })
	s.launch()
	require.Contains(t, s.log(), "did you mean AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS?")
	info, err := os.Stat(filepath.Join(s.data, "api-key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	key, err := os.ReadFile(filepath.Join(s.data, "api-key"))
	require.NoError(t, err)
	require.NotContains(t, s.log(), strings.TrimSpace(string(key)))

	status, _ := s.try(http.MethodGet, "/runs", nil)
	require.Equal(t, http.StatusUnauthorized, status)
	s.key = strings.TrimSpace(string(key))
	s.call(http.MethodGet, "/runs", nil, http.StatusOK)

	second := command(t, s.env, "serve")
	require.Equal(t, 5, second.code, "a second process on the file: %s", second.err)
	require.Contains(t, second.err, itoa(s.cmd.Process.Pid))
	require.Equal(t, 0, s.stop())
}

func TestSecretsNeverReachTheLog(t *testing.T) {
	const marker = "hunter2-is-a-secret"
	s := start(t, "AUTOMATION_AGENT_SERVER_API_KEY="+marker, "AUTOMATION_SERVICE_KEY="+marker, "AUTOMATION_LOG_LEVEL=debug")
	s.call(http.MethodGet, "/runs", nil, http.StatusOK)
	s.stop()
	require.NotContains(t, s.log(), marker)
	require.NotContains(t, s.log(), s.key)
}

func TestCommandsExitAsDocumented(t *testing.T) {
	env := clean(t.TempDir())
	for _, tt := range []struct {
		args []string
		code int
		in   string
	}{
		{[]string{"version"}, 0, "automation"},
		{[]string{"help"}, 0, "serve"},
		{[]string{}, 0, "serve"},
		{[]string{"srve"}, 2, "serve"},
		{[]string{"serve", "--no-such-flag"}, 2, "no-such-flag"},
		{[]string{"serve", "argument"}, 2, ""},
		{[]string{"migrate", "sideways"}, 2, ""},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			r := command(t, env, tt.args...)
			require.Equal(t, tt.code, r.code, "%s%s", r.out, r.err)
			require.Contains(t, r.out+r.err, tt.in)
		})
	}
}

// The demo is the main job of the README, on an empty home.
func TestC_001_TheDemoShowsEveryStepAndEnds(t *testing.T) {
	eachDatabase(t, func(t *testing.T, database []string) {
		began := time.Now()
		home := t.TempDir()
		r := command(t, clean(home, database...), "demo")
		require.Equal(t, 0, r.code, "%s%s", r.out, r.err)
		require.Less(t, time.Since(began), 40*time.Second)
		at := 0
		for _, step := range []string{"created", "running", "failed", "output", "reclaimed", "paused", "due in", "looked in", "swept", "boxes alive: 0"} {
			next := strings.Index(r.out[at:], step)
			require.GreaterOrEqual(t, next, 0, "%q is missing or out of order:\n%s", step, r.out)
			at += next
		}
		entries, err := os.ReadDir(home)
		require.NoError(t, err)
		require.Empty(t, entries, "nothing is left in the home")
	})
}

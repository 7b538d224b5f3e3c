package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/config"
)

// load reads a home and the given variables.
func load(t *testing.T, environ ...string) (config.Config, error) {
	t.Helper()
	return config.Load(append([]string{"HOME=/home/u"}, environ...))
}

func mustLoad(t *testing.T, environ ...string) config.Config {
	t.Helper()
	c, err := load(t, environ...)
	require.NoError(t, err)
	return c
}

// problems returns what is wrong by variable.
func problems(t *testing.T, environ ...string) map[string]string {
	t.Helper()
	_, err := load(t, environ...)
	var all *config.Error
	require.ErrorAs(t, err, &all)
	byName := map[string]string{}
	for _, p := range all.Problems {
		byName[p.Name] = p.String()
	}
	return byName
}

func TestDefaultsAreThoseOfThePythonService(t *testing.T) {
	c := mustLoad(t)
	for _, tt := range []struct {
		name      string
		got, want any
	}{
		{"scheduler", c.Scheduler.Interval, time.Minute},
		{"dispatcher", c.Dispatch.Interval, 10 * time.Second},
		{"batch", c.Dispatch.BatchSize, 10},
		{"in flight", c.Dispatch.MaxInFlight, 32},
		{"watchdog", c.Watchdog.Interval, time.Minute},
		{"exit grace", c.Watchdog.ExitGrace, 10 * time.Second},
		{"failures", c.Scheduler.FailureThreshold, 3},
		{"window", c.Scheduler.ConsecutiveFailureWindow, 24 * time.Hour},
		{"workspaces", c.Cleanup.WorkspaceRetention, 7 * 24 * time.Hour},
		{"workspace base", c.Sandbox.WorkspaceBase, "/workspace"},
		{"run", c.Dispatch.DefaultRun, 10 * time.Minute},
		{"longest run", c.Dispatch.MaxRun, 30 * time.Minute},
		{"download", c.Dispatch.DownloadMaxBytes, int64(104857600)},
		{"HTTP", c.HTTP.Timeout, 10 * time.Second},
		{"long HTTP", c.HTTP.LongTimeout, time.Minute},
		{"login cache", c.Auth.CacheTTL, 20 * time.Second},
		{"log", c.Log.Level, slog.LevelInfo},
		{"log form", c.Log.JSON, true},
		{"reclaim", c.Sandbox.Reclaim, "policy"},
		{"export", c.Sandbox.Export, "auto"},
		{"Cloud", c.Sandbox.APIBaseURL, "https://app.all-hands.dev"},
		{"base path", c.HTTP.BasePath, "/api/automation"},
		{"base URL", c.HTTP.BaseURL, "http://localhost:8000"},
		{"data", c.Storage.DataDir, "/home/u/.local/share/automation"},
		{"blobs", c.Storage.BlobDir, "/home/u/.local/share/automation/blobs"},
		{"connections", c.Database.MaxConnections(), 15},
		{"migrations", c.Database.Migrates(), true},
	} {
		require.Equal(t, tt.want, tt.got, tt.name)
	}
}

func TestS1_001_CleanupDelayIsAnIntegerOfAtLeastZeroDefaultZero(t *testing.T) {
	require.Zero(t, mustLoad(t).Cleanup.Delay)
	require.Equal(t, 10*time.Minute, mustLoad(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=600").Cleanup.Delay)
	require.Zero(t, mustLoad(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=0").Cleanup.Delay)
}

func TestS1_002_NegativeFractionalAndEmptyDelaysAreRefused(t *testing.T) {
	const name = "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS"
	for _, bad := range []string{"", " ", "-1", "0.5", "600.0", "10m", "1e3", "0x10", "NaN", "inf", "1_000", "１", "9223372037", "99999999999999999999", "-99999999999999999999", "\x00"} {
		t.Run(fmt.Sprintf("%q", bad), func(t *testing.T) {
			found := problems(t, name+"="+bad)
			require.Len(t, found, 1)
			require.Contains(t, found[name], fmt.Sprintf("%s=%q: want an integer number of seconds >= 0", name, bad))
			require.Contains(t, found[name], "e.g. 600")
		})
	}
	require.Equal(t, 9223372036*time.Second, mustLoad(t, name+"=9223372036").Cleanup.Delay, "the longest that is still a duration")
}

func TestS1_004_TheUnitIsSecondsNotMinutes(t *testing.T) {
	require.Equal(t, time.Minute, mustLoad(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=60").Cleanup.Delay)
	for _, name := range config.Names() {
		require.NotContains(t, name, "MINUTES")
	}
}

func TestS1_005_DefaultZeroMeansNoDelayAtAll(t *testing.T) {
	require.Zero(t, config.Default(t.TempDir()).Cleanup.Delay)
}

func TestEveryProblemIsReportedAtOnce(t *testing.T) {
	_, err := load(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=10m", "LOG_LEVEL=LOUD", "AUTOMATION_DB_PORT=70000", "AUTOMATION_BASE_URL=host")
	require.EqualError(t, err, strings.Join([]string{
		"configuration: 4 problems",
		`  AUTOMATION_DB_PORT="70000": want an integer >= 1 and <= 65535, e.g. 5432`,
		`  AUTOMATION_BASE_URL="host": want an http or https URL without credentials, query or fragment, e.g. https://automation.example.com`,
		`  AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS="10m": want an integer number of seconds >= 0, e.g. 600`,
		`  LOG_LEVEL="LOUD": want one of debug, info, warning, warn, error, critical`,
	}, "\n"))
}

func TestReportNamesProblemsAndWarnings(t *testing.T) {
	require.Equal(t, "configuration: 1 problem, 1 warning\n  A=\"b\": want c\n  warning: D is unknown\n",
		config.Report([]config.Problem{{Name: "A", Value: "b", Set: true, Want: "want c"}}, []string{"D is unknown"}))
	require.Equal(t, "configuration: 0 problems, 2 warnings\n  warning: a\n  warning: b\n", config.Report(nil, []string{"a", "b"}))
}

func TestBadValuesAreRefusedByName(t *testing.T) {
	for _, bad := range []string{
		"LOG_LEVEL=LOUD", "AUTOMATION_LOG_LEVEL=verbose", "DEBUG=maybe", "DEBUG=", "LOG_JSON=2",
		"AUTOMATION_SANDBOX_BACKEND=podman", "AUTOMATION_SANDBOX_RECLAIM=all", "AUTOMATION_SANDBOX_EXPORT=yes", "FILE_STORE=gcs",
		"AUTOMATION_DB_SSL_MODE=maybe", "PGSSLMODE=maybe", "AUTOMATION_DB_POOL_SIZE=0", "AUTOMATION_DB_POOL_SIZE=", "AUTOMATION_DB_MAX_OVERFLOW=-1",
		"AUTOMATION_SCHEDULER_INTERVAL_SECONDS=0", "AUTOMATION_DISPATCHER_MAX_IN_FLIGHT=0", "AUTOMATION_DISPATCHER_MAX_IN_FLIGHT=1.5",
		"AUTOMATION_RUN_EXIT_GRACE_SECONDS=-1", "AUTOMATION_EXTERNAL_MAX_FILESIZE=9223372036854775808",
		"AUTOMATION_SANDBOX_PROVISION_MAX_ATTEMPTS=0", "AUTOMATION_AUTH_CACHE_SIZE=99999999999",
		"AUTOMATION_HTTP_TIMEOUT=", "AUTOMATION_HTTP_TIMEOUT=-0.1", "AUTOMATION_HTTP_TIMEOUT=nan", "AUTOMATION_HTTP_TIMEOUT=1e300",
		"AUTOMATION_RUN_OUTPUT_RETENTION_DAYS=106752",
		"AUTOMATION_BASE_URL=ftp://host", "AUTOMATION_BASE_URL=https://", "AUTOMATION_BASE_URL=https://h?x=1", "AUTOMATION_BASE_URL=http://h:99999",
		"AUTOMATION_AGENT_SERVER_URL=localhost:3000", "AUTOMATION_OPENHANDS_API_BASE_URL=https://[::1", "AUTOMATION_OPENHANDS_API_BASE_URL=%zz",
		"AUTOMATION_CORS_ORIGINS=https://a.example,b.example",
		"AUTOMATION_LISTEN=8000", "AUTOMATION_LISTEN=127.0.0.1", "AUTOMATION_LISTEN=127.0.0.1:http", "AUTOMATION_METRICS_LISTEN=x",
		"AUTOMATION_DEPLOYMENT_ID=prod", "AUTOMATION_DEPLOYMENT_ID=00000000-0000-0000-0000-000000000000",
		"AUTOMATION_SECRET_KEY=short", "AUTOMATION_SECRET_KEY=AAAA",
		"AUTOMATION_DATA_DIR=a\x00b",
		"AUTOMATION_DB_URL=mysql://u:p@h/db", "AUTOMATION_DB_URL=nonsense", "AUTOMATION_DB_URL=sqlite:///:memory:", "AUTOMATION_DB_URL=sqlite://",
		"AUTOMATION_DB_URL=sqlite+aiosqlite://host/file", "AUTOMATION_DB_URL=sqlite:///x?mode=memory",
		"AUTOMATION_DB_URL=postgresql+asyncpg://u:p@h", "AUTOMATION_DB_URL=postgresql:u@h/db", "AUTOMATION_DB_URL=postgres://u:p@h:port/db",
	} {
		t.Run(bad, func(t *testing.T) {
			name, _, _ := strings.Cut(bad, "=")
			found := problems(t, bad)
			require.Len(t, found, 1)
			require.Contains(t, found, name)
			require.Contains(t, found[name], "want ")
		})
	}
}

func TestNumbersWithFractionsWhereThePythonServiceTakesThem(t *testing.T) {
	c := mustLoad(t, "AUTOMATION_HTTP_TIMEOUT=2.5", "AUTOMATION_CONSECUTIVE_FAILURE_DISABLE_WINDOW_HOURS=0.5")
	require.Equal(t, 2500*time.Millisecond, c.HTTP.Timeout)
	require.Equal(t, 30*time.Minute, c.Scheduler.ConsecutiveFailureWindow)
	require.Equal(t, -1, mustLoad(t, "AUTOMATION_FAILURE_DISABLE_THRESHOLD=-1").Scheduler.FailureThreshold)
}

func TestBooleansAndWordsInAnyCase(t *testing.T) {
	for _, yes := range []string{"1", "true", "YES", "On"} {
		require.True(t, mustLoad(t, "DEBUG="+yes).Log.Debug, yes)
	}
	for _, no := range []string{"0", "False", "no", "OFF"} {
		require.False(t, mustLoad(t, "LOG_JSON="+no).Log.JSON, no)
	}
	require.Equal(t, "caches", mustLoad(t, "AUTOMATION_SANDBOX_RECLAIM=Caches").Sandbox.Reclaim)
}

func TestNamesAreCaseInsensitiveAndUpperCaseWins(t *testing.T) {
	require.Equal(t, time.Second, mustLoad(t, "automation_Scheduler_interval_seconds=1").Scheduler.Interval)
	for _, environ := range [][]string{
		{"log_level=loud", "LOG_LEVEL=ERROR"},
		{"LOG_LEVEL=ERROR", "log_level=loud"},
	} {
		require.Equal(t, slog.LevelError, mustLoad(t, environ...).Log.Level)
	}
}

func TestLogLevel(t *testing.T) {
	for _, tt := range []struct {
		environ []string
		want    slog.Level
	}{
		{[]string{"LOG_LEVEL=WARNING"}, slog.LevelWarn},
		{[]string{"LOG_LEVEL=WARNING", "AUTOMATION_LOG_LEVEL=error"}, slog.LevelError},
		{[]string{"LOG_LEVEL=WARNING", "AUTOMATION_LOG_LEVEL="}, slog.LevelWarn},
		{[]string{"DEBUG=1"}, slog.LevelDebug},
		{[]string{"DEBUG=1", "AUTOMATION_LOG_LEVEL=INFO"}, slog.LevelInfo},
		{[]string{"LOG_LEVEL=CRITICAL"}, slog.LevelError + 4},
	} {
		require.Equal(t, tt.want, mustLoad(t, tt.environ...).Log.Level, tt.environ)
	}
}

func TestEmptyTextsMeanTheDefaultUnlessEmptyHasAMeaning(t *testing.T) {
	c := mustLoad(t, "AUTOMATION_OPENHANDS_API_BASE_URL=", "AUTOMATION_DATA_DIR=", "AUTOMATION_DB_HOST=", "AUTOMATION_SANDBOX_EXPORT=",
		"AUTOMATION_METRICS_LISTEN=", "AUTOMATION_WORKSPACE_BASE=", "AUTOMATION_SANDBOX_BACKEND=")
	require.Equal(t, "https://app.all-hands.dev", c.Sandbox.APIBaseURL)
	require.Equal(t, "/home/u/.local/share/automation", c.Storage.DataDir)
	require.Equal(t, "auto", c.Sandbox.Export)
	require.False(t, c.Database.Postgres(), "an empty host does not ask for PostgreSQL")
	require.Empty(t, c.HTTP.MetricsListen, "empty: no metrics listener")
	require.Equal(t, "/home/u/.openhands/workspaces", c.Sandbox.WorkspaceBase)
	require.Equal(t, 20*time.Minute, c.Dispatch.IdleTTL)
	require.Zero(t, mustLoad(t, "AUTOMATION_CONVERSATION_IDLE_TTL_SECONDS=").Dispatch.IdleTTL)
}

func TestWithoutAHomeTheDataFolderMustBeGiven(t *testing.T) {
	_, err := config.Load(nil)
	require.ErrorContains(t, err, "AUTOMATION_DATA_DIR")
	_, err = config.Load([]string{"AUTOMATION_DATA_DIR=/data"})
	require.NoError(t, err)
}

func TestSecretsComeFromFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(file, []byte("from-file\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), []byte("\n"), 0o600))

	require.Equal(t, "from-file", mustLoad(t, "AUTOMATION_LOCAL_API_KEY_FILE="+file).Auth.LocalAPIKey.Reveal())
	require.Equal(t, "from-file", mustLoad(t, "AUTOMATION_LOCAL_API_KEY=", "AUTOMATION_LOCAL_API_KEY_FILE="+file).Auth.LocalAPIKey.Reveal())
	for name, environ := range map[string][]string{
		"missing":  {"AUTOMATION_SERVICE_KEY_FILE=" + filepath.Join(dir, "none")},
		"a folder": {"AUTOMATION_SERVICE_KEY_FILE=" + dir},
		"empty":    {"AUTOMATION_SERVICE_KEY_FILE=" + filepath.Join(dir, "empty")},
		"both":     {"AUTOMATION_SERVICE_KEY_FILE=" + file, "AUTOMATION_SERVICE_KEY=x"},
	} {
		t.Run(name, func(t *testing.T) {
			found := problems(t, environ...)
			require.Len(t, found, 1)
			require.Contains(t, found["AUTOMATION_SERVICE_KEY_FILE"], "want ")
		})
	}
}

func TestSecretsAreHiddenWhereverSettingsAreShown(t *testing.T) {
	const marker = "hunter2"
	c := mustLoad(t, "AUTOMATION_LOCAL_API_KEY="+marker, "AUTOMATION_SERVICE_KEY="+marker, "AUTOMATION_AGENT_SERVER_API_KEY="+marker,
		"AUTOMATION_DB_URL=postgresql+asyncpg://u:"+marker+"@h/db", "AUTOMATION_DB_PASS="+marker,
		"AUTOMATION_SECRET_KEY=aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnQ=")
	require.Contains(t, c.Database.DSN.Reveal(), marker)

	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		slog.New(handler).Info("settings", "config", c, "auth", c.Auth, "database", c.Database, "dsn", c.Database.DSN)
	}
	whole, err := json.Marshal(c)
	require.NoError(t, err)
	parts, err := json.Marshal([]any{c.Auth, c.Database, c.Redacted()})
	require.NoError(t, err)
	texts := []string{log.String(), string(whole), string(parts), c.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, c.Auth), fmt.Sprintf(verb, c.Database), fmt.Sprintf(verb, &c), fmt.Sprintf(verb, c.Auth.ServiceKey))
	}
	texts = append(texts, fmt.Sprintf("%v %+v %#v", c, c, c))
	for _, text := range texts {
		require.NotContains(t, text, marker)
		require.NotContains(t, text, fmt.Sprintf("%x", marker))
		require.NotContains(t, text, "aHVudGVyMmh1")
	}
	require.Contains(t, c.String(), "AUTOMATION_LOCAL_API_KEY=[hidden] (environment)")
	require.Contains(t, string(whole), `{"name":"AUTOMATION_DB_URL","value":"postgresql+asyncpg://u:xxxxx@h/db","source":"environment","set":true}`)
}

func TestSecretsAreHiddenInProblems(t *testing.T) {
	const marker = "hunter2"
	for _, bad := range []string{
		"AUTOMATION_SECRET_KEY=" + marker,
		"AUTOMATION_DB_URL=postgresql+asyncpg://u:" + marker + "@h",
		"AUTOMATION_DB_URL=u:" + marker + "@h/db",
		"AUTOMATION_AGENT_SERVER_URL=ftp://u:" + marker + "@h",
		"AUTOMATION_AGENT_SERVER_URL=http://u:" + marker + "@h:99999",
		"AUTOMATION_AGENT_SERVER_URL=http://u:" + marker + "@h",
		"AUTOMATION_AGENT_SERVER_URL=http://" + marker + "@h",
	} {
		_, err := load(t, bad)
		require.Error(t, err)
		require.NotContains(t, err.Error(), marker)
	}
}

func TestWhatKubernetesInjectsIsIgnored(t *testing.T) {
	environ := []string{
		"AUTOMATION_PORT=tcp://10.0.0.1:8000", "AUTOMATION_PORT_8000_TCP=tcp://10.0.0.1:8000", "AUTOMATION_PORT_8000_TCP_ADDR=10.0.0.1",
		"AUTOMATION_PORT_8000_TCP_PORT=8000", "AUTOMATION_PORT_8000_TCP_PROTO=tcp", "AUTOMATION_SERVICE_HOST=10.0.0.1",
		"AUTOMATION_SERVICE_PORT=8000", "AUTOMATION_SERVICE_PORT_HTTP=8000", "AUTOMATION_SERVER_PORT=tcp://10.0.0.2:8000",
		"AUTOMATION_DB_PORT=tcp://10.0.0.3:5432", "AUTOMATION_DB_SERVICE_HOST=10.0.0.3",
	}
	c := mustLoad(t, environ...)
	require.Equal(t, 8000, c.HTTP.ServerPort)
	require.Equal(t, 5432, c.Database.Port)
	require.False(t, c.Database.Postgres())
	require.Empty(t, config.Unknown(environ))
}

func TestUnknownNamesAreWarnedAbout(t *testing.T) {
	require.Equal(t, []string{
		"AUTOMATION_E2B_REGION is unknown",
		"AUTOMATION_SANDBOX_CLENUP_DELAY_SECONDS is unknown; did you mean AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS?",
	}, config.Unknown([]string{
		"AUTOMATION_SANDBOX_CLENUP_DELAY_SECONDS=1", "automation_e2b_region=x", "PATH=/bin", "AUTOMATION_DOCKER_IMAGE=x",
		"AUTOMATION_KV_SECRET=x", "AUTOMATION_GIT_SYNC_BRANCH=main", "AUTOMATION_HOST=0.0.0.0", "AUTOMATION_LOCAL_API_KEY_FILE=/x", "AUTOMATION_URL=x",
	}, "AUTOMATION_DOCKER_IMAGE"))
}

func TestEveryNameIsReadOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range config.Names() {
		require.False(t, seen[name], name)
		seen[name] = true
	}
	require.Greater(t, len(seen), 60)
	require.True(t, seen["AUTOMATION_SECRET_KEY_FILE"])
}

func TestBasePathComesFromTheBaseURL(t *testing.T) {
	for base, want := range map[string]string{
		"":                           "/api/automation",
		"https://a.example":          "/api/automation",
		"https://a.example/":         "/api/automation",
		"https://a.example/x/y/":     "/x/y/api/automation",
		"http://localhost:9000/team": "/team/api/automation",
	} {
		require.Equal(t, want, mustLoad(t, "AUTOMATION_BASE_URL="+base).HTTP.BasePath, base)
	}
	require.Equal(t, "http://localhost:9001", mustLoad(t, "AUTOMATION_SERVER_PORT=9001").HTTP.BaseURL)
}

func FuzzLoadNeverPanicsAndNamesTheVariable(f *testing.F) {
	names := config.Names()
	for i, seed := range []string{"", "-1", "1e9", "tcp://x", "http://[", "\xff\xfe", "a,b,,c", "~/x", "postgresql+asyncpg://@/"} {
		f.Add(uint16(i*7), seed)
	}
	f.Fuzz(func(t *testing.T, n uint16, value string) {
		name := names[int(n)%len(names)]
		c, err := config.Load([]string{"HOME=/home/u", name + "=" + value})
		if err == nil {
			require.NotEmpty(t, c.Database.DSN.Reveal())
			require.GreaterOrEqual(t, c.Cleanup.Delay, time.Duration(0))
			return
		}
		var all *config.Error
		require.ErrorAs(t, err, &all)
		require.NotEmpty(t, all.Problems)
		for _, p := range all.Problems {
			require.NotEmpty(t, p.Want)
		}
	})
}

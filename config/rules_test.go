package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/config"
)

const key32 = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

func TestWhichDatabase(t *testing.T) {
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, tt := range []struct {
		name    string
		environ []string
		want    string
	}{
		{"nothing set", []string{"AUTOMATION_DATA_DIR=/data"}, "sqlite:/data/automation.db"},
		{"absolute SQLite file", []string{"AUTOMATION_DB_URL=sqlite+aiosqlite:////var/lib/a.db"}, "sqlite:/var/lib/a.db"},
		{"relative SQLite file", []string{"AUTOMATION_DB_URL=sqlite+aiosqlite:///a.db"}, "sqlite:" + filepath.Join(here, "a.db")},
		{"plain SQLite", []string{"AUTOMATION_DB_URL=sqlite:/var/a.db"}, "sqlite:/var/a.db"},
		{"URL of asyncpg", []string{"AUTOMATION_DB_URL=postgresql+asyncpg://u:p%40@h:5433/db"}, "postgres://u:p%40@h:5433/db?sslmode=prefer"},
		{"URL with ssl", []string{"AUTOMATION_DB_URL=postgresql+asyncpg://u:p@h/db?ssl=require&prepared_statement_cache_size=0"}, "postgres://u:p@h/db?sslmode=require"},
		{"URL of psycopg", []string{"AUTOMATION_DB_URL=postgresql+psycopg2://u@h/db?sslmode=disable"}, "postgres://u@h/db?sslmode=disable"},
		{"plain PostgreSQL", []string{"AUTOMATION_DB_URL=postgres://h/db", "DB_SSL_MODE=disable"}, "postgres://h/db?sslmode=disable"},
		{"URL wins over host", []string{"AUTOMATION_DB_URL=sqlite:/a.db", "AUTOMATION_DB_HOST=h"}, "sqlite:/a.db"},
		{"host", []string{"AUTOMATION_DB_HOST=db"}, "postgres://postgres:postgres@db:5432/automations?sslmode=prefer"},
		{"name", []string{"AUTOMATION_DB_NAME=n"}, "postgres://postgres:postgres@localhost:5432/n?sslmode=prefer"},
		{"user", []string{"AUTOMATION_DB_USER=me"}, "postgres://me:postgres@localhost:5432/automations?sslmode=prefer"},
		{"odd password", []string{"AUTOMATION_DB_PASS=a/b@c d"}, "postgres://postgres:a%2Fb%40c%20d@localhost:5432/automations?sslmode=prefer"},
		{"port alone does not", []string{"AUTOMATION_DATA_DIR=/data", "AUTOMATION_DB_PORT=6000"}, "sqlite:/data/automation.db"},
		{"IPv6 host", []string{"AUTOMATION_DB_HOST=::1"}, "postgres://postgres:postgres@[::1]:5432/automations?sslmode=prefer"},
		{"socket", []string{"AUTOMATION_DB_HOST=/run/postgresql"}, "postgres://postgres:postgres@:5432/automations?host=%2Frun%2Fpostgresql&sslmode=prefer"},
		{"SSL mode falls back", []string{"AUTOMATION_DB_HOST=h", "PGSSLMODE=verify-full"}, "postgres://postgres:postgres@h:5432/automations?sslmode=verify-full"},
		{"SSL mode, ours first", []string{"AUTOMATION_DB_HOST=h", "AUTOMATION_DB_SSL_MODE=require", "PGSSLMODE=disable"}, "postgres://postgres:postgres@h:5432/automations?sslmode=require"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mustLoad(t, tt.environ...)
			require.Equal(t, tt.want, c.Database.DSN.Reveal())
			require.Equal(t, c.Database.Postgres(), c.Database.SQLitePath() == "")
		})
	}
	require.False(t, mustLoad(t, "AUTOMATION_DB_HOST=h").Database.Migrates())
	require.True(t, mustLoad(t, "AUTOMATION_DB_HOST=h", "AUTOMATION_RUN_MIGRATIONS_ON_STARTUP=1").Database.Migrates())
}

func TestWhichBackend(t *testing.T) {
	for _, tt := range []struct {
		name    string
		environ []string
		around  config.Surroundings
		want    config.Choice
		refused string
	}{
		{name: "nothing points elsewhere", want: config.Choice{Backend: "process"}},
		{name: "said", environ: []string{"AUTOMATION_SANDBOX_BACKEND=docker", "AUTOMATION_DB_HOST=h"}, want: config.Choice{Backend: "docker"}},
		{name: "said, process beside everything else", environ: []string{"AUTOMATION_SANDBOX_BACKEND=process", "AUTOMATION_DB_HOST=h", "AUTOMATION_SERVICE_KEY=k"},
			around: config.Surroundings{OtherBackend: "e2b"}, want: config.Choice{Backend: "process"}},
		{name: "local mode", environ: []string{"AUTOMATION_AGENT_SERVER_URL=http://h:3000", "AUTOMATION_SERVICE_KEY=k"}, want: config.Choice{Local: true}},
		{name: "service key", environ: []string{"AUTOMATION_SERVICE_KEY=k", "AUTOMATION_DB_HOST=h"}, want: config.Choice{Backend: "openhands"}},
		{name: "PostgreSQL", environ: []string{"AUTOMATION_DB_HOST=h"}, refused: "PostgreSQL"},
		{name: "API URL", environ: []string{"AUTOMATION_OPENHANDS_API_BASE_URL=https://app.all-hands.dev"}, refused: "AUTOMATION_OPENHANDS_API_BASE_URL is set"},
		{name: "provider variable", around: config.Surroundings{ProviderVariables: []string{"E2B_API_KEY"}}, refused: "E2B_API_KEY is set"},
		{name: "not loopback", environ: []string{"AUTOMATION_LOCAL_API_KEY=k"}, refused: "listens on 0.0.0.0:8000"},
		{name: "loopback with a key", environ: []string{"AUTOMATION_LOCAL_API_KEY=k", "AUTOMATION_LISTEN=[::1]:8000"}, want: config.Choice{Backend: "process"}},
		{name: "boxes of another backend", around: config.Surroundings{OtherBackend: "e2b"}, refused: "boxes of backend e2b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := mustLoad(t, tt.environ...).ChooseBackend(tt.around)
			if tt.refused != "" {
				require.ErrorContains(t, err, "set AUTOMATION_SANDBOX_BACKEND")
				require.ErrorContains(t, err, tt.refused)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
	require.Contains(t, problems(t, "AUTOMATION_AGENT_SERVER_URL=http://h:3000", "AUTOMATION_SANDBOX_BACKEND=process"), "AUTOMATION_SANDBOX_BACKEND")
	require.Contains(t, problems(t, "AUTOMATION_SANDBOX_BACKEND=openhands"), "AUTOMATION_SERVICE_KEY")
}

func TestS0_156_WithoutACredentialTheServiceListensOnLoopbackOnly(t *testing.T) {
	for _, tt := range []struct {
		name     string
		environ  []string
		listen   string
		needsKey bool
	}{
		{"no credential", nil, "127.0.0.1:8000", true},
		{"no credential, port", []string{"AUTOMATION_SERVER_PORT=9000"}, "127.0.0.1:9000", true},
		{"no credential, loopback said", []string{"AUTOMATION_LISTEN=localhost:0"}, "localhost:0", true},
		{"local key", []string{"AUTOMATION_LOCAL_API_KEY=k"}, "0.0.0.0:8000", false},
		{"local key and address", []string{"AUTOMATION_LOCAL_API_KEY=k", "AUTOMATION_LISTEN=:80"}, ":80", false},
		{"Cloud check", []string{"AUTOMATION_SERVICE_KEY=k"}, "0.0.0.0:8000", false},
		{"service key but another backend", []string{"AUTOMATION_SERVICE_KEY=k", "AUTOMATION_SANDBOX_BACKEND=docker"}, "127.0.0.1:8000", true},
		{"local mode without a key", []string{"AUTOMATION_AGENT_SERVER_URL=http://h:3000"}, "127.0.0.1:8000", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mustLoad(t, tt.environ...)
			require.Equal(t, tt.listen, c.HTTP.Listen)
			require.Equal(t, tt.needsKey, c.NeedsLocalKey())
			require.True(t, c.Loopback() || !c.NeedsLocalKey())
		})
	}
	for _, open := range []string{"0.0.0.0:8000", ":8000", "[::]:8000", "192.168.1.2:8000", "box.example:8000"} {
		require.Contains(t, problems(t, "AUTOMATION_LISTEN="+open)["AUTOMATION_LISTEN"], "AUTOMATION_LOCAL_API_KEY", open)
	}
}

func TestSealingKeys(t *testing.T) {
	t.Run("configured, the first seals", func(t *testing.T) {
		keys, err := mustLoad(t, "AUTOMATION_SECRET_KEY="+key32+", AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").SealingKeys()
		require.NoError(t, err)
		require.Len(t, keys, 2)
		require.Equal(t, "01234567890123456789012345678901", string(keys[0]))
	})
	t.Run("SQLite makes its own", func(t *testing.T) {
		keys, err := mustLoad(t).SealingKeys()
		require.NoError(t, err)
		require.Empty(t, keys)
	})
	t.Run("PostgreSQL derives one, the same everywhere", func(t *testing.T) {
		one, err := mustLoad(t, "AUTOMATION_DB_HOST=h", "AUTOMATION_LOCAL_API_KEY=k").SealingKeys()
		require.NoError(t, err)
		two, err := mustLoad(t, "AUTOMATION_DB_HOST=other", "AUTOMATION_LOCAL_API_KEY=k").SealingKeys()
		require.NoError(t, err)
		require.Equal(t, one, two)
		require.Len(t, one[0], 32)
		other, err := mustLoad(t, "AUTOMATION_DB_HOST=h", "AUTOMATION_SERVICE_KEY=s", "AUTOMATION_LOCAL_API_KEY=k").SealingKeys()
		require.NoError(t, err)
		require.NotEqual(t, one, other)
	})
	t.Run("PostgreSQL without any key is refused", func(t *testing.T) {
		_, err := mustLoad(t, "AUTOMATION_DB_HOST=h").SealingKeys()
		require.ErrorContains(t, err, "AUTOMATION_SECRET_KEY is not set")
	})
}

func TestWhatAPlanAllowsAndCosts(t *testing.T) {
	c := mustLoad(t, "AUTOMATION_SANDBOX_SLOTS=openhands=10, E2B = 20", "AUTOMATION_SANDBOX_PRICES=openhands=0.1/0.004,e2b=.08").Sandbox
	require.Equal(t, map[string]int{"openhands": 10, "e2b": 20}, c.Slots)
	require.Equal(t, map[string]config.Price{"openhands": {Awake: 0.1, Paused: 0.004}, "e2b": {Awake: 0.08}}, c.Prices)
	require.Empty(t, mustLoad(t, "AUTOMATION_SANDBOX_SLOTS=", "AUTOMATION_SANDBOX_PRICES=").Sandbox.Slots)
	for _, bad := range []string{"10", "=10", "openhands", "openhands=", "openhands=0", "openhands=-1", "openhands=1.5", "openhands=ten", "acme=1", "e2b=1,e2b=2", "e2b=9999999"} {
		require.Contains(t, problems(t, "AUTOMATION_SANDBOX_SLOTS="+bad)["AUTOMATION_SANDBOX_SLOTS"], "e.g. openhands=10,e2b=20", bad)
	}
	for _, bad := range []string{"1", "openhands", "e2b=/1", "e2b=-1", "e2b=1/-1", "e2b=NaN", "e2b=Inf", "e2b=1e9", "e2b=1/2/3", "e2b=1€", "e2b=1,e2b=1"} {
		require.Contains(t, problems(t, "AUTOMATION_SANDBOX_PRICES="+bad)["AUTOMATION_SANDBOX_PRICES"], "e.g. openhands=0.1/0.004", bad)
	}
}

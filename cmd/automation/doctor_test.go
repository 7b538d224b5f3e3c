package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
)

// with loads a configuration of a fresh home.
func with(t *testing.T, env ...string) config.Config {
	t.Helper()
	cfg, err := config.Load(append([]string{"HOME=" + t.TempDir()}, env...))
	require.NoError(t, err)
	return cfg
}

func TestDoctorComparesTheDelayWithTheProvidersOwnLimit(t *testing.T) {
	suspends := sandbox.Capabilities{Suspend: sandbox.SuspendDisk}
	expires := suspends
	expires.NativeExpiry = sandbox.Timer{Supported: true, Action: "delete", Default: day}
	pauses := expires
	pauses.NativeExpiry.Action = "suspend"
	for name, c := range map[string]struct {
		delay string
		can   sandbox.Capabilities
		want  verdict
	}{
		"no delay":                         {"0", expires, verdictOK},
		"shorter than the provider's":      {"3600", expires, verdictOK},
		"longer than the provider's":       {"86401", expires, verdictWarn},
		"the provider only pauses":         {"86401", pauses, verdictOK},
		"the provider has no limit":        {"8640000", suspends, verdictOK},
		"the provider cannot pause at all": {"3600", sandbox.Capabilities{Suspend: sandbox.SuspendNone}, verdictWarn},
	} {
		d := &doctor{config: with(t, "AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS="+c.delay)}
		d.retention("acme", c.can)
		require.Equal(t, c.want, d.findings[0].State, name)
		require.Equal(t, c.want == verdictWarn, d.findings[0].Mend != "", name)
	}
}

func TestDoctorWantsAnAddressThatBoxesReach(t *testing.T) {
	here, elsewhere := sandbox.Capabilities{Placed: true}, sandbox.Capabilities{}
	for name, c := range map[string]struct {
		base string
		can  sandbox.Capabilities
		want verdict
	}{
		"boxes on this machine":             {"http://127.0.0.1:8000", here, verdictOK},
		"boxes elsewhere, a public address": {"https://automation.example.com", elsewhere, verdictOK},
		"boxes elsewhere, loopback":         {"http://localhost:8000", elsewhere, verdictFail},
		"boxes elsewhere, loopback in IPv6": {"http://[::1]:8000", elsewhere, verdictFail},
		"boxes elsewhere, none":             {"", elsewhere, verdictFail},
	} {
		d := &doctor{config: with(t, "AUTOMATION_BASE_URL="+c.base)}
		d.reachable("acme", c.can)
		require.Equal(t, c.want, d.findings[0].State, name)
	}
}

func TestDoctorLooksAtBothEnginesAndSeesWhichKeysOpen(t *testing.T) {
	modelstest.EachDB(t, func(t *testing.T, db *modelstest.DB) {
		s := db.Open(t)
		_, box := modelstest.Running(t, s, modelstest.Automation(t, s))
		require.NoError(t, s.RecordIdentity(t.Context(), models.Identity{
			SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: "named", URL: "http://box", SessionKey: "secret",
		}))
		url := db.DSN
		if db.Dialect == models.SQLite {
			url = "sqlite:///" + url[len("sqlite:"):]
		}
		for key, want := range map[string]verdict{
			"YSBrZXkgb2YgdGhpcnR5LXR3byBieXRlcyB0byB0ZXM=": verdictOK, // modelstest.Key
			"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=": verdictFail,
		} {
			io := Streams{Env: []string{
				"HOME=" + t.TempDir(), "AUTOMATION_DB_URL=" + url, "AUTOMATION_SECRET_KEY=" + key, "AUTOMATION_SANDBOX_BACKEND=process",
			}}
			d, err := io.examine(t.Context())
			require.NoError(t, err)
			states := map[string]verdict{}
			for _, f := range d.findings {
				states[f.Name] = f.State
			}
			require.Equal(t, want, states["secrets"], "%v", d.findings)
			for _, name := range []string{"database", "schema", "clock"} {
				require.Equal(t, verdictOK, states[name], "%v", d.findings)
			}
		}
	})
}

func TestDoctorSeesWhoCanReadTheKeys(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		mode os.FileMode
		want verdict
	}{
		"all closed":          {secretKeyFile, 0o600, verdictOK},
		"the secret key open": {secretKeyFile, 0o644, verdictFail},
		"the login key open":  {apiKeyFile, 0o640, verdictFail},
		"another file open":   {"notes", 0o644, verdictOK},
	} {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte("x"), c.mode))
		d := &doctor{config: with(t, "AUTOMATION_DATA_DIR="+dir)}
		d.dataFolder(t.Context())
		require.Equal(t, c.want, d.findings[0].State, name)
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	d := &doctor{config: with(t, "AUTOMATION_DATA_DIR="+file)}
	d.dataFolder(t.Context())
	require.Equal(t, verdictFail, d.findings[0].State)
	d.disk(t.Context())
	require.Len(t, d.findings, 2)
}

func TestDoctorTriesTheCredentialsOfOtherServices(t *testing.T) {
	answers := func(status int, header, key string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get(header) != key {
				status = http.StatusUnauthorized
			}
			w.WriteHeader(status)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	folder := t.TempDir()
	local := func(url string, more ...string) []string {
		return append([]string{"AUTOMATION_AGENT_SERVER_URL=" + url, "AUTOMATION_AGENT_SERVER_API_KEY=k", "AUTOMATION_WORKSPACE_BASE=" + folder}, more...)
	}
	cloud := func(url string) []string {
		return []string{"AUTOMATION_OPENHANDS_API_BASE_URL=" + url, "AUTOMATION_SERVICE_KEY=k"}
	}
	const box, service, nothing = "X-Session-API-Key", "X-Service-API-Key", "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		env       []string
		state     verdict
		found     string
		retention verdict
	}{
		"Cloud, nobody to make a key for": {cloud(answers(404, service, "k")), verdictOK, "takes the service key", verdictOK},
		"Cloud, another key":              {cloud(answers(404, service, "other")), verdictFail, "refuses the service key", verdictOK},
		"Cloud is ill":                    {cloud(answers(503, service, "k")), verdictFail, "503", verdictOK},
		"no Cloud there":                  {cloud(nothing), verdictFail, "refused", verdictOK},
		"an agent server":                 {local(answers(200, box, "k")), verdictOK, "takes its key", verdictOK},
		"an agent server, another key":    {local(answers(200, box, "other")), verdictFail, "refuses the key", verdictOK},
		"something else":                  {local(answers(404, box, "k")), verdictFail, "no agent server", verdictOK},
		"no agent server":                 {local(nothing), verdictFail, "refused", verdictOK},
		"workspaces elsewhere":            {local(answers(200, box, "k"), "AUTOMATION_WORKSPACE_BASE=/none"), verdictOK, "takes its key", verdictWarn},
		"workspaces that stay":            {local(answers(200, box, "k"), "AUTOMATION_WORKSPACE_RETENTION_SECONDS=0"), verdictOK, "takes its key", verdictOK},
	} {
		t.Run(name, func(t *testing.T) {
			slices.Reverse(c.env) // of a name that is there twice the last counts
			io := Streams{Env: append([]string{"HOME=" + t.TempDir(), "AUTOMATION_BASE_URL=https://automation.example.com"}, c.env...)}
			d, err := io.examine(t.Context())
			require.NoError(t, err)
			of := map[string]finding{}
			for _, f := range d.findings {
				of[f.Name] = f
			}
			require.Equal(t, c.state, of["backend"].State, "%v", d.findings)
			require.Contains(t, of["backend"].Found, c.found)
			require.Equal(t, c.state == verdictFail, of["backend"].Mend != "")
			require.Equal(t, c.retention, of["retention"].State, "%v", d.findings)
		})
	}
}

func TestOneFailureIsTheExitCodeOfDoctorAndAWarningIsNot(t *testing.T) {
	for _, as := range []format{asTable, asJSON} {
		var out bytes.Buffer
		io := Streams{Out: &out}
		require.NoError(t, io.report([]finding{{Name: "a", State: verdictOK}, {Name: "b", State: verdictWarn, Mend: "do"}}, as))
		require.Equal(t, exitError(exitFailed), io.report([]finding{{Name: "a", State: verdictFail, Found: "x", Mend: "do"}}, as))
		require.Contains(t, out.String(), "do")
	}
}

func TestADepartureWaitsForThoseWhoAskRegularly(t *testing.T) {
	began := time.Now()
	newDeparture().begin(t.Context())
	require.Less(t, time.Since(began), heardWithin, "nobody asks")

	d := newDeparture()
	require.False(t, d.ask())
	left := make(chan struct{})
	go func() { d.begin(t.Context()); close(left) }()
	require.Eventually(t, d.begun.Load, time.Minute, time.Millisecond)
	select {
	case <-left:
		t.Fatal("left before anybody heard of it")
	default:
	}
	require.True(t, d.ask())
	<-left
}

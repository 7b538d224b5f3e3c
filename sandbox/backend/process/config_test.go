package process

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

func TestSettingsThatCannotBeHonouredAreRefusedByName(t *testing.T) {
	options := Options{DataDir: t.TempDir(), Executable: "/bin/true"}
	for _, c := range []struct {
		name   string
		config Config
		want   string
	}{
		{"unknown hold", Config{Hold: "jail"}, "AUTOMATION_PROCESS_HOLD"},
		{"negative limit", Config{Hold: HoldAuto, MaxProcesses: -1}, "AUTOMATION_PROCESS_MAX_PROCESSES"},
		{"negative memory", Config{Hold: HoldAuto, MaxMemoryBytes: -1}, "AUTOMATION_PROCESS_MAX_MEMORY_BYTES"},
		{"limit that nothing can hold", Config{Hold: HoldSupervisor, MaxProcesses: 5}, "AUTOMATION_PROCESS_MAX_"},
		{"a word of the service", Config{Hold: HoldAuto, Env: map[string]string{"AUTOMATION_SERVICE_KEY": "x"}}, "AUTOMATION_PROCESS_ENV"},
		{"a word of the agent server", Config{Hold: HoldAuto, Env: map[string]string{"OH_SESSION_API_KEYS_0": "x"}}, "AUTOMATION_PROCESS_ENV"},
	} {
		_, err := New(c.config, options)
		require.ErrorContains(t, err, c.want, c.name)
	}
	for _, o := range []Options{{DataDir: "relative", Executable: "/bin/true"}, {DataDir: t.TempDir(), Executable: "true"}, {}} {
		_, err := New(Config{Hold: HoldSupervisor}, o)
		require.ErrorContains(t, err, "absolute")
	}
}

func TestLimitsAreKeptByTheCgroupOrRefused(t *testing.T) {
	b, err := New(Config{Hold: HoldAuto, MaxProcesses: 64}, Options{DataDir: t.TempDir(), Executable: "/bin/true"})
	if err != nil { // no such controller for us here, and then it says so
		require.ErrorContains(t, err, "AUTOMATION_PROCESS_MAX_")
		return
	}
	group, err := b.makeCgroup(b.box(uuid.New()))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(group.Name(), "pids.max"))
	require.NoError(t, err)
	require.Equal(t, "64\n", string(text))
	require.NoError(t, group.Close())
	require.NoError(t, os.Remove(group.Name()))
}

func TestTwoDeploymentsOnOneDataDirectoryDoNotSeeEachOther(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	other := openIn(t, HoldSupervisor, filepath.Dir(r.dir), nil)
	for o := range other.List(r.ctx(), sandbox.Label{Deployment: other.deployment}) {
		t.Fatal("listed: ", o.Label)
	}
	_, theirs := other.create()
	err := other.Create(r.ctx(), sandbox.Spec{Label: sandbox.Label{Deployment: other.deployment, WorkspaceID: ref.WorkspaceID}}, nothing)
	require.ErrorIs(t, err, sandbox.ErrInvalid)
	require.True(t, r.facts(x).Server.alive())

	seen := map[uuid.UUID]models.Observed{}
	for o, err := range r.List(r.ctx(), sandbox.Label{Deployment: r.deployment}) {
		require.NoError(t, err)
		seen[o.Label.WorkspaceID] = o.State
	}
	require.Equal(t, map[uuid.UUID]models.Observed{x.id: models.SeenRunning}, seen)
	for range r.List(r.ctx(), sandbox.Label{Deployment: r.deployment, WorkspaceID: theirs.id}) {
		t.Fatal("a workspace of another deployment")
	}
}

func TestIdleTimesThatMakeNoSenseAreNoActivity(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for body, want := range map[string]time.Time{
		`{"idle_time": 0}`:      now,
		`{"idle_time": 90.25}`:  now.Add(-90*time.Second - 250*time.Millisecond),
		`{"idle_time": 25.0}`:   now.Add(-25 * time.Second),
		`{"idle_time": -1}`:     {},
		`{"idle_time": 1e300}`:  {},
		`{"idle_time": null}`:   {},
		`{"idle_time": "soon"}`: {},
		`{}`:                    {},
		`not json`:              {},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		got, err := activity(t.Context(), server.URL, func() time.Time { return now })
		server.Close()
		require.Equal(t, want, got, body)
		require.Equal(t, want.IsZero(), err != nil, body)
	}
}

func TestAnAgentServerThatIsNotReadyIsProvisioning(t *testing.T) {
	r := open(t, HoldSupervisor)
	ref, x := r.create()
	starting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer starting.Close()
	_, port, _ := cutLast(starting.URL, ":")
	require.NoError(t, os.Remove(x.control(readyFile)))
	require.NoError(t, writeFile(x.control(portFile), []byte(port+"\n")))
	r.shows(ref, models.SeenProvisioning)
	for _, broken := range []string{"", "0", "-1", "65536", "80@elsewhere.example"} {
		require.NoError(t, writeFile(x.control(portFile), []byte(broken)))
		require.Empty(t, r.shows(ref, models.SeenProvisioning).Identity.URL, broken)
	}
}

func TestAnExecutableThatIsNoSupervisorFailsTheCreateAndLeavesNothing(t *testing.T) {
	for _, program := range []string{"/bin/true", "/bin/false", "/nowhere/at/all"} {
		r := open(t, HoldAuto)
		r.executable = program
		err := r.Create(r.ctx(), sandbox.Spec{Label: sandbox.Label{Deployment: r.deployment, WorkspaceID: uuid.New()}}, nothing)
		require.ErrorContains(t, err, "start")
		require.NotErrorIs(t, err, sandbox.ErrBusy)
		entries, err := os.ReadDir(r.dir)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

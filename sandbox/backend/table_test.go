package backend

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/sandbox"
)

func TestEveryProviderIsInTheTable(t *testing.T) {
	require.Equal(t, []string{
		"cloudflare", "daytona", "digitalocean", "docker", "e2b", "modal", "openhands", "process", "runtime-api",
	}, Names())
	require.Equal(t, []string{"docker", "openhands", "process"}, Available())
	_, known := Capabilities("acme")
	require.False(t, known)
}

func TestS0_124_S0_148_SuspendFlagsLiveInTheAdaptersAlsoOfUnconfiguredOnes(t *testing.T) {
	for _, c := range []struct {
		name                         string
		suspend                      sandbox.SuspendKind
		same, list, labels, activity bool
		idle, expiry                 bool
	}{
		{"digitalocean", sandbox.SuspendMemory, true, true, true, true, true, false}, // S0-134
		{"daytona", sandbox.SuspendDisk, true, true, true, true, true, true},         // S0-135
		{"e2b", sandbox.SuspendMemory, true, true, true, false, false, true},         // S0-136
		{"modal", sandbox.SuspendSnapshot, false, true, true, false, true, true},     // S0-137
		{"cloudflare", sandbox.SuspendNone, true, false, false, false, true, false},  // S0-138
		{"runtime-api", sandbox.SuspendDisk, true, true, true, true, true, true},     // S0-139
		{"openhands", sandbox.SuspendDisk, true, true, false, false, true, true},
		{"docker", sandbox.SuspendDisk, true, true, true, false, false, false}, // only its agent server knows of activity
		{"process", sandbox.SuspendMemory, true, true, true, true, false, false},
	} {
		got, known := Capabilities(c.name)
		require.True(t, known, c.name)
		require.Equal(t, c.suspend, got.Suspend, c.name)
		require.Equal(t, []bool{c.same, c.list, c.labels, c.activity, c.idle, c.expiry}, []bool{
			got.SameIdentity, got.List, got.Labels, got.LastActivity, got.NativeIdle.Supported, got.NativeExpiry.Supported,
		}, c.name)
	}
}

func TestS0_131_OnlyBackendsWhereLookingIsFreeArePolled(t *testing.T) {
	for _, name := range Names() {
		c, _ := Capabilities(name)
		free := map[string]bool{"runtime-api": true, "openhands": true, "docker": true, "process": true}[name]
		require.Equal(t, free, !c.LookingCounts, name)
	}
}

func TestABackendThatIsUnknownOrNotBuiltIsRefusedByName(t *testing.T) {
	_, err := New("acme", Deps{}, nil)
	require.ErrorContains(t, err, `unknown sandbox backend "acme": one of docker, openhands, process`)
	_, err = New("modal", Deps{}, nil)
	require.ErrorContains(t, err, `"modal" is not in this build`)
}

func TestABackendReadsItsOwnVariablesFromTheGivenEnvironmentOnly(t *testing.T) {
	t.Setenv("AUTOMATION_PROCESS_HOLD", "nonsense")
	deps := Deps{DataDir: t.TempDir(), Executable: "/bin/true"}
	b, err := New("process", deps, nil)
	require.NoError(t, err, "the process's own environment is not read")
	static, _ := Capabilities("process")
	require.Equal(t, static, b.Capabilities())

	for value, want := range map[string]string{"nonsense": "AUTOMATION_PROCESS_HOLD", "": "AUTOMATION_PROCESS_HOLD is set but empty"} {
		_, err = New("process", deps, map[string]string{"AUTOMATION_PROCESS_HOLD": value})
		require.ErrorContains(t, err, want)
	}
	for _, number := range []string{"1.5", "x", "99999999999999999999"} {
		_, err = New("process", deps, map[string]string{"AUTOMATION_PROCESS_MAX_PROCESSES": number})
		require.EqualError(t, err, "settings of backend process: AUTOMATION_PROCESS_MAX_PROCESSES: not a valid int64")
	}
	require.Subset(t, Variables(), []string{
		"AUTOMATION_PROCESS_ENV", "AUTOMATION_PROCESS_HOLD", "AUTOMATION_PROCESS_MAX_MEMORY_BYTES", "AUTOMATION_PROCESS_MAX_PROCESSES",
	})
}

func TestAProviderIsOneRegistration(t *testing.T) {
	t.Cleanup(func() { delete(table, "acme") })
	type settings struct {
		Key string        `env:"ACME_API_KEY,required"`
		TTL time.Duration `env:"ACME_TTL" envDefault:"5m"`
	}
	var got settings
	stop := errors.New("seen enough")
	register("acme", sandbox.Capabilities{Suspend: sandbox.SuspendDisk}, func(d Deps, c settings) (sandbox.Backend, error) {
		require.NotNil(t, d.Log)
		require.NotNil(t, d.Now)
		got = c
		return nil, stop
	})
	require.Panics(t, func() { announce("acme", sandbox.Capabilities{}) })
	require.Contains(t, Variables(), "ACME_API_KEY")
	_, err := New("acme", Deps{}, map[string]string{})
	require.ErrorContains(t, err, "ACME_API_KEY")
	_, err = New("acme", Deps{}, map[string]string{"ACME_API_KEY": "k"})
	require.ErrorIs(t, err, stop)
	require.Equal(t, settings{Key: "k", TTL: 5 * time.Minute}, got)
}

func TestTheLocationIsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var group sync.WaitGroup
	got, failed := make([]uuid.UUID, 16), make([]error, 16)
	for n := range got {
		group.Go(func() { got[n], failed[n] = Location(dir) })
	}
	group.Wait()
	for n := range got {
		require.NoError(t, failed[n])
		require.NotEqual(t, uuid.Nil, got[n])
		require.Equal(t, got[0], got[n])
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "location"), []byte("here"), 0o600))
	_, err = Location(dir)
	require.ErrorContains(t, err, "location")
}

package storage

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
)

// crashVariable names the point at which the test's own process dies, and crashRoot where.
const crashVariable, crashRoot = "STORAGE_TEST_CRASH", "STORAGE_TEST_ROOT"

// dying is a layout whose process is killed at a point of a move.
type dying struct {
	layout
	at string
}

func die() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }

func (d dying) mark(id string) error {
	err := d.layout.mark(id)
	if d.at == "mark" {
		die()
	}
	return err
}

func (d dying) startedSince(id, entry string, moved time.Time) bool {
	if d.at == "move" {
		die()
	}
	return d.layout.startedSince(id, entry, moved)
}

// TestCrashing is the process that dies.
func TestCrashing(t *testing.T) {
	at := os.Getenv(crashVariable)
	if at == "" {
		return // only started by the test below
	}
	f := newFleetAt(t, os.Getenv(crashRoot), Settings{})
	f.wrap(func(l layout) layout { return dying{l, at} })
	tenants := []string{conversation.Dashed(idA)}
	if at == "delete" {
		go func() {
			trash := filepath.Join(f.home, "state", trashName)
			for {
				if found, _ := filepath.Glob(trash + "/*/persistence/.cache/tool/d*"); len(found) > 0 && len(found) < 390 {
					die()
				}
			}
		}()
	}
	f.reclaim(Request{Tier: TierRuntime, ConversationIDs: tenants})
	t.Fatal("did not die")
}

func TestAServerThatIsKilledAnywhereInAnArchiveIsMadeGoodByTheNext(t *testing.T) {
	for _, at := range []string{"mark", "move", "delete"} {
		t.Run("killed after "+at, func(t *testing.T) {
			f := newFleet(t, Settings{})
			f.runtime(idA, time.Hour)
			f.runtime(idB, time.Hour)
			for i := range 400 {
				f.put(filepath.Join("state/runtime-data", idA, "persistence/.cache/tool/d"+strconv.Itoa(i), "x"), 1)
			}
			data := filepath.Join(f.home, "state/runtime-data")
			history := fingerprint(t, filepath.Join(f.home, "history"))
			f.Close()

			again := exec.Command("/proc/self/exe", "-test.run=^TestCrashing$")
			again.Env = append(os.Environ(), crashVariable+"="+at, crashRoot+"="+f.home)
			err := again.Run()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "killed by itself")

			f.Storage = nil
			f.restart()
			require.Equal(t, StateArchived, f.of(idA).State, "whatever was done, nobody prompts it")
			require.NoError(t, f.Maintain(t.Context()))
			for _, a := range f.areas {
				a.trash.wait(t.Context())
			}
			require.NoDirExists(t, filepath.Join(data, idA))
			require.Empty(t, entries(t, filepath.Join(f.home, "state", trashName)))
			require.NoDirExists(t, filepath.Join(data, idB, "persistence/.cache/pip"), "the pass after the start goes on with the rest")
			require.FileExists(t, filepath.Join(data, idB, "workspace/.env"))
			require.Equal(t, history, fingerprint(t, filepath.Join(f.home, "history")))
		})
	}
}

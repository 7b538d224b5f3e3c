package watchdog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// local puts the rig into local mode and returns the shared agent server.
func (r *rig) local() *sandboxtest.AgentBox {
	r.Helper()
	shared := sandbox.Identity{}
	err := r.fake.Create(r.Context(), sandbox.Spec{Label: sandbox.Label{WorkspaceID: uuid.New()}}, func(i sandbox.Identity) error { shared = i; return nil })
	require.NoError(r, err)
	r.Local = &LocalAgent{URL: shared.URL, Key: config.Secret(shared.Key)}
	return r.agents.Box(shared.ProviderID)
}

// localRun makes a RUNNING run of local mode, with its command on the shared agent server.
func (r *rig) localRun(agent *sandboxtest.AgentBox) *models.Run {
	r.Helper()
	run, _ := r.running()
	id := agent.Run(". '/tmp/automation-" + sandbox.StartMarker(run.ID))
	modelstest.Set(r.T, r.store, run, "box_id = NULL, bash_command_id = ?", id)
	return r.run(run.ID)
}

// stopped reports whether a command was told to stop.
func stopped(agent *sandboxtest.AgentBox, id string) bool {
	for _, c := range agent.Commands() {
		if c.ID == id {
			return c.Stopped
		}
	}
	return false
}

func TestLocalMode_CancelledReplacedAndTimedOutCommandsAreStopped(t *testing.T) {
	replaced, timedOut := "Replaced by run x", "Timed out: Command still running"
	for name, c := range map[string]struct {
		outcome models.Outcome
		stop    bool
	}{
		"cancelled": {models.Outcome{Status: models.RunCancelled}, true},
		"replaced":  {models.Outcome{Status: models.RunFailed, ErrorDetail: &replaced}, true},
		"timed out": {models.Outcome{Status: models.RunFailed, ErrorDetail: &timedOut}, true},
		"completed": {models.Outcome{Status: models.RunCompleted}, false},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, func(r *rig) {
				agent := r.local()
				run := r.localRun(agent)
				done, err := r.store.Finish(r.Context(), run.ID, c.outcome, r.decide)
				require.NoError(r, err)
				require.True(r, done.Won)
				r.drain(r.aftercarePass)
				require.Equal(r, c.stop, stopped(agent, *run.BashCommandID))
				require.Equal(r, c.stop, r.run(run.ID).AftercareAt != nil, "a command that was told to stop is looked at again")
				agent.End(*run.BashCommandID, "", "", -1)
				r.clock.Advance(aftercareAgain)
				r.drain(r.aftercarePass)
				require.Nil(r, r.run(run.ID).AftercareAt)
				if c.stop {
					require.Equal(r, -1, *r.run(run.ID).ExitCode)
				}
			})
		})
	}
}

func TestLocalMode_ACommandWhoseIDWasLostIsFoundAndStopped(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		agent := r.local()
		run := r.localRun(agent)
		id := *run.BashCommandID
		modelstest.Set(r.T, r.store, run, "bash_command_id = NULL")
		r.finish(run.ID, models.RunCancelled)
		r.drain(r.aftercarePass)
		require.True(r, stopped(agent, id))

		agent.End(id, "", "", 0)
		never, _ := r.running()
		modelstest.Set(r.T, r.store, never, "box_id = NULL, bash_command_id = NULL")
		r.finish(never.ID, models.RunCancelled)
		r.clock.Advance(aftercareAgain)
		r.drain(r.aftercarePass)
		require.NotNil(r, r.run(never.ID).AftercareAt, "its start may be on the wire")
		r.clock.Advance(aftercareUnknown + aftercareAgain)
		r.drain(r.aftercarePass)
		require.Nil(r, r.run(never.ID).AftercareAt)
	})
}

func TestLocalMode_AnAgentServerThatDoesNotAnswerIsAskedAgain(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		agent := r.local()
		run := r.localRun(agent)
		agent.Down()
		r.finish(run.ID, models.RunCancelled)
		r.drain(r.aftercarePass)
		next := must(r.store.NextAftercareAt(r.Context()))
		require.NotNil(r, next)
		require.WithinDuration(r, r.clock.Now().Add(aftercareAgain), *next, time.Minute)
		r.clock.Advance(aftercareFor + staleHold)
		r.drain(r.aftercarePass)
		require.Nil(r, must(r.store.NextAftercareAt(r.Context())), "not for ever: the command's own time-out has ended it")
	})
}

func TestLocalMode_TheFinishResponseIsStored(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		agent := r.local()
		agent.Finish(`{"message":"all done"}`)
		run := r.localRun(agent)
		conversation := "c-1"
		_, err := r.store.Finish(r.Context(), run.ID, models.Outcome{Status: models.RunCompleted, ConversationID: &conversation}, r.decide)
		require.NoError(r, err)
		r.drain(r.aftercarePass)
		require.JSONEq(r, `{"finish_tool_response":{"message":"all done"}}`, string(r.run(run.ID).RunMetadata))
		require.Nil(r, r.run(run.ID).AftercareAt)
	})
}

func TestLocalMode_RunsInBoxesAreTheSettlers(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		run, _ := r.running()
		r.finish(run.ID, models.RunCancelled)
		require.Nil(r, r.run(run.ID).AftercareAt)
	})
}

// workspace makes a directory as a run leaves it, changed last so long ago.
func (r *rig) workspace(name string, ago time.Duration) string {
	r.Helper()
	path := filepath.Join(r.Config.Sandbox.WorkspaceBase, runFolder, name)
	require.NoError(r, os.MkdirAll(filepath.Join(path, "src"), 0o755))
	require.NoError(r, os.WriteFile(filepath.Join(path, "src", "a.txt"), []byte("x"), 0o600))
	at := r.clock.Now().Add(-ago)
	require.NoError(r, os.Chtimes(path, at, at))
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func TestLocalMode_WorkspacesOutliveTheirRunsByTheRetention(t *testing.T) {
	each(t, sandboxtest.Quirks{}, func(r *rig) {
		r.Config.Sandbox.WorkspaceBase = r.TempDir()
		r.Config.Cleanup.WorkspaceRetention = 24 * time.Hour
		n, err := r.purgeWorkspaces(r.Context())
		require.NoError(r, err)
		require.Zero(r, n, "there is no folder yet")

		agent := r.local()
		working := r.localRun(agent)
		old, fresh := r.localRun(agent), r.localRun(agent)
		r.finish(old.ID, models.RunCompleted)
		r.clock.Advance(25 * time.Hour)
		r.finish(fresh.ID, models.RunCompleted)
		kept := []string{
			r.workspace(working.ID.String(), 48*time.Hour), r.workspace(fresh.ID.String(), 48*time.Hour),
			r.workspace("somebody's", 48*time.Hour), r.workspace(uuid.NewString(), time.Hour),
		}
		gone := []string{r.workspace(old.ID.String(), 0), r.workspace(uuid.NewString(), 48*time.Hour)}
		outside := r.TempDir()
		require.NoError(r, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
		link := filepath.Join(r.Config.Sandbox.WorkspaceBase, runFolder, uuid.NewString())
		require.NoError(r, os.Symlink(outside, link))
		require.NoError(r, os.Symlink(outside, filepath.Join(gone[0], "link")))
		kept = append(kept, link, filepath.Join(outside, "precious"))

		r.Config.Cleanup.WorkspaceRetention = 0
		n, err = r.purgeWorkspaces(r.Context())
		require.NoError(r, err)
		require.Zero(r, n, "0 keeps all")
		r.Config.Cleanup.WorkspaceRetention = 24 * time.Hour
		var told Sweep
		r.Swept = func(s Sweep) { told = s }
		n, err = r.purgeWorkspaces(r.Context())
		require.NoError(r, err)
		require.Equal(r, 2, n)
		require.Equal(r, Sweep{Kind: "workspace", Took: told.Took, Removed: 2}, told)
		for _, path := range kept {
			require.True(r, exists(path), path)
		}
		for _, path := range gone {
			require.False(r, exists(path), path)
		}
	})
}

func TestLocalMode_AtMostSoManyWorkspacesAScan(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		r.Config.Sandbox.WorkspaceBase = r.TempDir()
		r.Config.Cleanup.WorkspaceRetention = time.Hour
		for range 60 {
			r.workspace(uuid.NewString(), 2*time.Hour)
		}
		for n, want := range []int{50, 10, 0} {
			got, err := r.purgeWorkspaces(r.Context())
			require.NoError(r, err)
			require.Equal(r, want, got, "scan %d", n)
		}
	})
}

func TestLocalMode_ALinkInPlaceOfTheFolderIsNotFollowed(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		r.Config.Sandbox.WorkspaceBase = r.TempDir()
		r.Config.Cleanup.WorkspaceRetention = time.Hour
		outside := r.TempDir()
		precious := filepath.Join(outside, uuid.NewString())
		require.NoError(r, os.Mkdir(precious, 0o755))
		past := time.Now().Add(-48 * time.Hour)
		require.NoError(r, os.Chtimes(precious, past, past))
		require.NoError(r, os.Symlink(outside, filepath.Join(r.Config.Sandbox.WorkspaceBase, runFolder)))
		_, err := r.purgeWorkspaces(r.Context())
		require.Error(r, err)
		require.True(r, exists(precious))
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

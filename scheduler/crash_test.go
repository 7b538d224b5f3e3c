package scheduler

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"automation/config"
	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// A process that dies: nothing of it reaches the database any more, and its calls end. What is left is judged as another
// process finds it once the lease has run out (design section 4, "Dispatch after a crash").
func TestDispatch_AfterACrash(t *testing.T) {
	cases := []struct {
		name    string
		at      func(r *rig, crash func()) // arranges that crash is called at the point
		started bool                       // the command was, or may have been, started: nothing is repeated
	}{
		{"create sent", func(r *rig, crash func()) {
			r.fake.Watch(func(c sandboxtest.Call) {
				if c.Method == "Create" {
					crash()
				}
			})
		}, false},
		{"create answered", func(r *rig, crash func()) {
			r.fake.Watch(func(c sandboxtest.Call) {
				if c.Method == "Inspect" {
					crash()
				}
			})
		}, false},
		{"uploaded", atRequest("/api/file/upload", true), false},
		{"start sent", atRequest("/api/bash/start_bash_command", false), true},
		{"started", func(r *rig, crash func()) {
			r.fake.Watch(func(c sandboxtest.Call) {
				if c.Method == "Inspect" {
					r.agent(c.Workspace).OnStart(func(*sandboxtest.Command) { crash() })
				}
			})
		}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, func(r *rig) {
				run := r.pending()
				dying := r.db.Open(r.T, models.WithClock(r.clock.Now))
				dispatch, _ := r.duties(dying)
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				crashed := false
				c.at(r, func() {
					if !crashed {
						crashed = true
						cancel()
						require.NoError(r, dying.Close())
					}
				})
				_, _ = dispatch.pass(ctx)
				require.True(r, crashed)
				r.fake.Watch(nil)

				n, err := r.dispatch.pass(r.Context())
				require.NoError(r, err)
				require.Zero(r, n, "the lease still holds")
				lost := r.run(run.ID).Box
				r.clock.Advance(2 * leaseTime)
				n, err = r.dispatch.pass(r.Context())
				require.NoError(r, err)
				run = r.run(run.ID)
				require.Equal(r, models.RunRunning, run.Status)
				if c.started {
					require.Zero(r, n)
					require.Equal(r, lost.ID, *run.BoxID, "nothing is repeated after starting_at")
					require.NotNil(r, run.StartingAt)
					require.NotNil(r, run.CheckAt)
					return
				}
				require.Equal(r, 1, n)
				require.Equal(r, 2, run.Attempt)
				require.NotNil(r, run.BashCommandID)
				require.NotEqual(r, lost.ID, *run.BoxID)
				r.settle()
				require.Len(r, r.fake.Alive(), 1, "the lost attempt's box is gone")
				require.Len(r, r.agent(*run.BoxID).Commands(), 1)
			})
		})
	}
}

// atRequest crashes when a path of the box's agent server is asked for, or at the next request after it.
func atRequest(path string, after bool) func(*rig, func()) {
	return func(r *rig, crash func()) {
		r.fake.Watch(func(c sandboxtest.Call) {
			if c.Method != "Inspect" {
				return
			}
			armed := false
			r.agent(c.Workspace).Watch(func(request string) {
				hit := strings.HasSuffix(request, path)
				if hit && !after || armed {
					crash()
				}
				armed = armed || hit
			})
		})
	}
}

func TestDispatch_ExhaustedAttemptsFailTheRun(t *testing.T) {
	one(t, sandboxtest.Quirks{SlowCreate: 1 << 30}, func(r *rig) {
		run := r.pending()
		for range 3 {
			ctx, cancel := context.WithCancel(r.Context())
			r.fake.Watch(func(c sandboxtest.Call) {
				if c.Method == "Inspect" {
					cancel()
				}
			})
			_, err := r.dispatch.pass(ctx)
			require.NoError(r, err)
			cancel()
		}
		r.fake.Watch(nil)
		r.execute()
		run = r.run(run.ID)
		require.Equal(r, models.RunFailed, run.Status)
		require.Contains(r, *run.ErrorDetail, "(attempts: 3)")
		r.settle()
		require.Empty(r, r.fake.Alive())
	})
}

func TestDispatch_IdentityIsStoredThoughTheDatabaseIsAway(t *testing.T) {
	one(t, sandboxtest.Quirks{}, func(r *rig) {
		box := &models.Sandbox{}
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		err := r.dispatch.recordIdentity(ctx, box, sandbox.Identity{Kind: models.IdentityBox, ProviderID: "x"})
		require.ErrorIs(r, err, context.Canceled, "an error means that we are stopping")
	})
}

func secret(s string) config.Secret { return config.Secret(s) }

// decoded returns the text of a stored output.
func decoded(t *testing.T, stored string) string {
	t.Helper()
	var text strings.Builder
	for line := range strings.Lines(stored) {
		var f sandbox.Frame
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		if f.Type == sandbox.FrameStdout {
			text.Write(f.Data)
		}
	}
	return text.String()
}

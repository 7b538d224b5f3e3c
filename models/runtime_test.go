package models_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
)

// wanted is a conversation that somebody opens.
func wanted() models.Runtime {
	return models.Runtime{
		OrgID: uuid.New(), UserID: uuid.New(), ConversationID: uuid.New(), Backend: here.Backend,
		SessionKey: "session", SecretKey: "secret",
	}
}

func open(t *testing.T, s *models.Store, want models.Runtime) *models.Runtime {
	t.Helper()
	r, _, err := s.OpenRuntime(t.Context(), want, "user:1")
	require.NoError(t, err)
	return r
}

func TestOpenRuntime(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		t.Run("makes the conversation and the row of its box, due now", func(t *testing.T) {
			want := wanted()
			r, made, err := s.OpenRuntime(t.Context(), want, "user:1")
			require.NoError(t, err)
			require.True(t, made)
			require.Equal(t, models.WantRunning, r.Box.Desired)
			require.Equal(t, models.SeenProvisioning, r.Box.Observed)
			require.NotNil(t, r.Box.NextStepAt)
			require.Equal(t, models.CreatedByRuntime, r.Box.CreatedBy)
			again, made, err := s.OpenRuntime(t.Context(), want, "user:1")
			require.NoError(t, err)
			require.False(t, made)
			require.Equal(t, r.Box.ID, again.Box.ID)
			require.Equal(t, r.Box.Generation, again.Box.Generation, "a box that is on its way is not ordered again")
		})
		t.Run("S3-017 keys and workspace stay, whatever later callers bring", func(t *testing.T) {
			want := wanted()
			want.Workspace = "/checkouts/a"
			open(t, s, want)
			later := want
			later.Workspace, later.SessionKey, later.SecretKey = "", "other", "other"
			r := open(t, s, later)
			require.Equal(t, "session", r.SessionKey)
			require.Equal(t, "secret", r.SecretKey)
			require.Equal(t, "/checkouts/a", r.Workspace)
			later.Workspace = "/checkouts/b"
			_, _, err := s.OpenRuntime(t.Context(), later, "user:1")
			require.ErrorIs(t, err, models.ErrWorkspaceFixed)
		})
		t.Run("never two conversations on one checkout", func(t *testing.T) {
			first, second := wanted(), wanted()
			first.Workspace, second.Workspace = "/checkouts/shared", "/checkouts/shared"
			open(t, s, first)
			_, _, err := s.OpenRuntime(t.Context(), second, "user:1")
			require.ErrorIs(t, err, models.ErrWorkspaceTaken)
			_, err = s.Runtime(t.Context(), second.OrgID, second.ConversationID)
			require.ErrorIs(t, err, models.ErrNotFound)
		})
		t.Run("S3-005 an evicted box is ordered running again, and is the same", func(t *testing.T) {
			want := wanted()
			r := open(t, s, want)
			modelstest.Set(t, s, r.Box, "desired = ?, observed = ?, next_step_at = NULL", models.WantSuspended, models.SeenSuspended)
			again := open(t, s, want)
			require.Equal(t, r.Box.ID, again.Box.ID)
			require.Equal(t, models.WantRunning, again.Box.Desired)
			require.NotNil(t, again.Box.NextStepAt)
		})
		t.Run("a box of which nothing is left is replaced, and ordered deleted", func(t *testing.T) {
			for _, state := range []models.Observed{models.SeenMissing, models.SeenDeleted} {
				want := wanted()
				r := open(t, s, want)
				modelstest.Set(t, s, r.Box, "observed = ?, next_step_at = NULL", state)
				again := open(t, s, want)
				require.NotEqual(t, r.Box.ID, again.Box.ID)
				old, err := s.Sandbox(t.Context(), uuid.Nil, r.Box.ID)
				require.NoError(t, err)
				require.Equal(t, models.WantDeleted, old.Desired)
			}
		})
		t.Run("another organization has its own conversation of that name", func(t *testing.T) {
			want := wanted()
			r := open(t, s, want)
			want.OrgID = uuid.New()
			require.NotEqual(t, r.Box.ID, open(t, s, want).Box.ID)
		})
	})
}

func TestS3_024_ConcurrentCallersGetOneBox(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		want := wanted()
		boxes := make([]uuid.UUID, 20)
		var callers sync.WaitGroup
		for n := range boxes {
			callers.Go(func() {
				if r, _, err := s.OpenRuntime(t.Context(), want, "user:1"); err == nil {
					boxes[n] = r.Box.ID
				}
			})
		}
		callers.Wait()
		for _, id := range boxes {
			require.Equal(t, boxes[0], id)
		}
		require.NotEqual(t, uuid.Nil, boxes[0])
		list, total, err := s.Runtimes(t.Context(), want.OrgID, 10, 0)
		require.NoError(t, err)
		require.Equal(t, 1, total)
		require.Equal(t, boxes[0], list[0].Box.ID)
	})
}

func TestS3_014_TheRuntimesOfAPlaceAreSuspendedTogether(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		awake, asleep, elsewhere := open(t, s, wanted()), open(t, s, wanted()), wanted()
		modelstest.Set(t, s, asleep.Box, "desired = ?, observed = ?", models.WantSuspended, models.SeenSuspended)
		elsewhere.Location = "another engine"
		other := open(t, s, elsewhere)
		run := seed(t, s) // of a run: left to its row
		ids, err := s.SuspendRuntimes(t.Context(), here, "shutdown", "the service stops")
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{awake.Box.ID}, ids)
		n, err := s.CountAwake(t.Context(), ids)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		modelstest.Set(t, s, awake.Box, "observed = ?, next_step_at = NULL", models.SeenSuspended)
		n, err = s.CountAwake(t.Context(), ids)
		require.NoError(t, err)
		require.Zero(t, n)
		for _, id := range []uuid.UUID{other.Box.ID, run.Box.ID} {
			b, err := s.Sandbox(t.Context(), uuid.Nil, id)
			require.NoError(t, err)
			require.NotEqual(t, "shutdown", b.OrderedBy)
		}
	})
}

func TestNudgeUnlike_LooksOnlyWhereTheRowSaysOtherwise(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		cases := map[string]struct {
			row    string
			args   []any
			nudged bool
		}{
			"differs":         {"observed = ?, next_step_at = NULL", []any{models.SeenRunning}, true},
			"agrees":          {"observed = ?, next_step_at = NULL", []any{models.SeenSuspended}, false},
			"deleted":         {"observed = ?, next_step_at = NULL", []any{models.SeenDeleted}, false},
			"somebody has it": {"observed = ?, next_step_at = NULL, lease_until = ?", []any{models.SeenRunning, s.Now().Add(60e9)}, false},
		}
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				box := seed(t, s).Box
				modelstest.Set(t, s, box, c.row, c.args...)
				nudged, err := s.NudgeUnlike(t.Context(), box.ID, models.SeenSuspended)
				require.NoError(t, err)
				require.Equal(t, c.nudged, nudged)
			})
		}
	})
}

func TestWhyARuntimeIsHeldIsShownWithIt(t *testing.T) {
	modelstest.Each(t, func(t *testing.T, s *models.Store) {
		r := open(t, s, wanted())
		require.NoError(t, s.HoldIdle(t.Context(), r.Box.ID, models.HeldAgent, s.Now(), ""))
		r, err := s.Runtime(t.Context(), r.OrgID, r.ConversationID)
		require.NoError(t, err)
		require.Equal(t, models.HeldAgent, r.Box.HeldBecause)
		of, err := s.RuntimeOfBox(t.Context(), r.Box.ID)
		require.NoError(t, err)
		require.Equal(t, r.ConversationID, of.ConversationID)
	})
}

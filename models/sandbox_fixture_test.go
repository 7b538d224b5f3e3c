package models_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"automation/models"
	"automation/models/modelstest"
)

// here is where the boxes of these tests are.
var here = models.Place{Backend: modelstest.Backend}

// places is what a process that serves here serves.
var places = []models.Place{here}

// everywhere is the reach of a process that serves all places there are.
var everywhere = models.Reach{In: places, Rest: true}

// seeded is a box with what belongs to it.
type seeded struct {
	Automation *models.Automation
	Run        *models.Run
	Box        *models.Sandbox
}

// seed inserts a run that failed an hour ago and whose box rests suspended and is due since a minute, as changed by change.
// A run or box that change sets to nil is left out.
func seed(t *testing.T, s *models.Store, change ...func(*seeded)) seeded {
	t.Helper()
	now := s.Now()
	org, user := uuid.New(), uuid.New()
	completed, due := now.Add(-time.Hour), now.Add(-time.Minute)
	f := seeded{
		Automation: &models.Automation{
			ID: uuid.New(), UserID: user, OrgID: org, Name: "nightly", Trigger: json.RawMessage(`{"type":"cron"}`), Tags: []string{},
			TarballPath: "https://example.com/a.tar.gz", Entrypoint: "true", Overlap: models.OverlapAllow,
			State: models.AutomationActive, CreatedAt: now, UpdatedAt: now,
		},
		Run: &models.Run{
			ID: uuid.New(), OrgID: org, Status: models.RunFailed, CreatedAt: completed, CompletedAt: &completed, CleanupDueAt: &due,
		},
		Box: newBox(now),
	}
	f.Box.OrgID, f.Box.UserID = org, user
	for _, c := range change {
		c(&f)
	}
	insert(t, s, f)
	return f
}

// newBox returns a box that was ordered suspended two hours ago and rests so.
func newBox(now time.Time) *models.Sandbox {
	seen := now.Add(-time.Hour)
	return &models.Sandbox{
		ID: uuid.New(), Backend: here.Backend, CreatedBy: models.CreatedByDispatch,
		Desired: models.WantSuspended, Observed: models.SeenSuspended, Generation: 1,
		OrderedAt: now.Add(-2 * time.Hour), OrderedBy: "callback", OrderReason: "callback", ObservedAt: &seen,
		Tried: []string{}, AwakeEpoch: 1, CreatedAt: now.Add(-2 * time.Hour),
	}
}

func insert(t *testing.T, s *models.Store, f seeded) {
	t.Helper()
	if f.Run != nil {
		f.Run.AutomationID, f.Run.OrgID = f.Automation.ID, f.Automation.OrgID
	}
	rows := []any{f.Automation}
	if f.Run != nil {
		rows = append(rows, f.Run)
	}
	if f.Box != nil {
		f.Box.AutomationID = &f.Automation.ID
		if f.Run != nil {
			f.Box.RunID = &f.Run.ID
		}
		rows = append(rows, f.Box)
		for _, i := range f.Box.Identities {
			i.SandboxID = f.Box.ID
			rows = append(rows, i)
		}
	}
	err := modelstest.Of(t, s).Raw().RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		for _, row := range rows {
			if _, err := tx.NewInsert().Model(row).Exec(ctx); err != nil {
				return err
			}
		}
		if f.Run == nil || f.Box == nil {
			return nil
		}
		f.Run.BoxID = &f.Box.ID
		_, err := tx.NewUpdate().Model(f.Run).Column("box_id").WherePK().Exec(ctx)
		return err
	})
	require.NoError(t, err)
}

// older gives the run of f a box of an earlier attempt.
func older(t *testing.T, s *models.Store, f seeded, change func(*models.Sandbox)) *models.Sandbox {
	t.Helper()
	b := newBox(s.Now())
	b.OrgID, b.UserID, b.AutomationID, b.RunID = f.Box.OrgID, f.Box.UserID, f.Box.AutomationID, f.Box.RunID
	change(b)
	return modelstest.Box(t, s, b)
}

// named gives the box an identity.
func named(id string) func(*seeded) {
	return func(f *seeded) {
		f.Box.Identities = append(f.Box.Identities, &models.Identity{
			Kind: models.IdentityBox, ProviderID: id, SeenAt: f.Box.CreatedAt,
		})
	}
}

// due moves the stamp.
func due(at time.Time) func(*seeded) { return func(f *seeded) { f.Run.CleanupDueAt = &at } }

// work orders the box deleted, so that the settler has work since at.
func work(at time.Time) func(*seeded) {
	return func(f *seeded) {
		f.Box.Desired, f.Box.OrderedAt, f.Box.NextStepAt = models.WantDeleted, at, &at
	}
}

// running makes the run and its box run.
func running(f *seeded) {
	f.Run.Status, f.Run.CompletedAt, f.Run.CleanupDueAt = models.RunRunning, nil, nil
	f.Box.Desired, f.Box.Observed = models.WantRunning, models.SeenRunning
}

// keepAlive sets keep_alive of the automation.
func keepAlive(f *seeded) { yes := true; f.Automation.KeepAlive = &yes }

// box reads a box.
func box(t *testing.T, s *models.Store, id uuid.UUID) *models.Sandbox {
	t.Helper()
	b, err := s.Sandbox(t.Context(), uuid.Nil, id)
	require.NoError(t, err)
	return b
}

// stamp reads the due date of a box's run.
func stamp(t *testing.T, s *models.Store, f seeded) *time.Time {
	t.Helper()
	run := models.Run{ID: f.Run.ID}
	err := modelstest.Of(t, s).Raw().NewSelect().Model(&run).Column("sandbox_cleanup_due_at").WherePK().Scan(t.Context())
	require.NoError(t, err)
	return run.CleanupDueAt
}

// claim leases the one box that has work.
func claim(t *testing.T, s *models.Store) models.Claim {
	t.Helper()
	claims, err := s.ClaimBoxes(t.Context(), here, 1, time.Minute, time.Minute)
	require.NoError(t, err)
	require.Len(t, claims, 1, "boxes that have work")
	return claims[0]
}

// step starts the record of a step of a claim.
func step(c models.Claim, name string) models.Step {
	return models.Step{BoxID: c.Box.ID, Token: c.Token, Generation: c.Generation, Name: name}
}

func ptr[T any](v T) *T { return &v }

// sameTime asserts that two times are the same instant.
func sameTime(t *testing.T, want time.Time, got *time.Time) {
	t.Helper()
	require.NotNil(t, got)
	require.True(t, want.Equal(*got), "want %s, got %s", want, got)
}

// whats returns what happened to a box, oldest first.
func whats(t *testing.T, s *models.Store, id uuid.UUID) []string {
	t.Helper()
	events, _, err := s.Events(t.Context(), id, 100, 0)
	require.NoError(t, err)
	var all []string
	for _, e := range events {
		all = append(all, e.What)
	}
	return all
}

// attach attaches a process to a box as it is now.
func attach(ctx context.Context, s *models.Store, box, process uuid.UUID, until time.Time) error {
	_, err := s.Attach(ctx, box, process, until)
	return err
}

// detach ends what attach did in the box's present start.
func detach(ctx context.Context, s *models.Store, box, process uuid.UUID) error {
	b, err := s.Sandbox(ctx, uuid.Nil, box)
	if err == nil {
		_, err = s.Detach(ctx, box, process, b.Incarnation(), s.Now())
	}
	return err
}

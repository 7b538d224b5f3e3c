package modelstest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
)

// Org and User own what the makers make.
var (
	Org  = uuid.MustParse("0197a000-0000-7000-8000-000000000001")
	User = uuid.MustParse("0197a000-0000-7000-8000-000000000002")
)

// Backend is the backend of the boxes that the makers make.
const Backend = "fake"

// Automation makes an enabled cron automation; edit changes it before it is stored.
func Automation(t testing.TB, s *models.Store, edit ...func(*models.Automation)) *models.Automation {
	t.Helper()
	a := &models.Automation{
		OrgID: Org, UserID: User, Name: "nightly", State: models.AutomationActive, Overlap: models.OverlapAllow,
		Trigger:     json.RawMessage(`{"type":"cron","schedule":"0 3 * * *","timezone":"UTC"}`),
		TarballPath: "https://example.com/a.tar.gz", Entrypoint: "bash run.sh",
	}
	for _, change := range edit {
		change(a)
	}
	require.NoError(t, s.CreateAutomation(t.Context(), a))
	return a
}

// Pending makes a PENDING run, started by hand.
func Pending(t testing.TB, s *models.Store, a *models.Automation, edit ...func(*models.Run)) *models.Run {
	t.Helper()
	by := models.TriggerManual
	r := &models.Run{AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunPending, TriggerSource: &by}
	for _, change := range edit {
		change(r)
	}
	require.NoError(t, s.CreateRun(t.Context(), r))
	return r
}

// Running makes a run whose command has been started in a box: the run RUNNING, its box running, named, at rest and not
// leased. edit changes run and box before they are stored.
func Running(t testing.TB, s *models.Store, a *models.Automation, edit ...func(*models.Run, *models.Sandbox)) (*models.Run, *models.Sandbox) {
	t.Helper()
	now := s.Now()
	by := models.TriggerManual
	timeout, check := now.Add(17*time.Minute), now.Add(5*time.Second)
	r := &models.Run{
		ID: uuid.Must(uuid.NewV7()), AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunRunning, TriggerSource: &by,
		Attempt: 1, CreatedAt: now, StartedAt: &now, StartingAt: &now, TimeoutAt: &timeout, CheckAt: &check,
	}
	b := NewBox(s)
	b.OrgID, b.UserID, b.AutomationID, b.RunID = a.OrgID, a.UserID, &a.ID, &r.ID
	for _, change := range edit {
		change(r, b)
	}
	raw := Of(t, s).raw
	insert(t, s, r)
	Box(t, s, b)
	r.BoxID, r.Box = &b.ID, b
	_, err := raw.NewUpdate().Model(r).Column("box_id").WherePK().Exec(t.Context())
	require.NoError(t, err)
	return r, b
}

// NewBox returns an unstored row of a running box at rest with one identity, owned by nobody's run.
func NewBox(s *models.Store) *models.Sandbox {
	now := s.Now()
	id := uuid.Must(uuid.NewV7())
	return &models.Sandbox{
		ID: id, OrgID: Org, UserID: User, Backend: Backend, CreatedBy: models.CreatedByDispatch,
		Desired: models.WantRunning, Observed: models.SeenRunning, Generation: 1,
		OrderedAt: now, OrderedBy: "dispatch", OrderReason: "dispatched",
		AwakeEpoch: 1, Tried: []string{}, ObservedAt: &now, AnsweredAt: &now, CreateSentAt: &now, CreateEndedAt: &now, CreatedAt: now,
		Identities: []*models.Identity{{SandboxID: id, Kind: models.IdentityBox, ProviderID: "provider-" + id.String(), SeenAt: now}},
	}
}

// Box stores a box row with its identities as they are. Session keys in them must be empty or sealed.
func Box(t testing.TB, s *models.Store, b *models.Sandbox) *models.Sandbox {
	t.Helper()
	insert(t, s, b)
	for _, identity := range b.Identities {
		identity.SandboxID = b.ID
		insert(t, s, identity)
	}
	return b
}

// Set writes columns of a row, given as SQL: Set(t, s, run, "sandbox_cleanup_due_at = ?", due).
func Set(t testing.TB, s *models.Store, row any, assignment string, args ...any) {
	t.Helper()
	res, err := Of(t, s).raw.NewUpdate().Model(row).Set(assignment, args...).WherePK().Exec(t.Context())
	require.NoError(t, err)
	n, err := res.RowsAffected()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

// Stamp returns sandbox_cleanup_due_at as it is stored.
func Stamp(t testing.TB, s *models.Store, runID uuid.UUID) *time.Time {
	t.Helper()
	r, err := s.Run(t.Context(), uuid.Nil, runID)
	require.NoError(t, err)
	return r.CleanupDueAt
}

func insert(t testing.TB, s *models.Store, row any) {
	t.Helper()
	_, err := Of(t, s).raw.NewInsert().Model(row).Exec(t.Context())
	require.NoError(t, err)
}

package bench

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"automation/models"
	"automation/tests/cloudstub"
)

var (
	org   = uuid.MustParse(cloudstub.Org)
	alice = uuid.MustParse(cloudstub.Alice)
)

// automation stores an automation whose schedule fires every fourth year.
func (db *database) automation(edit func(*models.Automation)) *models.Automation {
	db.b.Helper()
	now := time.Now().UTC().Truncate(time.Microsecond)
	a := &models.Automation{
		ID: uuid.Must(uuid.NewV7()), OrgID: org, UserID: alice, Name: "measured", State: models.AutomationActive, Overlap: models.OverlapAllow,
		Trigger: json.RawMessage(`{"type":"cron","schedule":"0 0 29 2 *","timezone":"UTC"}`), Tags: []string{},
		TarballPath: "https://example.test/code.tar.gz", Entrypoint: "python main.py", CreatedAt: now, UpdatedAt: now,
	}
	if edit != nil {
		edit(a)
	}
	insert(db, []*models.Automation{a})
	return a
}

// due stores what stays of n runs that have ended: rows of runs and of their paused boxes, stamped and due.
func (db *database) due(a *models.Automation, backend string, n int) {
	db.b.Helper()
	now := time.Now().UTC().Truncate(time.Microsecond)
	ended := now.Add(-2 * time.Hour)
	runs, boxes, ids := make([]*models.Run, n), make([]*models.Sandbox, n), make([]*models.Identity, n)
	code := 0
	for i := range n {
		due := now.Add(time.Duration(i-n) * time.Millisecond)
		r := &models.Run{
			ID: uuid.Must(uuid.NewV7()), AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunCompleted, Attempt: 1,
			CreatedAt: ended, StartedAt: &ended, StartingAt: &ended, CompletedAt: &ended, CleanupDueAt: &due, ExitCode: &code, OutputAt: &ended,
		}
		b := &models.Sandbox{
			ID: uuid.Must(uuid.NewV7()), OrgID: a.OrgID, UserID: a.UserID, AutomationID: &a.ID, RunID: &r.ID, Backend: backend,
			CreatedBy: models.CreatedByDispatch, Desired: models.WantSuspended, Observed: models.SeenSuspended, Generation: 2,
			OrderedAt: ended, OrderedBy: "callback", OrderReason: "callback", AwakeEpoch: 1, OutputEpoch: 1, ReclaimedEpoch: 1,
			Tried: []string{}, ObservedAt: &now, AnsweredAt: &ended, CreateSentAt: &ended, CreateEndedAt: &ended, CreatedAt: ended,
		}
		runs[i], boxes[i] = r, b
		ids[i] = &models.Identity{SandboxID: b.ID, Kind: models.IdentityBox, ProviderID: providerID(i), SeenAt: ended}
	}
	insert(db, runs)
	insert(db, boxes)
	insert(db, ids)
	db.exec("UPDATE automation_runs SET box_id = (SELECT s.id FROM sandboxes AS s WHERE s.run_id = automation_runs.id) WHERE box_id IS NULL")
}

// providerID is what the stub calls its n-th box.
func providerID(n int) string { return fmt.Sprintf("sbx-%06d", n) }

// sized is n, or a hundredth of it for a first look (-short).
func sized(n int) int {
	if testing.Short() {
		return max(1, n/100)
	}
	return n
}

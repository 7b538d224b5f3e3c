package bench

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"automation/models"
	"automation/tests/cloudstub"
)

// BenchmarkHang measures a late callback, and a write that has nothing to do with it, while the provider does not answer the
// pause of the run's box; and whether a session of PostgreSQL waits with a transaction open meanwhile.
func BenchmarkHang(b *testing.B) {
	eachDatabase(b, func(b *testing.B, db *database) {
		stub := cloudstub.New(b)
		stub.Put(providerID(0), cloudstub.Alice, "RUNNING")
		stub.FailAlways("pause", cloudstub.Fault{Hang: true})
		a := db.automation(func(a *models.Automation) { a.OrgID, a.UserID = localOrg, localUser })
		late := db.timedOut(a)
		s := db.serve(append(own, cloud(stub)[1:]...)...)
		require.True(b, stub.Wait(patience, func() bool { return len(stub.Calls("mint")) > 0 }), "the box is being worked on")
		s.await("the pause is on its way", func() bool { return paused(b, db) }, 10*time.Millisecond)
		took := func(method, path, body string) time.Duration {
			began := time.Now()
			status, answer := s.call(method, path, body)
			require.Equal(b, http.StatusOK, status, "%s", answer)
			return time.Since(began)
		}
		var writes []time.Duration
		for i := range 40 {
			writes = append(writes, took(http.MethodPatch, "/api/automation/v1/"+a.ID.String(), fmt.Sprintf(`{"name":"name %d"}`, i)))
		}
		callback := took(http.MethodPost, "/api/automation/v1/runs/"+late.String()+"/complete", `{"status":"COMPLETED"}`)
		b.ReportMetric(inMilliseconds(callback), "callback-ms")
		b.ReportMetric(inMilliseconds(spreadOf(writes, 0).at(.99)), "write-max-ms")
		if db.raw.Dialect().Name() == dialect.PG {
			b.ReportMetric(float64(db.idleInTransaction()), "idle-in-transaction")
		}
	})
}

// timedOut stores a run that timed out, whose box is to be paused now.
func (db *database) timedOut(a *models.Automation) uuid.UUID {
	db.b.Helper()
	now := time.Now().UTC().Truncate(time.Microsecond)
	due, why := now.Add(time.Hour), models.TimedOutPrefix+"Command still running"
	r := &models.Run{
		ID: uuid.Must(uuid.NewV7()), AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunFailed, ErrorDetail: &why, Attempt: 1,
		CreatedAt: now, StartedAt: &now, CompletedAt: &now, CleanupDueAt: &due,
	}
	box := &models.Sandbox{
		ID: uuid.Must(uuid.NewV7()), OrgID: org, UserID: alice, AutomationID: &a.ID, RunID: &r.ID, Backend: "openhands",
		CreatedBy: models.CreatedByDispatch, Desired: models.WantSuspended, Observed: models.SeenRunning, Generation: 2,
		OrderedAt: now, OrderedBy: "watchdog", OrderReason: "timed out", NextStepAt: &now, AwakeEpoch: 1, OutputEpoch: 1, ReclaimedEpoch: 1,
		Tried: []string{}, AnsweredAt: &now, CreateSentAt: &now, CreateEndedAt: &now, CreatedAt: now,
	}
	insert(db, []*models.Run{r})
	insert(db, []*models.Sandbox{box})
	insert(db, []*models.Identity{{SandboxID: box.ID, Kind: models.IdentityBox, ProviderID: providerID(0), SeenAt: now}})
	db.exec("UPDATE automation_runs SET box_id = ? WHERE id = ?", box.ID, r.ID)
	return r.ID
}

// paused reports whether the pause was sent, which is recorded before.
func paused(b *testing.B, db *database) bool {
	sent := 0
	err := db.raw.NewRaw("SELECT count(*) FROM sandboxes WHERE CAST(tried AS TEXT) LIKE ?", `%`+models.MarkSuspendSent+`%`).Scan(b.Context(), &sent)
	require.NoError(b, err)
	return sent > 0
}

func (db *database) idleInTransaction() (sessions int) {
	db.b.Helper()
	err := db.raw.NewRaw("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'").
		Scan(db.b.Context(), &sessions)
	require.NoError(db.b, err)
	return sessions
}

package bench

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/tests/cloudstub"
)

const (
	callbacks = 20_000
	clients   = 64
)

// BenchmarkComplete has many clients call back while due boxes are swept at a provider that takes 20 ms for an answer.
func BenchmarkComplete(b *testing.B) {
	eachDatabase(b, func(b *testing.B, db *database) {
		n := sized(callbacks)
		stub := cloudstub.New(b)
		stub.Latency(20 * time.Millisecond)
		swept := sized(boxesDue)
		for i := range swept {
			stub.Put(providerID(i), cloudstub.Alice, "PAUSED")
		}
		db.due(db.automation(nil), "openhands", swept)
		runs := db.running(n)
		s := db.serve(append(own, cloud(stub)[1:]...)...) // boxes of both backends; new runs and the login are local
		took, refused := s.complete(runs)
		b.ReportMetric(float64(n)/took.all.Seconds(), "runs/s")
		b.ReportMetric(inMilliseconds(took.at(.99)), "p99-ms")
		b.ReportMetric(inMilliseconds(took.at(.5)), "p50-ms")
		require.Zero(b, refused, "callbacks that were not accepted:\n%s", s.log)
	})
}

// running stores runs of the local user whose boxes are of a place that nobody serves here, so that only callbacks are measured.
func (db *database) running(n int) []uuid.UUID {
	db.b.Helper()
	a := db.automation(func(a *models.Automation) { a.OrgID, a.UserID = localOrg, localUser })
	now := time.Now().UTC().Truncate(time.Microsecond)
	later := now.Add(24 * time.Hour)
	runs, boxes, ids := make([]*models.Run, n), make([]*models.Sandbox, n), make([]uuid.UUID, n)
	for i := range n {
		r := &models.Run{
			ID: uuid.Must(uuid.NewV7()), AutomationID: a.ID, OrgID: a.OrgID, Status: models.RunRunning, Attempt: 1,
			CreatedAt: now, StartedAt: &now, StartingAt: &now, TimeoutAt: &later, CheckAt: &later,
		}
		boxes[i] = &models.Sandbox{
			ID: uuid.Must(uuid.NewV7()), OrgID: a.OrgID, UserID: a.UserID, AutomationID: &a.ID, RunID: &r.ID, Backend: "process",
			Location: "another machine", CreatedBy: models.CreatedByDispatch, Desired: models.WantRunning, Observed: models.SeenRunning, Generation: 1,
			OrderedAt: now, OrderedBy: "dispatch", OrderReason: "dispatched", AwakeEpoch: 1, Tried: []string{},
			ObservedAt: &now, AnsweredAt: &now, CreateSentAt: &now, CreateEndedAt: &now, CreatedAt: now,
		}
		runs[i], ids[i] = r, r.ID
	}
	insert(db, runs)
	insert(db, boxes)
	db.exec("UPDATE automation_runs SET box_id = (SELECT s.id FROM sandboxes AS s WHERE s.run_id = automation_runs.id) WHERE box_id IS NULL")
	return ids
}

// complete calls back for all runs from many clients.
func (s *service) complete(runs []uuid.UUID) (took spread, refused int64) {
	times := make([]time.Duration, len(runs))
	var next, bad atomic.Int64
	var work sync.WaitGroup
	began := time.Now()
	for range clients {
		work.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(runs)); i = next.Add(1) - 1 {
				asked := time.Now()
				if s.status(http.MethodPost, "/api/automation/v1/runs/"+runs[i].String()+"/complete", `{"status":"COMPLETED"}`) != http.StatusOK {
					bad.Add(1)
				}
				times[i] = time.Since(asked)
			}
		})
	}
	work.Wait()
	return spreadOf(times, time.Since(began)), bad.Load()
}

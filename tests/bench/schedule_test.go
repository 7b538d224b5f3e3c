package bench

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
)

// schedulesDue is how many automations are due in the same minute.
const schedulesDue = 10_000

// BenchmarkSchedule lets schedules fire that are all due at one instant, and waits until each has its PENDING run. The
// dispatcher is another process's, so that the runs stay as they are.
func BenchmarkSchedule(b *testing.B) {
	eachDatabase(b, func(b *testing.B, db *database) {
		n := sized(schedulesDue)
		at := time.Now().UTC().Add(20 * time.Second).Truncate(time.Minute).Add(time.Minute)
		due := make([]*models.Automation, n)
		for i := range due {
			due[i] = &models.Automation{
				ID: uuid.Must(uuid.NewV7()), OrgID: localOrg, UserID: localUser, Name: "nightly", State: models.AutomationActive,
				Overlap: models.OverlapAllow, Trigger: json.RawMessage(`{"type":"cron","schedule":"* * * * *","timezone":"UTC"}`), Tags: []string{},
				TarballPath: "https://example.test/code.tar.gz", Entrypoint: "python main.py", NextRunAt: &at, CreatedAt: at, UpdatedAt: at,
			}
		}
		insert(db, due)
		db.roles = []string{"--roles", "api,scheduler"}
		s := db.serve(own...)
		<-time.After(time.Until(at))
		s.await("all are PENDING", func() bool {
			pending := 0
			require.NoError(b, db.raw.NewRaw("SELECT count(*) FROM automation_runs WHERE status = 'PENDING'").Scan(b.Context(), &pending))
			return pending >= n
		}, 20*time.Millisecond)
		b.ReportMetric(time.Since(at).Seconds(), "s")
		b.ReportMetric(s.processor().Seconds(), "cpu-s")
	})
}

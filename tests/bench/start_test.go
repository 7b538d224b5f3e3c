package bench

import (
	"testing"
	"time"
)

// BenchmarkStart starts the service on a database that is there already, and looks at it when it has been idle for a while.
func BenchmarkStart(b *testing.B) {
	eachDatabase(b, func(b *testing.B, db *database) {
		var ready []time.Duration
		var idle float64
		for range 5 {
			s := db.serve(own...)
			ready = append(ready, s.started)
			<-time.After(3 * time.Second)
			now, _ := s.memory()
			idle = max(idle, now)
			s.stop()
		}
		b.ReportMetric(median(ready), "ready-ms")
		b.ReportMetric(idle, "idle-MiB")
	})
}

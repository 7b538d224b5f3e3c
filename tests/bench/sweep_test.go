package bench

import (
	"testing"
	"time"

	"automation/tests/cloudstub"
)

// boxesDue is how many boxes are due at once.
const boxesDue = 10_000

// BenchmarkSweep deletes boxes that are all due at its start, at the default parallelism, from a provider of OpenHands' API.
func BenchmarkSweep(b *testing.B) {
	for _, latency := range []time.Duration{0, 20 * time.Millisecond} {
		b.Run(latency.String(), func(b *testing.B) {
			eachDatabase(b, func(b *testing.B, db *database) {
				n := sized(boxesDue)
				stub := cloudstub.New(b)
				stub.Latency(latency)
				for i := range n {
					stub.Put(providerID(i), cloudstub.Alice, "PAUSED")
				}
				db.due(db.automation(nil), "openhands", n)
				began := time.Now()
				s := db.serve(cloud(stub)...)
				s.await("every box is gone", func() bool { return len(stub.Alive()) == 0 }, 50*time.Millisecond)
				b.ReportMetric(time.Since(began).Seconds(), "s")
				_, most := s.memory()
				b.ReportMetric(most, "MiB")
				b.ReportMetric(s.processor().Seconds(), "cpu-s")
				b.ReportMetric(float64(len(stub.Calls()))/float64(n), "calls/box")
			})
		})
	}
}

// cloud configures a service whose boxes are the stub's.
func cloud(stub *cloudstub.Stub) []string {
	return []string{
		"AUTOMATION_SANDBOX_BACKEND=openhands", "AUTOMATION_SERVICE_KEY=" + cloudstub.ServiceKey,
		"AUTOMATION_OPENHANDS_API_BASE_URL=" + stub.URL, "AUTOMATION_BASE_URL=http://automation.test",
		"AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS=3600",
	}
}

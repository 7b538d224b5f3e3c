package agentserver

import (
	"time"
)

// maintenanceInterval is how often the server looks after its disk; when it does not run, nothing is missed but time.
const maintenanceInterval = 5 * time.Minute

// StartMaintenance begins the passes of the server's own: one now, and one every few minutes until Stop. None of them is
// activity (S0-153).
func (s *Server) StartMaintenance() {
	s.maintenance.Go(func() {
		ticks := time.NewTicker(maintenanceInterval)
		defer ticks.Stop()
		for {
			if err := s.storage.Maintain(s.stopping); err != nil && s.stopping.Err() == nil {
				s.log.Warn("storage maintenance failed", "error", err)
			}
			select {
			case <-s.stopping.Done():
				return
			case <-ticks.C:
			}
		}
	})
}

package sandbox

import (
	"time"

	"automation/models"
)

// ExportMode is AUTOMATION_SANDBOX_EXPORT: whether the history in a box is exported before the box goes.
type ExportMode string

// The export modes; auto is on when the delay is above 0 and the provider does not keep the history itself.
const (
	ExportAuto ExportMode = "auto"
	ExportOn   ExportMode = "on"
	ExportOff  ExportMode = "off"
)

// Settings are the deployment's choices that decisions about boxes depend on.
type Settings struct {
	CleanupDelay time.Duration // AUTOMATION_SANDBOX_CLEANUP_DELAY_SECONDS; 0: boxes are deleted at once (S1-001, S1-005)
	ExitGrace    time.Duration // AUTOMATION_RUN_EXIT_GRACE_SECONDS: how long a command that called back may still run
	Reclaim      ReclaimTier   // AUTOMATION_SANDBOX_RECLAIM; "" is policy
	Export       ExportMode    // AUTOMATION_SANDBOX_EXPORT; "" is auto
	IdleTTL      time.Duration // AUTOMATION_CONVERSATION_IDLE_TTL_SECONDS: after how long unused a box is suspended; 0: never
}

// Exports reports whether the histories in boxes of such a provider are exported before they go.
func (s Settings) Exports(c Capabilities) bool {
	switch s.Export {
	case ExportOff:
		return false
	case ExportOn:
		return true
	default:
		return s.CleanupDelay > 0 && !c.KeepsHistory
	}
}

// tier is how much a box is asked to free before it is suspended. By policy it decides itself; where a snapshot of it is kept,
// dependencies go too, for they would be paid for (S0-117, S0-160). Never the runtime.
func (s Settings) tier(c Capabilities) ReclaimTier {
	switch {
	case s.Reclaim != "" && s.Reclaim != ReclaimPolicy:
		return s.Reclaim
	case c.Suspend == SuspendSnapshot:
		return ReclaimDependencies
	}
	return ReclaimPolicy
}

// NoteCannotSuspend is the note on a run whose box is deleted although a delay is configured (S0-126).
const NoteCannotSuspend = "the backend cannot suspend: the box was deleted when the run ended"

// Disposition decides what becomes of the box of a run that ends, and its stamp: the first match of the table of design
// section 5. It is the decide of models.Finish and models.Reconcile, and pure (S1-010, S1-020, S1-055).
func Disposition(e models.Ending, s Settings, c Capabilities) models.Decision {
	var status models.RunStatus
	if e.Run != nil {
		status = e.Run.Status
	}
	if status == "" || !status.Terminal() {
		status = e.Outcome.Status
	}
	switch {
	case e.Box == nil:
		return models.Decision{Box: models.BoxNothing}
	case e.Box.Desired == models.WantDeleted:
		return models.Decision{Box: models.BoxNothing}
	case status == models.RunCancelled:
		return models.Decision{Box: models.BoxDelete}
	case status == models.RunSkipped, status == models.RunFailed && e.Outcome.NotStarted:
		return models.Decision{Box: models.BoxDelete}
	case e.KeepAlive, e.Box.KeptAt != nil:
		return models.Decision{Box: models.BoxNothing}
	case s.CleanupDelay == 0:
		return models.Decision{Box: models.BoxDelete}
	case !c.CanSuspend():
		return models.Decision{Box: models.BoxDelete, Note: NoteCannotSuspend}
	}
	due := completion(e).Add(s.CleanupDelay)
	return models.Decision{Box: models.BoxSuspend, Due: &due}
}

// completion is the instant that the run's completed_at holds: the stamp counts from it and from nothing else (S1-011).
func completion(e models.Ending) time.Time {
	switch {
	case e.Run != nil && e.Run.CompletedAt != nil && !e.Run.CompletedAt.IsZero():
		return *e.Run.CompletedAt
	case !e.Outcome.CompletedAt.IsZero():
		return e.Outcome.CompletedAt
	}
	return e.Now
}

// The bounds of Backoff, and the wait after a provider refused our credential or named a used-up quota.
const (
	backoffFirst  = 5 * time.Second
	backoffMost   = 15 * time.Minute
	backoffRefuse = 30 * time.Minute
)

// Backoff is the wait before the next try of a step that failed attempts times: 5 s, doubled each time, at most 15 min.
func Backoff(attempts int) time.Duration {
	wait := backoffFirst
	for range attempts - 1 {
		if wait *= 2; wait >= backoffMost {
			return backoffMost
		}
	}
	return wait
}

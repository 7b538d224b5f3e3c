package sandbox

import (
	"time"

	"automation/models"
)

// What is decided about the history in a box before the box goes (design section 9). A suspend, and a delete by hand, of a
// cancelled run or with delay 0, make one try among their preparing steps. A sweep, and the end of a run whose box cannot be
// suspended, are patient: three tries within an hour, for which a suspended box is woken, and then it goes all the same.

// exportMost is how often a patient delete tries.
const exportMost = 3

// exportAgain is how long after the first and the second failed try the next one is made.
var exportAgain = []time.Duration{5 * time.Minute, 25 * time.Minute}

// mayHoldHistory reports whether there can be a history in the box that we are to keep and have not: its run's command was
// started in it, and it was seen awake.
func mayHoldHistory(b *models.Sandbox, f Facts) bool {
	return f.Settings.Exports(f.Capabilities) && f.Newest && f.Run != nil && f.Run.StartingAt != nil && b.AwakeEpoch > 0 && b.ExportedEpoch != b.AwakeEpoch
}

// wantsExport reports whether an export is still to be made under the present order.
func wantsExport(b *models.Sandbox, f Facts) bool {
	return mayHoldHistory(b, f) && !tried(b, StepExport)
}

// patient reports whether a delete waits for its export.
func patient(b *models.Sandbox, f Facts) bool {
	return b.Desired == models.WantDeleted && !b.OrderedByHand() && !cancelled(f) && f.Settings.CleanupDelay > 0
}

func cancelled(f Facts) bool { return f.Run != nil && f.Run.Status == models.RunCancelled }

// nextExport is the next step of a patient delete towards an export.
func nextExport(b *models.Sandbox, f Facts) Next {
	if b.ExportTries >= exportMost {
		return nextGone(b, f)
	}
	if at := exportAt(b); at.After(f.Now) {
		return Next{Step: StepWait, At: at}
	}
	if b.Observed == models.SeenSuspended && !f.Capabilities.WakeSuspends {
		return Next{Step: StepWake}
	}
	return Next{Step: StepExport}
}

// exportAt is when the next try of an export may be made.
func exportAt(b *models.Sandbox) time.Time {
	if b.ExportTries == 0 || b.ExportTriedAt == nil {
		return time.Time{}
	}
	return b.ExportTriedAt.Add(exportAgain[min(b.ExportTries, len(exportAgain))-1])
}

// nextGone deletes a box in which nothing more is done. What is lost with it is written down first, unless a person has
// ordered it and was asked.
func nextGone(b *models.Sandbox, f Facts) Next {
	if mayHoldHistory(b, f) && !b.OrderedByHand() && !cancelled(f) && !tried(b, StepLost) {
		return Next{Step: StepLost, Attention: AttentionHistoryLost, Why: "no current export of it could be made"}
	}
	return Next{Step: StepDelete}
}

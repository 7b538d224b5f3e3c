package sandbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

func TestS1_055_DispositionIsOneTableOfFirstMatches(t *testing.T) {
	completed := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	memory := sandbox.Capabilities{Suspend: sandbox.SuspendMemory}
	hour := sandbox.Settings{CleanupDelay: time.Hour}
	due := completed.Add(time.Hour)
	box := func(change func(*models.Sandbox)) *models.Sandbox {
		b := &models.Sandbox{Desired: models.WantRunning}
		if change != nil {
			change(b)
		}
		return b
	}
	kept := box(func(b *models.Sandbox) { b.KeptAt = &completed })
	timedOut, cancelled := models.TimedOutPrefix+"Command still running", "Cancelled by user"

	cases := []struct {
		name     string
		box      *models.Sandbox
		outcome  models.Outcome
		alive    bool
		settings sandbox.Settings
		caps     sandbox.Capabilities
		want     models.Decision
	}{
		{"S1-053 local mode has no box: nothing is stamped, paused or deleted", nil, models.Outcome{Status: models.RunCompleted}, false, hour, memory, models.Decision{Box: models.BoxNothing}},
		{"deletion that is ordered stays so, without a stamp", box(func(b *models.Sandbox) { b.Desired = models.WantDeleted }), models.Outcome{Status: models.RunCompleted}, false, hour, memory, models.Decision{Box: models.BoxNothing}},
		{"S1-023 cancel deletes at once, delay or not, without a stamp", box(nil), models.Outcome{Status: models.RunCancelled, ErrorDetail: &cancelled}, false, hour, memory, models.Decision{Box: models.BoxDelete}},
		{"cancel beats keep_alive", box(nil), models.Outcome{Status: models.RunCancelled}, true, hour, memory, models.Decision{Box: models.BoxDelete}},
		{"cancel beats keep", kept, models.Outcome{Status: models.RunCancelled}, false, hour, memory, models.Decision{Box: models.BoxDelete}},
		{"skipped is deleted", box(nil), models.Outcome{Status: models.RunSkipped}, true, hour, memory, models.Decision{Box: models.BoxDelete}},
		{"failed before its command started is deleted", box(nil), models.Outcome{Status: models.RunFailed, NotStarted: true}, true, hour, memory, models.Decision{Box: models.BoxDelete}},
		{"S1-020 keep_alive is never stamped, paused or deleted; it beats a delay", box(nil), models.Outcome{Status: models.RunCompleted}, true, hour, memory, models.Decision{Box: models.BoxNothing}},
		{"S1-020 keep_alive beats delay 0", box(nil), models.Outcome{Status: models.RunFailed}, true, sandbox.Settings{}, memory, models.Decision{Box: models.BoxNothing}},
		{"a kept box stays as it is", kept, models.Outcome{Status: models.RunCompleted}, false, hour, memory, models.Decision{Box: models.BoxNothing}},
		{"S1-005 S1-016 delay 0 deletes, no stamp, no pause", box(nil), models.Outcome{Status: models.RunCompleted}, false, sandbox.Settings{}, memory, models.Decision{Box: models.BoxDelete}},
		{"S0-126 a backend that cannot suspend deletes, with a note", box(nil), models.Outcome{Status: models.RunCompleted}, false, hour, sandbox.Capabilities{Suspend: sandbox.SuspendNone}, models.Decision{Box: models.BoxDelete, Note: sandbox.NoteCannotSuspend}},
		{"S1-014 S1-011 completed: suspend, due at completed_at + delay", box(nil), models.Outcome{Status: models.RunCompleted}, false, hour, memory, models.Decision{Box: models.BoxSuspend, Due: &due}},
		{"S1-014 failed by callback: the same", box(nil), models.Outcome{Status: models.RunFailed}, false, hour, memory, models.Decision{Box: models.BoxSuspend, Due: &due}},
		{"S1-024 timed out: the same", box(nil), models.Outcome{Status: models.RunFailed, ErrorDetail: &timedOut}, false, hour, memory, models.Decision{Box: models.BoxSuspend, Due: &due}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			run := &models.Run{Status: c.outcome.Status, CompletedAt: &completed}
			got := sandbox.Disposition(models.Ending{Run: run, Outcome: c.outcome, KeepAlive: c.alive, Box: c.box, Now: completed.Add(time.Minute)}, c.settings, c.caps)
			require.Equal(t, c.want, got)
		})
	}
}

func TestS1_017_ReconcileStampsFromTheNewCompletion(t *testing.T) {
	first := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	again := first.Add(20 * time.Minute)
	e := models.Ending{
		Run: &models.Run{Status: models.RunCompleted, CompletedAt: &again}, Outcome: models.Outcome{Status: models.RunCompleted},
		Box: &models.Sandbox{Desired: models.WantSuspended}, Reconcile: true, Now: again,
	}
	got := sandbox.Disposition(e, sandbox.Settings{CleanupDelay: time.Hour}, sandbox.Capabilities{Suspend: sandbox.SuspendDisk})
	require.Equal(t, models.BoxSuspend, got.Box)
	require.Equal(t, again.Add(time.Hour), *got.Due)
}

func TestBackoffDoublesToABound(t *testing.T) {
	require.Equal(t, 5*time.Second, sandbox.Backoff(0))
	require.Equal(t, 5*time.Second, sandbox.Backoff(1))
	require.Equal(t, 10*time.Second, sandbox.Backoff(2))
	require.Equal(t, 40*time.Second, sandbox.Backoff(4))
	require.Equal(t, 15*time.Minute, sandbox.Backoff(9))
	require.Equal(t, 15*time.Minute, sandbox.Backoff(1<<40))
}

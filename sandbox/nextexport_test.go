package sandbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

// due is a suspended box that a sweep has ordered deleted, and whose history was not exported when it was suspended.
func due(change ...func(*models.Sandbox)) *models.Sandbox {
	return row(models.WantDeleted, models.SeenSuspended, append([]func(*models.Sandbox){func(b *models.Sandbox) {
		b.OrderedBy, b.OrderReason = "janitor", "due"
	}}, change...)...)
}

func TestS0_155_WhatADeleteDoesAboutAHistoryThatIsNotExported(t *testing.T) {
	byHand := func(b *models.Sandbox) { b.OrderedBy, b.OrderReason = "user:ana", "deleted by hand" }
	tries := func(n int, last time.Duration) func(*models.Sandbox) {
		return func(b *models.Sandbox) { b.ExportTries, b.ExportTriedAt = n, at(last) }
	}
	running := func(b *models.Sandbox) {
		b.Observed, b.OutputEpoch = models.SeenRunning, 1
	}
	cases := []struct {
		name string
		box  *models.Sandbox
		f    func(*sandbox.Facts)
		want sandbox.Next
	}{
		{"a sweep wakes it", due(), nil, sandbox.Next{Step: sandbox.StepWake}},
		{"a plan that a person applies is a sweep", due(byHand, func(b *models.Sandbox) { b.OrderReason = "sweep 019f" }), nil, sandbox.Next{Step: sandbox.StepWake}},
		{"what is current is not taken again", due(func(b *models.Sandbox) { b.ExportedEpoch = 1 }), nil, sandbox.Next{Step: sandbox.StepDelete}},
		{"awake, it is exported", due(running), nil, sandbox.Next{Step: sandbox.StepExport}},
		{"not woken where that may suspend another box", due(), func(f *sandbox.Facts) { f.Capabilities.WakeSuspends = true }, sandbox.Next{Step: sandbox.StepExport}},
		{"after the first failed try a wait", due(tries(1, 0)), nil, sandbox.Next{Step: sandbox.StepWait, At: t0.Add(5 * time.Minute)}},
		{"after the second a longer one", due(tries(2, 0)), nil, sandbox.Next{Step: sandbox.StepWait, At: t0.Add(25 * time.Minute)}},
		{"then another try", due(tries(2, -25*time.Minute)), nil, sandbox.Next{Step: sandbox.StepWake}},
		{"after the third it is lost", due(tries(3, 0)), nil, sandbox.Next{Step: sandbox.StepLost, Attention: "history_lost", Why: "no current export of it could be made"}},
		{"and goes", due(tries(3, 0), func(b *models.Sandbox) { b.Tried = []string{"history lost"} }), nil, sandbox.Next{Step: sandbox.StepDelete}},
		{"S0-126 the end of a run whose box cannot be suspended is as patient", due(running, tries(1, 0), func(b *models.Sandbox) { b.OrderedBy = "callback" }), func(f *sandbox.Facts) { f.Capabilities.Suspend = sandbox.SuspendNone }, sandbox.Next{Step: sandbox.StepWait, At: t0.Add(5 * time.Minute)}},
		{"a person was asked: not woken, not lost", due(byHand), nil, sandbox.Next{Step: sandbox.StepDelete}},
		{"a person's delete of a box that runs makes a try", due(running, byHand), nil, sandbox.Next{Step: sandbox.StepExport}},
		{"and one", due(running, byHand, func(b *models.Sandbox) { b.Tried = []string{"export"} }), nil, sandbox.Next{Step: sandbox.StepDelete}},
		{"a cancelled run makes one within its 15 seconds", due(running), func(f *sandbox.Facts) { f.Run.Status = models.RunCancelled }, sandbox.Next{Step: sandbox.StepExport}},
		{"and none after them", due(running), func(f *sandbox.Facts) { f.Run.Status, f.Now = models.RunCancelled, t0.Add(15*time.Second) }, sandbox.Next{Step: sandbox.StepDelete}},
		{"delay 0 exports nothing by itself", due(running), func(f *sandbox.Facts) { f.Settings.CleanupDelay = 0 }, sandbox.Next{Step: sandbox.StepDelete}},
		{"delay 0 makes one try where exports are on", due(running), func(f *sandbox.Facts) { f.Settings.CleanupDelay, f.Settings.Export = 0, sandbox.ExportOn }, sandbox.Next{Step: sandbox.StepExport}},
		{"S1-049 a provider that keeps the history itself is left alone", due(), func(f *sandbox.Facts) { f.Capabilities.KeepsHistory = true }, sandbox.Next{Step: sandbox.StepDelete}},
		{"but for exports that are on", due(), func(f *sandbox.Facts) { f.Capabilities.KeepsHistory, f.Settings.Export = true, sandbox.ExportOn }, sandbox.Next{Step: sandbox.StepWake}},
		{"off is off", due(), func(f *sandbox.Facts) { f.Settings.Export = sandbox.ExportOff }, sandbox.Next{Step: sandbox.StepDelete}},
		{"no history without a command", due(), func(f *sandbox.Facts) { f.Run.StartingAt = nil }, sandbox.Next{Step: sandbox.StepDelete}},
		{"none in a box that another attempt replaced", due(), func(f *sandbox.Facts) { f.Newest = false }, sandbox.Next{Step: sandbox.StepDelete}},
		{"none in a box that was never awake", due(func(b *models.Sandbox) { b.AwakeEpoch = 0 }), nil, sandbox.Next{Step: sandbox.StepDelete}},
		{"S0-039 a provider that was first is not passed over", due(func(b *models.Sandbox) { b.Observed = models.SeenMissing }), nil, sandbox.Next{Step: sandbox.StepLost, Attention: "history_lost", Why: "no current export of it could be made"}},
		{"one that is waking is waited for", due(func(b *models.Sandbox) { b.Observed = models.SeenProvisioning }), nil, sandbox.Next{Step: sandbox.StepExport}},
		{"one that never was awake is not", due(func(b *models.Sandbox) { b.Observed, b.AwakeEpoch = models.SeenProvisioning, 0 }), nil, sandbox.Next{Step: sandbox.StepDelete}},
		{"a repeated try is preceded by a look", due(running, tries(1, -time.Hour), func(b *models.Sandbox) { b.NextStepAt = at(time.Minute) }), func(f *sandbox.Facts) { f.Now = t0.Add(time.Minute) }, sandbox.Next{Step: sandbox.StepInspect}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := facts()
			if c.f != nil {
				c.f(&f)
			}
			require.Equal(t, c.want, sandbox.NextStep(c.box, f))
		})
	}
}

package sandbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
)

var t0 = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) *time.Time {
	when := t0.Add(d)
	return &when
}

// row is a box ordered at t0 and seen a second later, awake once, everything before a suspend still to be done.
func row(desired models.Desired, observed models.Observed, change ...func(*models.Sandbox)) *models.Sandbox {
	b := &models.Sandbox{
		Desired: desired, Observed: observed, OrderedAt: t0, ObservedAt: at(time.Second), NextStepAt: at(time.Second),
		AnsweredAt: at(0), PrepareUntil: at(time.Minute), AwakeEpoch: 1, CreateSentAt: at(-time.Hour), CreateEndedAt: at(-time.Hour),
		Identities: []*models.Identity{{Kind: models.IdentityBox, ProviderID: "p"}},
	}
	for _, c := range change {
		c(b)
	}
	return b
}

// facts are of a finished run whose command was started, two seconds after the order.
func facts(change ...func(*sandbox.Facts)) sandbox.Facts {
	f := sandbox.Facts{
		Now:          t0.Add(2 * time.Second),
		Capabilities: sandbox.Capabilities{Suspend: sandbox.SuspendMemory, List: true, Labels: true},
		Settings:     sandbox.Settings{CleanupDelay: time.Hour},
		Run:          &models.Run{Status: models.RunCompleted, StartingAt: at(-time.Minute)},
		Newest:       true,
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func TestNextStepOfAllPairsOfDesiredAndObserved(t *testing.T) {
	const (
		running, suspended, deleted = models.WantRunning, models.WantSuspended, models.WantDeleted
	)
	pairs := []struct {
		desired  models.Desired
		observed models.Observed
		want     sandbox.Step
	}{
		{running, models.SeenProvisioning, sandbox.StepInspect},
		{running, models.SeenRunning, sandbox.StepRest},
		{running, models.SeenSuspended, sandbox.StepResume},
		{running, models.SeenDeleting, sandbox.StepInspect},
		{running, models.SeenDeleted, sandbox.StepRest},
		{running, models.SeenMissing, sandbox.StepRest},
		{running, models.SeenFailed, sandbox.StepOrder},

		{suspended, models.SeenProvisioning, sandbox.StepInspect},
		{suspended, models.SeenRunning, sandbox.StepQuiesce},
		{suspended, models.SeenSuspended, sandbox.StepRest},
		{suspended, models.SeenDeleting, sandbox.StepInspect},
		{suspended, models.SeenDeleted, sandbox.StepRest},
		{suspended, models.SeenMissing, sandbox.StepRest},
		{suspended, models.SeenFailed, sandbox.StepOrder},

		{deleted, models.SeenProvisioning, sandbox.StepExport}, // it was awake before, and wakes again
		{deleted, models.SeenRunning, sandbox.StepQuiesce},
		{deleted, models.SeenSuspended, sandbox.StepWake}, // its history is not exported yet
		{deleted, models.SeenDeleting, sandbox.StepInspect},
		{deleted, models.SeenDeleted, sandbox.StepRest},
		{deleted, models.SeenMissing, sandbox.StepLost},
		{deleted, models.SeenFailed, sandbox.StepLost},
	}
	require.Len(t, pairs, 21)
	for _, p := range pairs {
		t.Run(string(p.desired)+" and seen "+string(p.observed), func(t *testing.T) {
			require.Equal(t, p.want, sandbox.NextStep(row(p.desired, p.observed), facts()).Step)
		})
	}
}

func TestAnOrderNewerThanTheLastObservationStartsWithALook(t *testing.T) {
	old := func(b *models.Sandbox) { b.ObservedAt, b.ExportedEpoch = at(-time.Second), 1 }
	for _, desired := range []models.Desired{models.WantRunning, models.WantSuspended, models.WantDeleted} {
		for _, observed := range []models.Observed{models.SeenRunning, models.SeenSuspended, models.SeenFailed} {
			require.Equal(t, sandbox.StepInspect, sandbox.NextStep(row(desired, observed, old), facts()).Step, "%s %s", desired, observed)
		}
	}
	looked := facts(func(f *sandbox.Facts) { f.Looked = true })
	require.Equal(t, sandbox.StepDelete, sandbox.NextStep(row(models.WantDeleted, models.SeenSuspended, old), looked).Step)
	blind := facts(func(f *sandbox.Facts) { f.Blind = true })
	require.Equal(t, sandbox.StepDelete, sandbox.NextStep(row(models.WantDeleted, models.SeenSuspended, old), blind).Step,
		"a look that fails does not hold up a delete")
}

func TestAResumeWaitsForASuspendThatMayBeUnderWayUntilItHasLookedOnce(t *testing.T) {
	sent := func(b *models.Sandbox) { b.ObservedAt, b.Tried = at(-time.Second), []string{models.MarkSuspendSent} }
	seen := func(b *models.Sandbox) { b.ObservedAt = at(time.Second) }
	for _, observed := range []models.Observed{models.SeenRunning, models.SeenSuspended} {
		require.Equal(t, sandbox.StepAwait, sandbox.NextStep(row(models.WantRunning, observed, sent), facts()).Step, observed)
	}
	never := func(b *models.Sandbox) { b.ObservedAt = nil }
	require.Equal(t, sandbox.StepAwait, sandbox.NextStep(row(models.WantRunning, models.SeenRunning, sent, never), facts()).Step)
	require.Equal(t, sandbox.StepRest, sandbox.NextStep(row(models.WantRunning, models.SeenRunning, sent, seen), facts()).Step)
	require.Equal(t, sandbox.StepResume, sandbox.NextStep(row(models.WantRunning, models.SeenSuspended, sent, seen), facts()).Step)
	require.Equal(t, sandbox.StepInspect, sandbox.NextStep(row(models.WantSuspended, models.SeenRunning, sent), facts()).Step)
}

func TestARepeatIsPrecededByALookButNotThatOfADelete(t *testing.T) {
	due := func(b *models.Sandbox) { b.NextStepAt, b.ExportedEpoch = at(10*time.Second), 1 }
	require.Equal(t, sandbox.StepInspect, sandbox.NextStep(row(models.WantSuspended, models.SeenRunning, due), facts()).Step)
	require.Equal(t, sandbox.StepInspect, sandbox.NextStep(row(models.WantRunning, models.SeenSuspended, due), facts()).Step)
	require.Equal(t, sandbox.StepInspect, sandbox.NextStep(row(models.WantRunning, models.SeenRunning, due), facts()).Step, "nudged")
	require.Equal(t, sandbox.StepDelete, sandbox.NextStep(row(models.WantDeleted, models.SeenSuspended, due), facts()).Step)
}

func TestS0_127_StepsBeforeASuspendAreOutputReclaimExport(t *testing.T) {
	b := row(models.WantSuspended, models.SeenRunning)
	f := facts()
	var order []sandbox.Step
	for range 6 {
		step := sandbox.NextStep(b, f).Step
		order = append(order, step)
		switch step {
		case sandbox.StepQuiesce:
			f.Quiesced = true
		case sandbox.StepOutput:
			b.OutputEpoch = b.AwakeEpoch
		case sandbox.StepReclaim:
			b.ReclaimedEpoch = b.AwakeEpoch
		case sandbox.StepExport:
			b.ExportedEpoch = b.AwakeEpoch
		default: // a provider call
		}
	}
	require.Equal(t, []sandbox.Step{sandbox.StepQuiesce, sandbox.StepOutput, sandbox.StepReclaim, sandbox.StepExport, sandbox.StepSuspend, sandbox.StepSuspend}, order)
}

func TestBR_33_S0_033_StepsBeforeADeleteAreOutputAndExport(t *testing.T) {
	b, f := row(models.WantDeleted, models.SeenRunning), facts(func(f *sandbox.Facts) { f.Quiesced = true })
	require.Equal(t, sandbox.StepOutput, sandbox.NextStep(b, f).Step)
	b.OutputEpoch = 1
	require.Equal(t, sandbox.StepExport, sandbox.NextStep(b, f).Step, "what is reclaimed would go with the box anyway")
	b.ExportedEpoch = 1
	require.Equal(t, sandbox.StepDelete, sandbox.NextStep(b, f).Step)
}

func TestPreparingStepsAreBestEffort(t *testing.T) {
	suspended := func(change ...func(*models.Sandbox)) *models.Sandbox {
		return row(models.WantSuspended, models.SeenRunning, change...)
	}
	tried := func(names ...string) func(*models.Sandbox) { return func(b *models.Sandbox) { b.Tried = names } }
	now := func(d time.Duration) func(*sandbox.Facts) {
		return func(f *sandbox.Facts) { f.Now = t0.Add(d) }
	}
	cases := []struct {
		name string
		box  *models.Sandbox
		f    sandbox.Facts
		want sandbox.Step
	}{
		{"a failed one is not repeated", suspended(tried("quiesce", "output")), facts(), sandbox.StepReclaim},
		{"S0-128 C-008 a failed reclaim does not block", suspended(tried("quiesce", "output", "reclaim", "export")), facts(), sandbox.StepSuspend},
		{"none after the box could not be reached", suspended(tried("unreachable")), facts(), sandbox.StepSuspend},
		{"none after the budget of a minute", suspended(), facts(now(time.Minute)), sandbox.StepSuspend},
		{"within the budget", suspended(), facts(now(59 * time.Second)), sandbox.StepQuiesce},
		{"15 seconds after cancel", row(models.WantDeleted, models.SeenRunning), facts(now(15*time.Second), func(f *sandbox.Facts) { f.Run.Status = models.RunCancelled }), sandbox.StepDelete},
		{"15 seconds with delay 0", row(models.WantDeleted, models.SeenRunning), facts(now(15*time.Second), func(f *sandbox.Facts) { f.Settings.CleanupDelay = 0 }), sandbox.StepDelete},
		{"a minute for other deletes", row(models.WantDeleted, models.SeenRunning), facts(now(15 * time.Second)), sandbox.StepQuiesce},
		{"no reclaim where it is off", suspended(func(b *models.Sandbox) { b.OutputEpoch = 1 }), facts(func(f *sandbox.Facts) { f.Settings.Reclaim = sandbox.ReclaimOff }), sandbox.StepExport},
		{"no export where it is off", suspended(func(b *models.Sandbox) { b.OutputEpoch, b.ReclaimedEpoch = 1, 1 }), facts(func(f *sandbox.Facts) { f.Settings.Export = sandbox.ExportOff }), sandbox.StepSuspend},
		{"no export where the provider keeps the history", suspended(func(b *models.Sandbox) { b.OutputEpoch, b.ReclaimedEpoch = 1, 1 }), facts(func(f *sandbox.Facts) { f.Capabilities.KeepsHistory = true }), sandbox.StepSuspend},
		{"no output of a command that never started", suspended(), facts(func(f *sandbox.Facts) { f.Run.StartingAt = nil }), sandbox.StepReclaim},
		{"no output of a box that another attempt replaced", suspended(), facts(func(f *sandbox.Facts) { f.Newest = false }), sandbox.StepReclaim},
		{"no output twice: nothing comes after an exit", suspended(func(b *models.Sandbox) { b.AwakeEpoch, b.OutputEpoch = 2, 1 }), facts(func(f *sandbox.Facts) { f.Run.OutputAt, f.Run.ExitCode = at(0), new(int) }), sandbox.StepReclaim},
		{"a box that was never seen awake has nothing to prepare", suspended(func(b *models.Sandbox) { b.AwakeEpoch = 0 }), facts(), sandbox.StepSuspend},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, sandbox.NextStep(c.box, c.f).Step) })
	}
}

func TestASuspendWaitsForAnAttachmentAtMostAnHour(t *testing.T) {
	attached := func(now time.Duration) sandbox.Facts {
		return facts(func(f *sandbox.Facts) { f.Attached, f.Now = true, t0.Add(now) })
	}
	b := row(models.WantSuspended, models.SeenRunning, func(b *models.Sandbox) { b.PrepareUntil = nil })
	next := sandbox.NextStep(b, attached(time.Minute))
	require.Equal(t, sandbox.Next{Step: sandbox.StepWait, At: t0.Add(90 * time.Second)}, next)
	b.NextStepAt = at(50 * time.Second)
	require.Equal(t, next, sandbox.NextStep(b, attached(time.Minute)), "the provider is not asked meanwhile")
	next = sandbox.NextStep(b, attached(time.Hour-time.Second))
	require.Equal(t, sandbox.Next{Step: sandbox.StepWait, At: t0.Add(time.Hour)}, next, "not beyond the hour")
	require.Equal(t, sandbox.StepInspect, sandbox.NextStep(b, attached(time.Hour)).Step)
	require.Equal(t, sandbox.StepQuiesce, sandbox.NextStep(row(models.WantDeleted, models.SeenRunning), attached(time.Second)).Step, "deletes do not wait")
}

func TestARepeatedSuspendGivesWayToAUser(t *testing.T) {
	repeat := func(change ...func(*models.Sandbox)) *models.Sandbox {
		return row(models.WantSuspended, models.SeenRunning, append([]func(*models.Sandbox){func(b *models.Sandbox) {
			b.Tried, b.OutputEpoch, b.ReclaimedEpoch, b.ExportedEpoch = []string{"suspend sent"}, 1, 1, 1
		}}, change...)...)
	}
	active := func(d time.Duration) sandbox.Facts {
		return facts(func(f *sandbox.Facts) { f.LastActivity = at(d) })
	}
	require.Equal(t, sandbox.StepGiveWay, sandbox.NextStep(repeat(), active(5*time.Second)).Step, "activity newer than the order")
	require.Equal(t, sandbox.StepSuspend, sandbox.NextStep(repeat(), active(-time.Second)).Step, "older activity")
	require.Equal(t, sandbox.StepSuspend, sandbox.NextStep(repeat(), facts()).Step, "unreadable, for now")

	own := active(5 * time.Second)
	own.Run.OutputAt = at(8 * time.Second)
	require.Equal(t, sandbox.StepSuspend, sandbox.NextStep(repeat(), own).Step, "the end of the run's own command is no user")

	late := facts(func(f *sandbox.Facts) { f.Now = t0.Add(15 * time.Minute) })
	next := sandbox.NextStep(repeat(), late)
	require.Equal(t, sandbox.StepGiveWay, next.Step, "unreadable for 15 minutes since the provider first answered")
	require.Equal(t, sandbox.AttentionSuspend, next.Attention)
	silent := repeat(func(b *models.Sandbox) { b.AnsweredAt = at(10 * time.Minute) })
	require.Equal(t, sandbox.StepSuspend, sandbox.NextStep(silent, late).Step, "an outage of the provider does not count")

	given := repeat(func(b *models.Sandbox) { b.Tried = append(b.Tried, "suspend") })
	require.Equal(t, sandbox.StepRest, sandbox.NextStep(given, active(-time.Second)).Step)
	require.Equal(t, sandbox.StepSuspend, sandbox.NextStep(row(models.WantSuspended, models.SeenRunning, func(b *models.Sandbox) {
		b.OutputEpoch, b.ReclaimedEpoch, b.ExportedEpoch = 1, 1, 1
	}), active(5*time.Second)).Step, "the first suspend of an order asks nobody")
}

func TestBR_26_AFailedBoxIsDeletedOnlyWhenItIsOfNoUse(t *testing.T) {
	failed := row(models.WantSuspended, models.SeenFailed)
	require.Equal(t, sandbox.StepOrder, sandbox.NextStep(failed, facts()).Step)
	for name, next := range map[string]sandbox.Next{
		"run RUNNING": sandbox.NextStep(failed, facts(func(f *sandbox.Facts) { f.Run.Status = models.RunRunning })),
		"keep_alive":  sandbox.NextStep(failed, facts(func(f *sandbox.Facts) { f.KeepAlive = true })),
		"kept":        sandbox.NextStep(row(models.WantSuspended, models.SeenFailed, func(b *models.Sandbox) { b.KeptAt = at(0) }), facts()),
	} {
		require.Equal(t, sandbox.Next{Step: sandbox.StepRest, Attention: sandbox.AttentionFailed}, next, name)
	}
}

func TestAResumeIsNotRepeatedForEver(t *testing.T) {
	b := row(models.WantRunning, models.SeenSuspended, func(b *models.Sandbox) { b.Attempts = 3 })
	require.Equal(t, sandbox.StepResume, sandbox.NextStep(b, facts()).Step)
	next := sandbox.NextStep(b, facts(func(f *sandbox.Facts) { f.Now = t0.Add(16 * time.Minute) }))
	require.Equal(t, sandbox.StepRest, next.Step)
	require.Equal(t, sandbox.AttentionResume, next.Attention)
}

func TestBoxesOfWhichNothingIsNamed(t *testing.T) {
	unnamed := func(desired models.Desired, change ...func(*models.Sandbox)) *models.Sandbox {
		return row(desired, models.SeenProvisioning, append([]func(*models.Sandbox){func(b *models.Sandbox) { b.Identities = nil }}, change...)...)
	}
	neverSent := func(b *models.Sandbox) { b.CreateSentAt, b.CreateEndedAt = nil, nil }
	searched := func(n int) func(*models.Sandbox) {
		return func(b *models.Sandbox) { b.Searches, b.CreateEndedAt = n, at(0) }
	}
	busy := facts(func(f *sandbox.Facts) { f.Run.Status = models.RunRunning })
	noLabels := facts(func(f *sandbox.Facts) { f.Capabilities.Labels = false })

	require.Equal(t, sandbox.StepRest, sandbox.NextStep(unnamed(models.WantRunning), busy).Step, "dispatch decides about its attempts")
	require.Equal(t, sandbox.StepClose, sandbox.NextStep(unnamed(models.WantDeleted, neverSent), facts()).Step, "Create was never sent")
	require.Equal(t, sandbox.StepUnaccounted, sandbox.NextStep(unnamed(models.WantDeleted), noLabels).Step)
	require.Equal(t, sandbox.StepSearch, sandbox.NextStep(unnamed(models.WantDeleted, searched(0)), facts()).Step)
	for n, after := range []time.Duration{0, time.Minute, 5 * time.Minute, 15 * time.Minute} {
		before := facts(func(f *sandbox.Facts) { f.Now = t0.Add(after - time.Second) })
		require.Equal(t, sandbox.Next{Step: sandbox.StepWait, At: t0.Add(after)}, sandbox.NextStep(unnamed(models.WantDeleted, searched(n)), before))
		then := facts(func(f *sandbox.Facts) { f.Now = t0.Add(after) })
		require.Equal(t, sandbox.StepSearch, sandbox.NextStep(unnamed(models.WantDeleted, searched(n)), then).Step)
	}
	missing := row(models.WantDeleted, models.SeenMissing, func(b *models.Sandbox) { b.Identities = nil })
	require.Equal(t, sandbox.StepRest, sandbox.NextStep(missing, facts()).Step, "a row that never had an identity is never deleted")
	unaccounted := row(models.WantDeleted, models.SeenMissing, func(b *models.Sandbox) { b.Identities, b.CreateEndedAt = nil, at(0) })
	soon := facts(func(f *sandbox.Facts) { f.Capabilities.Labels, f.Now = false, t0.Add(10*time.Minute-time.Second) })
	require.Equal(t, sandbox.Next{Step: sandbox.StepWait, At: t0.Add(10 * time.Minute)}, sandbox.NextStep(unaccounted, soon))
	due := facts(func(f *sandbox.Facts) { f.Capabilities.Labels, f.Now = false, t0.Add(10*time.Minute) })
	require.Equal(t, sandbox.StepAccount, sandbox.NextStep(unaccounted, due).Step)
	unaccounted.Searches = 1
	require.Equal(t, sandbox.StepRest, sandbox.NextStep(unaccounted, due).Step, "its candidates are looked for once")
	gone := row(models.WantDeleted, models.SeenRunning, func(b *models.Sandbox) { b.Identities[0].GoneAt = at(0) })
	require.Equal(t, sandbox.StepClose, sandbox.NextStep(gone, facts()).Step, "deleted when every identity is gone")
}

func TestS0_012_S0_019_S0_131_S0_132_S0_147_AtRestNothingIsDueWhateverTheProviderCanDoItself(t *testing.T) {
	native := sandbox.Timer{Supported: true, Action: "suspend", Default: 15 * time.Minute}
	for name, c := range map[string]sandbox.Capabilities{
		"pauses idle boxes itself":     {Suspend: sandbox.SuspendMemory, NativeIdle: native},
		"deletes by itself":            {Suspend: sandbox.SuspendDisk, NativeExpiry: native},
		"counts a look as activity":    {Suspend: sandbox.SuspendSnapshot, LookingCounts: true},
		"knows nothing of the kind":    {Suspend: sandbox.SuspendMemory},
		"a look wakes, so none is had": {Suspend: sandbox.SuspendMemory, LookingWakes: true},
	} {
		for _, observed := range []models.Observed{models.SeenRunning, models.SeenSuspended} {
			b := row(models.Desired(observed), observed)
			got := sandbox.NextStep(b, facts(func(f *sandbox.Facts) { f.Capabilities = c }))
			require.Equal(t, sandbox.Next{Step: sandbox.StepRest}, got, name)
		}
	}
}

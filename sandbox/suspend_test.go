package sandbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

// paused is a box whose run is finished and that is suspended with its output stored.
func (r *rig) paused() (*models.Run, *models.Sandbox) {
	r.Helper()
	run, box := r.running()
	r.exit(run, box, "out", 0)
	r.finish(run, models.Outcome{})
	r.settle()
	return r.run(run.ID), r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
}

func TestS0_119_S0_123_S0_124_S0_148_SuspendAndResumeInEveryKind(t *testing.T) {
	kinds := map[string]struct {
		quirks   sandboxtest.Quirks
		sameID   bool
		sameKey  bool
		identity int // how many the box has had after a resume
	}{
		"S0-122 in place with memory: the id is unchanged":                    {sandboxtest.Quirks{}, true, true, 1},
		"S0-121 disk only: the session key is rotated and the new one stored": {sandboxtest.Quirks{Suspend: sandbox.SuspendDisk, RotateKey: true}, true, false, 1},
		"S0-120 snapshot and recreate: new id and URL, same workspace":        {sandboxtest.Quirks{Suspend: sandbox.SuspendSnapshot}, false, false, 3},
		"S0-154 new identity on resume: nothing is lost track of":             {sandboxtest.Quirks{NewIdentity: true, RotateKey: true}, false, false, 2},
		"accepted, shown later": {sandboxtest.Quirks{SlowSuspend: 3, SlowResume: 3}, true, true, 1},
	}
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			each(t, k.quirks, withDelay, func(r *rig) {
				run, before := r.paused()
				for round := range 2 { // BR-31: more than one round
					r.order(before.ID, models.WantRunning, "user:u")
					r.settle()
					after := r.is(before.ID, models.WantRunning, models.SeenRunning, true)
					require.EqualValues(r, 2+round, after.AwakeEpoch, "a seen wake")
					require.Nil(r, after.SuspendedAt)
					if round == 0 {
						require.Len(r, after.Identities, k.identity, "the history of identities is kept")
						require.Equal(r, k.sameKey, before.SessionKey == after.SessionKey)
						require.Equal(r, k.sameID, before.Identities[0].ProviderID == r.fake.Identity(before.ID).ProviderID)
					}
					require.Equal(r, r.fake.Identity(before.ID).URL, after.URL, "BR-30: the first request after a resume goes to the new address")
					require.Equal(r, r.fake.Identity(before.ID).Key, after.SessionKey)
					if !k.sameID {
						require.Empty(r, r.agent(before.ID).Requests(), "S0-123: the in-box part hears nothing of its new identity")
					}
					require.NoError(r, sandbox.AgentOf(after, r.agents.Client()).Ready(r.Context()))
					r.order(before.ID, models.WantSuspended, "user:u")
					r.settle()
					r.is(before.ID, models.WantSuspended, models.SeenSuspended, true)
				}
				require.NotNil(r, r.run(run.ID).CleanupDueAt, "S1-046: resuming does not move the stamp")
				require.Equal(r, run.CleanupDueAt, r.run(run.ID).CleanupDueAt)

				r.order(before.ID, models.WantDeleted, "janitor")
				r.settle()
				b := r.is(before.ID, models.WantDeleted, models.SeenDeleted, true)
				require.Empty(r, b.Open())
				require.Empty(r, r.fake.Alive(), "all identities are gone, snapshots too")
			})
		})
	}
}

func TestAResumeOrderedWhileASuspendIsOnTheWireEndsInRunning(t *testing.T) {
	for name, quirks := range map[string]sandboxtest.Quirks{"shown at once": {}, "shown later": {SlowSuspend: 5}, "snapshot": {Suspend: sandbox.SuspendSnapshot}} {
		t.Run(name, func(t *testing.T) {
			each(t, quirks, withDelay, func(r *rig) {
				run, box := r.running()
				r.exit(run, box, "", 0)
				hold := r.fake.Hold("Suspend")
				r.finish(run, models.Outcome{})
				done := make(chan error, 1)
				go func() {
					_, err := r.settler.Pass(r.Context(), place)
					done <- err
				}()
				<-hold.Entered
				r.order(box.ID, models.WantRunning, "user:u")
				n, err := r.settler.Pass(r.Context(), place)
				require.NoError(r, err)
				require.Zero(r, n, "the box is leased")
				hold.Release()
				require.NoError(r, <-done)
				r.settle()
				r.is(box.ID, models.WantRunning, models.SeenRunning, true)
				require.Equal(r, models.SeenRunning, r.fake.State(box.ID))
				require.Equal(r, 1, r.fake.Count("Resume"))
			})
		})
	}
}

// The process that asked for the suspend is gone, and the provider still shows the box running when the resume is looked after.
func TestAResumeAfterACrashWaitsForTheSuspendThatIsUnderWay(t *testing.T) {
	each(t, sandboxtest.Quirks{SlowSuspend: 5}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		hold := r.fake.HoldAnswer("Suspend")
		r.finish(run, models.Outcome{})
		ctx, die := cancelable(r.T)
		done := make(chan error, 1)
		go func() {
			_, err := r.settler.Pass(ctx, place)
			done <- err
		}()
		<-hold.Entered
		die()
		hold.Release()
		<-done
		require.NoError(r, r.store.ReleaseAll(r.Context()))
		r.is(box.ID, models.WantSuspended, models.SeenRunning, false)

		r.order(box.ID, models.WantRunning, "user:u")
		r.settle()
		r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Equal(r, models.SeenRunning, r.fake.State(box.ID), "it is what the provider comes to, too")
		require.Equal(r, 1, r.fake.Count("Suspend"))
		require.Equal(r, 1, r.fake.Count("Resume"))
		r.order(box.ID, models.WantRunning, "user:u")
		r.settle()
		require.Equal(r, 1, r.fake.Count("Resume"), "nothing is waited for any more")
	})
}

func TestAResumeThatFindsNoSuspendUnderWayIsDone(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		r.config.Timing.Shows = 50 * time.Millisecond
		r.settler = sandbox.NewSettler(r.config)
		run, box := r.running()
		r.exit(run, box, "", 0)
		r.fake.Fail("Suspend", &sandbox.ProviderError{Status: 503})
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenRunning, false)
		r.order(box.ID, models.WantRunning, "user:u")
		r.settle()
		r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Zero(r, r.fake.Count("Resume"))
	})
}

func TestASuspendOrderGivesWayToAUser(t *testing.T) {
	each(t, sandboxtest.Quirks{Activity: true}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		r.fake.Fail("Suspend", &sandbox.ProviderError{Status: 500, Body: "try later"})
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenRunning, false)
		r.fake.Active(box.ID, r.clock.Now().Add(10*time.Second))
		r.settleFor(time.Hour)
		b := r.is(box.ID, models.WantSuspended, models.SeenRunning, true)
		require.Equal(r, 1, r.fake.Count("Suspend"), "the user wins")
		require.Empty(r, b.NeedsAttention)
		require.Contains(r, r.events(box.ID), "suspend_given_up skipped")

		r.order(box.ID, models.WantSuspended, "user:u") // a new order is a new mind
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
	})
}

func TestS0_060_ASuspendThatFailedIsRepeatedWhileNobodyUsesTheBox(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) { // no activity from the provider: the agent server's idle_time
		run, box := r.running()
		r.exit(run, box, "", 0)
		r.agent(box.ID).Idle(time.Hour)
		r.fake.Fail("Suspend", errors.New("reset"), &sandbox.ProviderError{Status: 503}, sandboxtest.ErrLostAnswer)
		r.finish(run, models.Outcome{})
		r.settleFor(5 * time.Minute)
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Equal(r, 4, r.fake.Count("Suspend"))
	})
}

func TestASuspendStopsAfter15MinutesWhereActivityIsUnreadable(t *testing.T) {
	one(t, sandboxtest.Quirks{LookingCounts: true}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		r.fake.FailAlways("Suspend", &sandbox.ProviderError{Status: 409})
		r.finish(run, models.Outcome{})
		r.settleFor(14 * time.Minute)
		r.is(box.ID, models.WantSuspended, models.SeenRunning, false)
		r.settleFor(20 * time.Minute)
		b := r.is(box.ID, models.WantSuspended, models.SeenRunning, true)
		require.Equal(r, sandbox.AttentionSuspend, b.NeedsAttention)
		asked := len(r.agent(box.ID).Requests())
		calls := len(r.fake.Calls())
		r.settleFor(24 * time.Hour)
		require.Len(r, r.agent(box.ID).Requests(), asked, "S0-130, S0-131: zero probes on a timer")
		require.Len(r, r.fake.Calls(), calls)
	})
}

func TestALostAnswerOfASuspendIsFoundByLooking(t *testing.T) {
	each(t, sandboxtest.Quirks{Suspend: sandbox.SuspendSnapshot}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		r.fake.LoseAnswer("Suspend", 1)
		r.finish(run, models.Outcome{})
		r.settleFor(time.Minute)
		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Equal(r, 1, r.fake.Count("Suspend"), "before repeating a suspend the settler inspects")
		require.Len(r, b.Open(), 2, "what was named is stored although the answer was lost")
	})
}

func TestS0_036_AProvidersIdlePauseIsAdoptedNeverFought(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.running()
		r.fake.IdlePause(box.ID)
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		r.settleFor(time.Hour)
		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.EqualValues(r, 1, b.Generation, "adopted: no new order")
		require.Contains(r, r.events(box.ID), "adopted ok")
		require.Zero(r, r.fake.Count("Resume"))

		r.fake.Wake(box.ID) // and the other way round
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		r.settleFor(time.Hour)
		r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Zero(r, r.fake.Count("Suspend"))
	})
}

func TestAStartByHandIsAdoptedWhileTheBoxStillBoots(t *testing.T) {
	for _, by := range []string{models.CreatedByDispatch, models.CreatedByRuntime} {
		t.Run(by, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
				_, box := r.running(func(_ *models.Run, b *models.Sandbox) { b.CreatedBy = by })
				r.fake.IdlePause(box.ID)
				require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
				r.settleFor(time.Hour)
				r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)

				r.fake.Boot(box.ID)
				require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
				r.settle()
				r.is(box.ID, models.WantRunning, models.SeenProvisioning, false)
				r.fake.Wake(box.ID)
				r.settleFor(time.Hour)
				r.is(box.ID, models.WantRunning, models.SeenRunning, true)
				require.Zero(r, r.fake.Count("Suspend"), "it is not fought")
			})
		})
	}
}

func TestAnOrderThatTheProviderForestalledIsDone(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.fake.IdlePause(box.ID)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Zero(r, r.fake.Count("Suspend"))
	})
}

func TestASuspendWaitsForAnAttachment(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "out", 0)
		process := uuid.New()
		attach := func() {
			_, err := r.store.Attach(r.Context(), box.ID, process, r.clock.Now().Add(90*time.Second))
			require.NoError(r, err)
		}
		attach()
		r.finish(run, models.Outcome{})
		r.settle()
		for range 4 {
			r.is(box.ID, models.WantSuspended, models.SeenRunning, false)
			attach()
			r.settleFor(40 * time.Second)
		}
		require.Zero(r, r.fake.Count("Suspend"))
		_, err := r.store.Detach(r.Context(), box.ID, process, r.box(box.ID).AwakeEpoch, r.clock.Now())
		require.NoError(r, err)
		r.settleFor(31 * time.Second)
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.NotNil(r, r.run(run.ID).OutputKey, "the budget of the preparing steps begins after the wait")
	})
}

func TestBR_26_ABoxThatFailsWhilePausedIsDeletedNotParked(t *testing.T) {
	each(t, sandboxtest.Quirks{SlowSuspend: 1000}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		hold := r.fake.HoldAnswer("Suspend")
		r.finish(run, models.Outcome{})
		done := make(chan error, 1)
		go func() {
			_, err := r.settler.Pass(r.Context(), place)
			done <- err
		}()
		<-hold.Entered
		r.fake.Break(box.ID)
		hold.Release()
		require.NoError(r, <-done)
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Empty(r, r.fake.Alive())
		require.Nil(r, r.run(run.ID).CleanupDueAt)
	})
}

func TestAFailedBoxOfARunningRunRestsAndNeedsAttention(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.fake.Break(box.ID)
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		r.settle()
		b := r.is(box.ID, models.WantRunning, models.SeenFailed, true)
		require.Equal(r, sandbox.AttentionFailed, b.NeedsAttention)
		r.finish(run, models.Outcome{Status: models.RunFailed})
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
	})
}

func TestABoxThatVanishedIsMissingAndTheRunIsLeftAlone(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.fake.Vanish(box.ID)
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		r.settle()
		r.is(box.ID, models.WantRunning, models.SeenMissing, true)
		require.Equal(r, models.RunRunning, r.run(run.ID).Status)
		r.finish(run, models.Outcome{Status: models.RunFailed})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenMissing, true)
		r.order(box.ID, models.WantDeleted, "janitor")
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Equal(r, 1, r.fake.Count("Delete"), "a missing box that is ordered deleted gets one Delete")
	})
}

func TestBR_24_CouldNotAskIsNeverNotThere(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.fake.Fail("Inspect", &sandbox.ProviderError{Status: 429}, &sandbox.ProviderError{Status: 503}, sandboxtest.ErrLostAnswer, sandbox.ErrRefused)
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		for range 4 {
			r.settle()
			b := r.is(box.ID, models.WantRunning, models.SeenRunning, false)
			require.NotNil(r, b.LastError)
			require.Equal(r, models.RunRunning, r.run(run.ID).Status)
			r.clock.Advance(b.NextStepAt.Sub(r.clock.Now()))
		}
		require.Equal(r, sandbox.AttentionRefused, r.box(box.ID).NeedsAttention)
		r.settle()
		b := r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Nil(r, b.LastError)
		require.Empty(r, b.NeedsAttention)
	})
}

func TestARefusedResumeIsShownAndNotRepeatedForEver(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.paused()
		r.fake.FailAlways("Resume", sandbox.ErrQuota)
		r.order(box.ID, models.WantRunning, "user:u")
		r.settle()
		require.Equal(r, sandbox.AttentionQuota, r.box(box.ID).NeedsAttention)
		r.settleFor(3 * time.Hour)
		b := r.is(box.ID, models.WantRunning, models.SeenSuspended, true)
		require.Equal(r, sandbox.AttentionResume, b.NeedsAttention)
		require.Less(r, r.fake.Count("Resume"), 10)
	})
}

func TestAProviderThatIsDownForHoursCostsNoOutput(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "out", 0)
		r.finish(run, models.Outcome{})
		for range 2 {
			r.fake.Fail("Inspect", &sandbox.ProviderError{Status: 503})
			r.settle()
			require.Nil(r, r.box(box.ID).PrepareUntil, "the budget begins when the provider answers")
			r.clock.Advance(time.Hour)
		}
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.NotNil(r, r.run(run.ID).OutputAt)
	})
}

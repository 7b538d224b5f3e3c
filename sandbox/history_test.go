package sandbox_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/models/modelstest"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

const (
	talk    = "0198c0de-0000-4000-8000-000000000001"
	another = "0198c0de-0000-4000-8000-000000000002"
	// history is the path of the trajectory of talk.
	history = "/api/file/download-trajectory/" + talk
)

// talked is a run that has ended, in a box with a conversation of three events; the settler has not looked yet.
func (r *rig) talked() (*models.Run, *models.Sandbox) {
	r.Helper()
	run, box := r.running()
	r.agent(box.ID).Converse(sandboxtest.Conversation{ID: talk, Events: 3})
	r.exit(run, box, "out", 0)
	return run, box
}

// sleeping is the box of talked, suspended without an export: the box could not give it.
func (r *rig) sleeping() *models.Sandbox {
	r.Helper()
	run, box := r.talked()
	r.agent(box.ID).Fail(history, http.StatusInternalServerError)
	r.finish(run, models.Outcome{})
	r.settle()
	b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
	require.False(r, b.ExportCurrent())
	require.Nil(r, b.Export)
	require.Contains(r, r.events(box.ID), "exported failed")
	return b
}

// unpacked is the stored export of a box, by name.
func (r *rig) unpacked(b *models.Sandbox) []string {
	r.Helper()
	require.NotNil(r, b.Export)
	packed := []byte(r.blobs.get(b.Export.BlobKey))
	require.Len(r, packed, int(b.Export.Bytes))
	sum := sha256.Sum256(packed)
	require.Equal(r, hex.EncodeToString(sum[:]), b.Export.SHA256)
	archive, err := zip.NewReader(bytes.NewReader(packed), b.Export.Bytes)
	require.NoError(r, err)
	var names []string
	for _, f := range archive.File {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

func TestS0_033_S0_037_S0_051_S0_052_S0_073_S0_127_S0_160_TheHistoryIsStoredBeforeTheBoxIsPausedAndOutlivesIt(t *testing.T) {
	each(t, sandboxtest.Quirks{Suspend: sandbox.SuspendSnapshot}, withDelay, func(r *rig) {
		run, box := r.talked()
		r.agent(box.ID).Converse(sandboxtest.Conversation{ID: another, Events: 1})
		r.finish(run, models.Outcome{})
		r.settle()
		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.True(r, b.ExportCurrent())
		require.Equal(r, []models.ExportedConversation{{ID: talk, Events: 3}, {ID: another, Events: 1}}, b.Export.Conversations)
		require.Equal(r, b.AwakeEpoch, b.Export.AwakeEpoch, "with the time awake that it saw")
		require.Len(r, r.unpacked(b), 8)
		story := r.events(box.ID)
		require.Less(r, slices.Index(story, "reclaimed ok"), slices.Index(story, "exported ok"), "reclaim, export, snapshot")
		require.Less(r, slices.Index(story, "exported ok"), slices.Index(story, "suspended ok"))

		r.order(box.ID, models.WantDeleted, "janitor")
		r.settle()
		b = r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Zero(r, r.fake.Count("Resume"), "what is current is not taken again")
		require.Empty(r, b.NeedsAttention)
		require.Len(r, r.unpacked(b), 8, "S1-049: the history outlives the box")
		require.Empty(r, r.fake.Alive(), "S0-051: the snapshot is gone too")
	})
}

func TestTheConversationOfTheRunIsTakenThoughTheBoxDoesNotListIt(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Converse(sandboxtest.Conversation{ID: talk, Events: 2, Hidden: true})
		conversation := talk
		r.finish(run, models.Outcome{ConversationID: &conversation})
		r.settle()
		require.Equal(r, []models.ExportedConversation{{ID: talk, Events: 2}}, r.box(box.ID).Export.Conversations)
	})
}

func TestABoxWithoutAConversationHasNothingToExport(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		gone := talk // named by the callback, and not there
		r.finish(run, models.Outcome{ConversationID: &gone})
		r.settle()
		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.True(r, b.ExportCurrent(), "nothing is lost with it")
		require.Nil(r, b.Export)
		require.Contains(r, r.events(box.ID), "exported skipped")
		require.Empty(r, r.exports(), "and nothing is left behind")
		d := models.Deletion{Who: "user:u", Why: "test"}
		require.ErrorIs(r, r.store.OrderDeletion(r.Context(), box.ID, d), models.ErrNoCurrentExport, "a delete by hand asks all the same")
		d.LossAccepted = true
		require.NoError(r, r.store.OrderDeletion(r.Context(), box.ID, d))
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
	})
}

// exports are the rows of all exports.
func (r *rig) exports() (all []*models.Export) {
	r.Helper()
	require.NoError(r, r.raw().NewSelect().Model(&all).Scan(r.Context()))
	return all
}

func TestS0_052_ASweepWakesABoxOnceToExportItAndThenDeletesIt(t *testing.T) {
	for name, quirks := range map[string]sandboxtest.Quirks{"in place": {}, "a new identity": {NewIdentity: true, RotateKey: true}} {
		t.Run(name, func(t *testing.T) {
			each(t, quirks, withDelay, func(r *rig) {
				box := r.sleeping()
				r.agent(box.ID).Fail(history, 0)
				r.agents.Converse(sandboxtest.Conversation{ID: talk, Events: 3})
				r.order(box.ID, models.WantDeleted, "janitor")
				r.settle()
				b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
				require.Equal(r, 1, r.fake.Count("Resume"))
				require.Len(r, r.unpacked(b), 5)
				require.Equal(r, b.AwakeEpoch, b.Export.AwakeEpoch)
				require.Empty(r, b.NeedsAttention)
				require.Empty(r, r.fake.Alive())
				require.NotContains(r, r.events(box.ID), "history_lost failed")
			})
		})
	}
}

func TestThreeTriesWithinAnHourThenTheHistoryIsLostAloud(t *testing.T) {
	broken := map[string]func(*rig, *models.Sandbox){
		"the box cannot give it": func(r *rig, _ *models.Sandbox) {},
		"it does not wake":       func(r *rig, _ *models.Sandbox) { r.fake.FailAlways("Resume", &sandbox.ProviderError{Status: 500}) },
	}
	for name, breaks := range broken {
		t.Run(name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
				box := r.sleeping()
				breaks(r, box)
				r.order(box.ID, models.WantDeleted, "janitor")
				r.settleFor(29 * time.Minute)
				b := r.is(box.ID, models.WantDeleted, r.box(box.ID).Observed, false)
				require.Equal(r, 2, b.ExportTries)
				require.Zero(r, r.fake.Count("Delete"), "not while a try is left")
				r.settleFor(31 * time.Minute)
				b = r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
				require.Equal(r, 1, r.fake.Count("Delete"), "S1-034: within the hour it goes all the same")
				require.Equal(r, sandbox.AttentionHistoryLost, b.NeedsAttention, "shown to people")
				require.Equal(r, 1, strings.Count(strings.Join(r.events(box.ID), "\n"), "history_lost"))
				require.Equal(r, 4, strings.Count(strings.Join(r.events(box.ID), "\n"), "exported failed"), "one before the suspend, three of the sweep")
				r.clock.Advance(8 * 24 * time.Hour)
				require.Empty(r, r.box(box.ID).NeedsAttention, "for a week")
			})
		})
	}
}

func TestABoxIsNotWokenForItsExportWhereThatMaySuspendAnother(t *testing.T) {
	one(t, sandboxtest.Quirks{WakeSuspends: true}, withDelay, func(r *rig) {
		box := r.sleeping()
		r.agent(box.ID).Fail(history, 0)
		r.order(box.ID, models.WantDeleted, "janitor")
		r.settleFor(time.Hour)
		b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Zero(r, r.fake.Count("Resume"))
		require.Equal(r, sandbox.AttentionHistoryLost, b.NeedsAttention)
	})
}

func TestS0_126_ABoxThatCannotBeSuspendedIsExportedAndThenDeleted(t *testing.T) {
	each(t, sandboxtest.Quirks{Suspend: sandbox.SuspendNone}, withDelay, func(r *rig) {
		run, box := r.talked()
		r.agent(box.ID).Fail(history, http.StatusBadGateway)
		r.finish(run, models.Outcome{})
		r.settle()
		require.Zero(r, r.fake.Count("Delete"), "the sweep's rule: it is tried again")
		r.agent(box.ID).Fail(history, 0)
		r.settleFor(6 * time.Minute)
		b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Len(r, r.unpacked(b), 5)
		require.Empty(r, b.NeedsAttention)
	})
}

func TestS0_042_S0_089_ByHandALossIsConfirmedAndNothingIsWoken(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		box := r.sleeping()
		err := r.store.OrderDeletion(r.Context(), box.ID, models.Deletion{Who: "user:u", Why: "test"})
		require.ErrorIs(r, err, models.ErrNoCurrentExport)
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.NoError(r, r.store.OrderDeletion(r.Context(), box.ID, models.Deletion{Who: "user:u", Why: "test", LossAccepted: true}))
		r.settle()
		b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Zero(r, r.fake.Count("Resume"))
		require.Empty(r, b.NeedsAttention, "the person knows")
		require.ErrorIs(r, r.store.OrderDeletion(r.Context(), box.ID, models.Deletion{Who: "user:u", LossAccepted: true}), models.ErrDeletionOrdered)
	})
}

func TestADeleteByHandOfARunningBoxTriesOnceUnlessSkipped(t *testing.T) {
	for _, skip := range []bool{false, true} {
		one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
			run, box := r.talked()
			hold := r.store.OrderDeletion(r.Context(), box.ID, models.Deletion{Who: "user:u", LossAccepted: true})
			require.ErrorIs(r, hold, models.ErrRunActive)
			modelstest.Set(r.T, r.store, run, "status = ?", models.RunCompleted)
			require.ErrorIs(r, r.store.OrderDeletion(r.Context(), box.ID, models.Deletion{Who: "user:u"}), models.ErrNoCurrentExport, "of a running box none is current")
			require.NoError(r, r.store.OrderDeletion(r.Context(), box.ID, models.Deletion{Who: "user:u", LossAccepted: true, SkipExport: skip}))
			r.settle()
			b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
			require.Equal(r, skip, b.Export == nil)
		})
	}
}

func TestCancelAndDelayZeroMakeOneTry(t *testing.T) {
	for name, settings := range map[string]sandbox.Settings{"cancel": withDelay, "delay 0": {Export: sandbox.ExportOn}} {
		t.Run(name, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, settings, func(r *rig) {
				run, box := r.talked()
				agent := r.agent(box.ID)
				agent.Fail(history, http.StatusInternalServerError)
				if name == "cancel" {
					r.cancel(run)
				} else {
					r.finish(run, models.Outcome{})
				}
				r.settle()
				b := r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
				require.Equal(r, name == "delay 0", b.NeedsAttention == sandbox.AttentionHistoryLost, "a person who cancels has decided")
				require.Equal(r, 1, strings.Count(strings.Join(agent.Requests(), "\n"), "download-trajectory"))
			})
		})
	}
}

// What was exported for a suspend that did not come about says nothing of what happens in the box afterwards.
func TestAnExportCountsOnlyForTheSuspendItWasTakenFor(t *testing.T) {
	suspends := map[string]func(r *rig, box uuid.UUID){
		"the suspend fails and is repeated": func(r *rig, _ uuid.UUID) {
			r.fake.Fail("Suspend", errors.New("reset"))
		},
		"a resume is ordered first, then a pause": func(r *rig, box uuid.UUID) {
			r.fake.Fail("Suspend", errors.New("reset"))
			r.settle()
			r.order(box, models.WantRunning, "user:u")
			r.settle()
			require.Zero(r, r.box(box).ExportedEpoch)
			r.order(box, models.WantSuspended, "user:u")
		},
	}
	for name, play := range suspends {
		t.Run(name, func(t *testing.T) {
			each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
				run, box := r.talked()
				r.agent(box.ID).Idle(time.Hour)
				r.finish(run, models.Outcome{})
				play(r, box.ID)
				r.settle()
				r.agent(box.ID).Converse(sandboxtest.Conversation{ID: talk, Events: 7})
				r.settleFor(5 * time.Minute)
				b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
				require.True(r, b.ExportCurrent())
				if name == "the suspend fails and is repeated" {
					require.Equal(r, 7, b.Export.Conversations[0].Events)
				}
				expired, err := r.store.ExpiredExports(r.Context(), r.clock.Now(), r.clock.Now().Add(-time.Hour), 10)
				require.NoError(r, err)
				require.Len(r, r.exports(), len(expired)+1, "older ones are obsolete")
			})
		})
	}
}

func TestAGivenUpSuspendLeavesNoCurrentExport(t *testing.T) {
	one(t, sandboxtest.Quirks{Activity: true}, withDelay, func(r *rig) {
		run, box := r.talked()
		r.fake.Fail("Suspend", &sandbox.ProviderError{Status: 500})
		r.finish(run, models.Outcome{})
		r.settle()
		r.fake.Active(box.ID, r.clock.Now().Add(10*time.Second))
		r.settleFor(time.Hour)
		r.fake.IdlePause(box.ID) // the provider's own timer
		require.NoError(r, r.store.NudgeBox(r.Context(), box.ID))
		r.settle()
		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.False(r, b.ExportCurrent(), "the user has gone on since")
		require.NotNil(r, b.Export, "what there is, is kept")
	})
}

func TestS0_117_S0_127_DependenciesGoBeforeASnapshotAndNeverTheRuntime(t *testing.T) {
	for name, c := range map[string]struct {
		kind   sandbox.SuspendKind
		says   sandbox.ReclaimTier
		wanted string
	}{
		"by policy the box decides":           {sandbox.SuspendMemory, "", `"tier":"policy"`},
		"a snapshot is paid for":              {sandbox.SuspendSnapshot, sandbox.ReclaimPolicy, `"tier":"dependencies"`},
		"a setting is what is asked for":      {sandbox.SuspendSnapshot, sandbox.ReclaimCaches, `"tier":"caches"`},
		"dependencies wherever it is said so": {sandbox.SuspendDisk, sandbox.ReclaimDependencies, `"tier":"dependencies"`},
	} {
		t.Run(name, func(t *testing.T) {
			settings := withDelay
			settings.Reclaim = c.says
			one(t, sandboxtest.Quirks{Suspend: c.kind}, settings, func(r *rig) {
				run, box := r.talked()
				agent := r.agent(box.ID)
				r.finish(run, models.Outcome{})
				r.settle()
				require.Contains(r, agent.Reclaims(), c.wanted)
				require.NotContains(r, agent.Reclaims(), "runtime")
			})
		})
	}
}

func TestS0_064_ABoxShrinksBeforeAPauseByHandAndNotBeforeADelete(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		_, box := r.paused()
		r.order(box.ID, models.WantRunning, "user:u")
		r.settle()
		reclaims := func() int {
			return strings.Count(strings.Join(r.agent(box.ID).Requests(), "\n"), "POST /api/storage/reclaim")
		}
		before := reclaims()
		r.order(box.ID, models.WantSuspended, "user:u")
		r.settle()
		require.Equal(r, before+1, reclaims())
		r.order(box.ID, models.WantRunning, "user:u")
		r.settle()
		agent := r.agent(box.ID)
		before = reclaims()
		r.order(box.ID, models.WantDeleted, "user:u")
		r.settle()
		require.Equal(r, before, strings.Count(strings.Join(agent.Requests(), "\n"), "POST /api/storage/reclaim"))
	})
}

func TestABoxThatCannotReclaimIsPausedWithoutAndSaysSo(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.talked()
		r.agent(box.ID).Features("conversation_runtime_routes_v1") // the Python server
		r.finish(run, models.Outcome{})
		r.settle()
		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Contains(r, r.events(box.ID), "reclaimed skipped")
		require.True(r, b.ExportCurrent(), "the history is exported all the same")
		require.NotContains(r, strings.Join(r.agent(box.ID).Requests(), "\n"), "/api/storage")
	})
}

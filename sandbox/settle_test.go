package sandbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"automation/models"
	"automation/sandbox"
	"automation/sandbox/sandboxtest"
)

func TestS1_015_S1_052_AFinishedBoxIsStoredReclaimedAndPaused(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		agent := r.agent(box.ID)
		agent.Frees(4096)
		r.exit(run, box, "hello\n", 3)

		var order []string // S0-127, C-008: reclaim, then suspend
		agent.Watch(func(request string) { order = append(order, request) })
		r.fake.Watch(func(c sandboxtest.Call) { order = append(order, c.Method) })

		r.finish(run, models.Outcome{})
		require.Equal(r, "running", string(r.box(box.ID).Observed), "the answer to the callback does not wait for the pause")
		r.settle()

		b := r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.EqualValues(r, 4096, b.ReclaimedBytes)
		require.JSONEq(r, `{"root":"/home/box","conversations":[]}`, string(b.Storage))
		require.NotNil(r, b.StorageAt, "as of when the box was awake anyway (S0-152)")
		require.NotNil(r, b.SuspendedAt)
		require.Empty(r, b.NeedsAttention)
		stored := r.run(run.ID)
		require.Equal(r, 3, *stored.ExitCode)
		lines := []string{`{"type":"stdout","seq":1,"data":"aGVsbG8K"}`, `{"type":"exit","seq":2,"exit_code":3,"reason":"exited"}`, ""}
		require.Equal(r, lines, strings.Split(r.blobs.get(*stored.OutputKey), "\n"))
		require.Equal(r, stored.CompletedAt.Add(time.Hour), *stored.CleanupDueAt)
		require.Less(r, index(order, "POST /api/storage/reclaim"), index(order, "Suspend"))
		require.Greater(r, index(order, "POST /api/storage/reclaim"), index(order, "GET /server_info"))
		require.Equal(r, []string{"finished ok", "ordered ok", "output ok", "reclaimed ok", "exported skipped", "suspended ok"}, r.events(box.ID))
	})
}

func index(all []string, want string) int {
	for n, s := range all {
		if s == want {
			return n
		}
	}
	return -1
}

func TestS1_016_WithDelay0TheBoxIsDeletedAtOnceAndNotPaused(t *testing.T) {
	each(t, sandboxtest.Quirks{}, sandbox.Settings{}, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "out", 0)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Equal(r, 0, r.fake.Count("Suspend"))
		require.Equal(r, 1, r.fake.Count("Delete"))
		require.Nil(r, r.run(run.ID).CleanupDueAt)
		require.Empty(r, r.fake.Alive())
		require.Contains(r, r.blobs.get(*r.run(run.ID).OutputKey), "b3V0", "BR-33: output is stored before the delete")
	})
}

func TestS0_126_ABackendThatCannotSuspendDeletesInsteadOfRunningOn(t *testing.T) {
	each(t, sandboxtest.Quirks{Suspend: sandbox.SuspendNone}, withDelay, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "out", 0)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Contains(r, r.events(box.ID), "exported skipped", "the export comes first")
		require.NotNil(r, r.run(run.ID).OutputKey)
	})
}

func TestACommandThatPrintsAfterItsCallbackKeepsAllItsOutputAndItsExitCode(t *testing.T) {
	settings := withDelay
	settings.ExitGrace = 10 * time.Second
	each(t, sandboxtest.Quirks{}, settings, func(r *rig) {
		run, box := r.running()
		agent := r.agent(box.ID)
		asked := make(chan struct{}, 100)
		agent.Watch(func(request string) {
			if strings.HasSuffix(request, "/bash_events/search") {
				asked <- struct{}{}
			}
		})
		r.finish(run, models.Outcome{})
		done := make(chan error, 1)
		go func() {
			_, err := r.settler.Pass(r.Context(), place)
			done <- err
		}()
		<-asked // it waits for the exit
		<-asked
		agent.Print(*run.BashCommandID, strings.Repeat("line\n", 100))
		agent.Exit(*run.BashCommandID, 7)
		require.NoError(r, <-done)
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		stored := r.run(run.ID)
		require.Equal(r, 7, *stored.ExitCode)
		require.Equal(r, 100, strings.Count(decode(r.T, r.blobs.get(*stored.OutputKey)), "line\n"))
		require.False(r, agent.Command(*run.BashCommandID).Stopped)
	})
}

func TestACommandOfATimedOutRunIsStopped(t *testing.T) {
	for _, detail := range []string{models.TimedOutPrefix + "Command still running", "Replaced by run 7"} {
		t.Run(detail, func(t *testing.T) {
			one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
				run, box := r.running()
				agent, id := r.agent(box.ID), *run.BashCommandID
				agent.Print(id, "partial")
				r.finish(run, models.Outcome{Status: models.RunFailed, ErrorDetail: &detail, Actor: "watchdog", Reason: "timed out"})
				r.settle()
				require.True(r, agent.Command(id).Stopped)
				r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
				require.Equal(r, -15, *r.run(run.ID).ExitCode)
				require.Equal(r, "partial", decode(r.T, r.blobs.get(*r.run(run.ID).OutputKey)))
			})
		})
	}
}

func TestACommandThatStillRunsAfterTheGraceIsLeftAlone(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running() // ExitGrace 0: one look
		r.agent(box.ID).Print(*run.BashCommandID, "so far")
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.False(r, r.agent(box.ID).Command(*run.BashCommandID).Stopped)
		require.Nil(r, r.run(run.ID).ExitCode)
		require.Equal(r, "so far", decode(r.T, r.blobs.get(*r.run(run.ID).OutputKey)))

		// Awake again, it ends: the exit code is stored with the next pause.
		r.order(box.ID, models.WantRunning, "user:u")
		r.settle()
		r.exit(run, box, ", and the end", 0)
		r.order(box.ID, models.WantSuspended, "user:u")
		r.settle()
		require.Equal(r, 0, *r.run(run.ID).ExitCode)
		require.Equal(r, "so far, and the end", decode(r.T, r.blobs.get(*r.run(run.ID).OutputKey)))
	})
}

func TestACommandWhoseIDWasLostIsFoundByItsText(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		id := *run.BashCommandID
		r.exit(run, box, "out", 0)
		r.agent(box.ID).Run("curl " + run.ID.String() + ".tar.gz")
		_, err := r.raw().NewUpdate().Model(run).Set("bash_command_id = NULL").WherePK().Exec(r.Context())
		require.NoError(r, err)
		r.finish(run, models.Outcome{})
		r.settle()
		require.Equal(r, id, *r.run(run.ID).BashCommandID)
		require.Equal(r, 0, *r.run(run.ID).ExitCode)
	})
}

func TestOutputOfABoxWithoutProcessOutput(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Features() // as the Python server: no process_output_v1, no reclaim
		r.exit(run, box, strings.Repeat("x", 40<<10), 3)
		r.finish(run, models.Outcome{})
		r.settle()
		stored := r.run(run.ID)
		require.Equal(r, 3, *stored.ExitCode)
		text := r.blobs.get(*stored.OutputKey)
		require.Equal(r, strings.Repeat("x", 40<<10), decode(r.T, text))
		require.Equal(r, 3, strings.Count(text, "\n"), "two lines of at most 32 KiB, and the exit")
		require.NotContains(r, r.agent(box.ID).Requests(), "POST /api/storage/reclaim", "called only where announced")
		require.NotContains(r, r.agent(box.ID).Requests(), "GET /api/storage")
		require.Contains(r, r.events(box.ID), "reclaimed skipped")
	})
}

func TestFinishResponseIsStoredWithTheOutput(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Finish(`{"message":"done","outcome":"success"}`)
		r.exit(run, box, "", 0)
		conversation := "c1"
		r.finish(run, models.Outcome{ConversationID: &conversation})
		r.settle()
		require.JSONEq(r, `{"finish_tool_response":{"message":"done","outcome":"success"}}`, string(r.run(run.ID).RunMetadata))
	})
}

func TestS0_128_C_008_AFailingReclaimNeverBlocksThePause(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Fail("/api/storage/reclaim", 500)
		r.exit(run, box, "", 0)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Contains(r, r.events(box.ID), "reclaimed failed")
		require.Equal(r, 1, r.fake.Count("Suspend"))
	})
}

func TestPreparingStopsAtTheFirstUnreachable(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.agent(box.ID).Down()
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		requests := r.agent(box.ID).Requests()
		for _, request := range requests {
			require.Contains(r, request, "/api/bash/", "only the first preparing step was tried: %v", requests)
		}
	})
}

func TestS1_036_AFailingStoreOfOutputDoesNotBlockTheBox(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		r.blobs.err = errors.New("no space left on device")
		r.exit(run, box, "out", 0)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.Contains(r, r.events(box.ID), "output failed")
		require.Nil(r, r.run(run.ID).OutputKey)
	})
}

func TestS0_001_S0_003_S0_035_TheOrchestratorDeletesNoPathAndPausesOnlyThroughTheProvider(t *testing.T) {
	one(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		run, box := r.running()
		agent := r.agent(box.ID)
		r.exit(run, box, "out", 0)
		r.finish(run, models.Outcome{})
		r.settle()
		r.order(box.ID, models.WantDeleted, "janitor")
		r.settle()
		r.is(box.ID, models.WantDeleted, models.SeenDeleted, true)
		require.Equal(r, []string{"Create", "Inspect", "Suspend", "Inspect", "Delete"}, r.fake.Methods(box.ID))
		for _, request := range agent.Requests() { // no command, no file call, no call to pause or delete a box
			allowed := strings.HasPrefix(request, "GET ") || request == "POST /api/storage/reclaim"
			require.True(r, allowed, request)
		}
	})
}

func TestReclaimSettingIsTheTierThatIsAsked(t *testing.T) {
	settings := withDelay
	settings.Reclaim = sandbox.ReclaimOff
	one(t, sandboxtest.Quirks{}, settings, func(r *rig) {
		run, box := r.running()
		r.exit(run, box, "", 0)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantSuspended, models.SeenSuspended, true)
		require.NotContains(r, r.agent(box.ID).Requests(), "POST /api/storage/reclaim")
	})
}

func TestKeepAliveBoxesAreLeftAsTheyAre(t *testing.T) {
	each(t, sandboxtest.Quirks{}, withDelay, func(r *rig) {
		yes := true
		a := *r.auto
		a.ID, a.KeepAlive = uuid.Nil, &yes
		require.NoError(r, r.store.CreateAutomation(r.Context(), &a))
		run, box := r.runningOf(&a)
		r.finish(run, models.Outcome{})
		r.settle()
		r.is(box.ID, models.WantRunning, models.SeenRunning, true)
		require.Equal(r, []string{"Create"}, r.fake.Methods(box.ID), "S1-020: never stamped, paused or deleted")
		require.Nil(r, r.run(run.ID).CleanupDueAt)
	})
}

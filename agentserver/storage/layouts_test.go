package storage

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"automation/agentserver/conversation"
)

func TestS0_007_DockerRuntimesHaveCachesBudgetAndRetention(t *testing.T) {
	t.Run("S0-023 S0-082 caches of those that have stopped", func(t *testing.T) {
		f := newFleet(t, Settings{})
		f.runtime(idA, time.Hour)
		f.runtime(idB, time.Hour)
		f.lease(idB, f.clock.now().Add(30*time.Second))
		box := f.put("home/.cache/pip/wheel", 1)
		cache := func(id string) string {
			return filepath.Join(f.home, "state/runtime-data", id, "persistence/.cache/pip/wheel")
		}
		require.NoError(t, f.Maintain(t.Context()))
		require.NoFileExists(t, cache(idA), "it had stopped before the server started")
		require.FileExists(t, cache(idB))
		require.FileExists(t, box, "the home is no conversation's")
		f.clock.advance(time.Minute)
		require.NoError(t, f.Maintain(t.Context()))
		require.NoFileExists(t, cache(idB), "it has stopped since")
	})
	t.Run("S0-083 dependencies above the budget, the longest unused first", func(t *testing.T) {
		scan := Scan{Filesystem: Filesystem{TotalBytes: 1000, UsedBytes: 900, FreeBytes: 100}, Now: time.Now()}
		for i, id := range []string{"new", "older", "oldest"} {
			scan.Tenants = append(scan.Tenants, Found{
				Tenant: Tenant{ID: id, LastActive: scan.Now.Add(-time.Duration(i)*24*time.Hour - time.Minute)},
				Units:  []Unit{{Tier: TierDependencies, Path: id, bytes: 60}, {Tier: TierCaches, Path: id + "-cache", bytes: 10}},
			})
		}
		paths := func(request Request, budget float64) (all []string) {
			for _, item := range Plan(scan, request, Settings{DiskBudget: budget}) {
				all = append(all, item.Path)
			}
			return all
		}
		require.Equal(t, []string{"oldest-cache", "older-cache", "new-cache"}, paths(Request{}, 0))
		require.Equal(t, []string{"oldest-cache", "older-cache", "new-cache", "oldest"}, paths(Request{}, 0.82))
		require.Equal(t, []string{"oldest-cache", "older-cache", "new-cache", "oldest", "older"}, paths(Request{}, 0.1), "what was used a minute ago stays")
		require.Empty(t, paths(Request{timed: true}, 0.9))
		require.Equal(t, []string{"oldest-cache", "older-cache"}, paths(Request{timed: true}, 0.88))
	})
	t.Run("S0-025 S0-045 S0-046 S0-048 retention", func(t *testing.T) {
		f := newFleet(t, Settings{RetentionDays: 2})
		f.runtime(idA, 0)
		f.sleepless(3 * 24 * time.Hour)
		f.runtime(idB, 24*time.Hour)
		history := fingerprint(t, filepath.Join(f.home, "history"))
		require.NoError(t, f.Maintain(t.Context()))
		require.NoDirExists(t, filepath.Join(f.home, "state/runtime-data", idA), "home and workspace are gone")
		require.DirExists(t, filepath.Join(f.home, "state/runtime-data", idB))
		require.Equal(t, history, fingerprint(t, filepath.Join(f.home, "history")))
		var marker map[string]time.Time
		text, err := os.ReadFile(filepath.Join(f.home, "state/runtime-control", idA+".archived.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &marker))
		require.Equal(t, f.clock.now(), marker["archived_at"])
		require.Equal(t, StateArchived, f.of(idA).State)
		require.Empty(t, entries(t, filepath.Join(f.home, "state", trashName)))
	})
}

func TestS0_150_TimeAsleepDoesNotCountAndAResumeHasAGrace(t *testing.T) {
	settings := Settings{RetentionDays: 2, Grace: 24 * time.Hour, ArchiveLimit: 2}
	f := newFleet(t, settings)
	all := []string{idA, idB, idC}
	for _, id := range all {
		f.runtime(id, 0)
	}
	left := func() (n int) {
		for _, id := range all {
			if _, err := os.Stat(filepath.Join(f.home, "state/runtime-data", id)); err == nil {
				n++
			}
		}
		return n
	}
	f.sleepless(time.Hour)
	f.clock.advance(30 * 24 * time.Hour) // the box sleeps
	require.NoError(t, f.Maintain(t.Context()))
	f.sleepless(25 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 3, left(), "awake for 26 hours of the 31 days")
	f.restart() // the ledger outlives the server
	f.sleepless(22*time.Hour + 30*time.Minute)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 3, left(), "awake for 48 hours and more, but started a day ago at most")
	require.NotNil(t, f.of(idA).NextPass.NotBefore)
	f.sleepless(2 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 1, left(), "at most two in one pass")
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, 0, left())

	t.Run("activity that is unknown or in the future keeps the runtime", func(t *testing.T) {
		f := newFleet(t, Settings{RetentionDays: 1})
		f.runtime(idA, -time.Hour*24*365)
		f.runtime(idB, 0)
		f.sleepless(50 * time.Hour)
		require.NoError(t, os.Remove(filepath.Join(f.home, "history", idB, "base_state.json")))
		require.NoError(t, f.Maintain(t.Context()))
		require.DirExists(t, filepath.Join(f.home, "state/runtime-data", idA))
		require.DirExists(t, filepath.Join(f.home, "state/runtime-data", idB))
	})
}

func TestS0_067_RetentionOfOneConversation(t *testing.T) {
	f := newFleet(t, Settings{RetentionDays: 1})
	days := 3
	for id, r := range map[string]conversation.Retention{
		idA: {Policy: conversation.OnStop}, idB: {Policy: conversation.Days, Days: &days}, idC: {Policy: conversation.Default},
	} {
		f.runtime(id, 0)
		require.NoError(t, f.histories.SetRetention(id, r))
	}
	there := func(id string) bool {
		_, err := os.Stat(filepath.Join(f.home, "state/runtime-data", id))
		return err == nil
	}
	f.lease(idA, f.clock.now().Add(time.Minute))
	require.NoError(t, f.Maintain(t.Context()))
	require.True(t, there(idA))
	require.NoError(t, os.Remove(filepath.Join(f.home, "history", idA, "owner_lease.json")))
	require.NoError(t, f.Maintain(t.Context()))
	require.False(t, there(idA), "S0-069 on_stop: it has stopped")
	require.True(t, there(idB))
	f.sleepless(25 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, []bool{true, false}, []bool{there(idB), there(idC)})
	f.sleepless(48 * time.Hour)
	require.NoError(t, f.Maintain(t.Context()))
	require.False(t, there(idB))
}

func TestS0_069_OnStopDropsTheRuntimeAsSoonAsTheConversationHasStopped(t *testing.T) {
	f := newFleet(t, Settings{Grace: 24 * time.Hour}) // the server itself keeps everything for ever
	for _, id := range []string{idA, idB} {
		f.runtime(id, 0)
		f.lease(id, f.clock.now().Add(time.Minute))
	}
	require.NoError(t, f.histories.SetRetention(idA, conversation.Retention{Policy: conversation.OnStop}))
	runtime := func(id string) string { return filepath.Join(f.home, "state/runtime-data", id) }
	stop := func(id string) {
		require.NoError(t, os.Remove(filepath.Join(f.home, "history", id, "owner_lease.json")))
	}
	f.text("history/"+idA+"/base_state.json", `{"execution_status":"running"}`)
	for _, request := range []Request{{}, {Tier: TierRuntime}} {
		f.reclaim(request)
		require.NoError(t, f.Maintain(t.Context()))
		require.FileExists(t, filepath.Join(runtime(idA), "workspace/untracked"), "its agent works")
	}
	f.text("history/"+idA+"/base_state.json", `{"execution_status":"paused"}`)
	require.NoError(t, f.Maintain(t.Context()))
	require.FileExists(t, filepath.Join(runtime(idA), "workspace/untracked"), "its container still has it open")

	history := fingerprint(t, filepath.Join(f.home, "history", idA, "events"))
	stop(idA)
	stop(idB)
	f.clock.advance(time.Minute) // no grace, no age
	require.NoError(t, f.Maintain(t.Context()))
	require.NoDirExists(t, runtime(idA), "home and workspace, the very next pass")
	require.Equal(t, StateArchived, f.of(idA).State)
	require.Equal(t, history, fingerprint(t, filepath.Join(f.home, "history", idA, "events")))
	require.FileExists(t, filepath.Join(runtime(idB), "workspace/node_modules/left-pad/index.js"), "who did not ask for it keeps what it has")
}

func TestS0_049_AMoveThatFailsTakesTheArchiveMarkAwayAgain(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	before := fingerprint(t, filepath.Join(f.home, "state/runtime-data"))
	elsewhere, err := os.MkdirTemp("/dev/shm", "trash") //nolint:usetesting // another file system
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(elsewhere)) })
	trash := f.areas[len(f.areas)-1].trash
	trash.wait(t.Context())
	proper := trash.root
	other, err := openRoot(elsewhere)
	require.NoError(t, err)
	defer other.close()
	f.archive(idA, func() { trash.root = other }, reasonOtherDisk)
	require.NoFileExists(t, filepath.Join(f.home, "state/runtime-control", idA+".archived.json"))
	require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "state/runtime-data")))
	require.Equal(t, StateStopped, f.of(idA).State)

	t.Run("and a crash between the mark and the move is made good by the next pass", func(t *testing.T) {
		trash.root = proper
		f.put("state/runtime-control/"+idA+".archived.json", 1)
		f.restart()
		require.NoError(t, f.Maintain(t.Context()))
		require.NoDirExists(t, filepath.Join(f.home, "state/runtime-data", idA))
		require.Equal(t, StateArchived, f.of(idA).State)
	})
}

func TestEntriesThatCannotBeDeletedAreTriedAgainLaterAndNeverCountAsFreed(t *testing.T) {
	if os.Getuid() != 0 {
		runIn(t, []string{"unshare", "--user", "--map-root-user", "--mount"}, nil)
		return
	}
	f := newFleet(t, Settings{})
	f.put("home/.cache/pip/x", 100)
	stuck := filepath.Join(f.home, "home", trashName, "entry", "mounted")
	require.NoError(t, os.MkdirAll(stuck, 0o700))
	err := syscall.Mount("", stuck, "tmpfs", 0, "")
	if errors.Is(err, syscall.EPERM) {
		runIn(t, []string{"unshare", "--user", "--map-root-user", "--mount"}, nil)
		return
	}
	require.NoError(t, err)
	mounted := true
	unmount := func() {
		if mounted {
			require.NoError(t, syscall.Unmount(stuck, syscall.MNT_DETACH))
		}
		mounted = false
	}
	t.Cleanup(unmount)
	freed := f.reclaim(Request{}).FreedBytes
	require.GreaterOrEqual(t, freed, int64(100<<10))
	require.Less(t, freed, int64(110<<10), "without what was in the trash before")
	first := f.status().Stuck
	require.Len(t, first, 1)
	require.Equal(t, []any{trashName + "/entry", 1}, []any{first[0].Path, first[0].Tries})
	require.NotEmpty(t, first[0].Error)
	f.reclaim(Request{})
	require.Equal(t, 1, f.status().Stuck[0].Tries, "not before its time")
	f.clock.advance(retryFirst)
	f.reclaim(Request{})
	second := f.status().Stuck[0]
	require.Equal(t, 2, second.Tries)
	require.Equal(t, f.clock.now().Add(2*retryFirst), second.RetryAt)
	unmount()
	f.clock.advance(2 * retryFirst)
	f.reclaim(Request{})
	require.Empty(t, f.status().Stuck)
	require.NoDirExists(t, stuck)
}

func TestS0_063_WhoRunsOrStartsKeepsEverything(t *testing.T) {
	f := newFleet(t, Settings{RetentionDays: 1})
	f.runtime(idA, time.Hour)
	before := fingerprint(t, filepath.Join(f.home, "state/runtime-data"))
	refused := func(state, reason string) {
		t.Helper()
		require.Equal(t, state, f.of(idA).State)
		for _, item := range f.reclaim(Request{Tier: TierRuntime, ConversationIDs: []string{conversation.Dashed(idA)}}).Items {
			require.Equal(t, []string{Skipped, reason}, []string{item.Outcome, item.Reason})
		}
		require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "state/runtime-data")))
	}
	f.lease(idA, f.clock.now().Add(20*time.Second))
	refused(StateIdle, reasonContainer)
	f.text("history/"+idA+"/base_state.json", `{"execution_status":"running"}`)
	refused(StateRunning, reasonContainer)
	require.NoError(t, os.Remove(filepath.Join(f.home, "history", idA, "owner_lease.json")))
	refused(StateRunning, reasonWorking)
	f.text("history/"+idA+"/base_state.json", `{"execution_status":"paused"}`)
	f.put("state/runtime-control/"+idA+".json.lock", 0)
	lock, err := os.OpenFile(filepath.Join(f.home, "state/runtime-control", idA+".json.lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	refused(StateStarting, reasonStarting)
	require.NoError(t, lock.Close())

	dry := f.reclaim(Request{Tier: TierRuntime, DryRun: true, ConversationIDs: []string{conversation.Dashed(idA)}})
	require.Equal(t, Planned, dry.Items[0].Outcome)
	f.lease(idA, f.clock.now().Add(20*time.Second)) // it starts after the plan
	require.Equal(t, Skipped, f.reclaim(Request{PlanID: dry.PlanID}).Items[0].Outcome)
	require.NoError(t, os.Remove(filepath.Join(f.home, "history", idA, "owner_lease.json")))
	f.used(idA, time.Minute) // and has been used
	again := f.reclaim(Request{PlanID: dry.PlanID})
	require.Equal(t, []string{Skipped, reasonUsed}, []string{again.Items[0].Outcome, again.Items[0].Reason})
	require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "state/runtime-data")))
	f.archive(idA, func() {}, "")
}

func TestS0_009_S0_161_ABoxWithoutRuntimesIsASharedWorkspace(t *testing.T) {
	f := newFleet(t, Settings{})
	f.options.RuntimesDir, f.options.Settings.RetentionDays = "", 3
	f.restart()
	f.checkout("work/one")
	f.put("home/.cache/pip/x", 10)
	status := f.status()
	require.Len(t, status.Conversations, 1)
	require.Equal(t, LayoutShared, status.Conversations[0].Layout)
	require.Contains(t, f.log.String(), "retention is set and has no effect", "S0-151 S0-047 said loudly")
	result := f.reclaim(Request{Tier: TierRuntime})
	require.Equal(t, []string{".cache/pip moved", filepath.Join(f.home, "work", "one", "node_modules") + " moved"}, outcomes(result))
	require.Equal(t, status.Conversations[0].SizeBytes-result.FreedBytes, f.status().Conversations[0].SizeBytes)
	require.FileExists(t, filepath.Join(f.home, "work/one/untracked"))
	t.Run("a conversation at work in it keeps all of it", func(t *testing.T) {
		f.put("home/.cache/pip/x", 10)
		require.NoError(t, f.histories.Create(idA, []byte(`{}`), []byte(`{"execution_status":"running"}`)))
		require.Equal(t, []string{".cache/pip skipped conversation " + conversation.Dashed(idA) + " is running"}, outcomes(f.reclaim(Request{})))
	})
}

func TestS0_054_S0_055_S0_056_S0_057_S0_058_StatusOfEveryConversation(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, 3*time.Hour)
	status := f.status()
	require.Positive(t, status.Filesystem.UsedBytes)
	c := f.of(idA)
	require.Equal(t, []any{conversation.Dashed(idA), LayoutDocker, StateStopped}, []any{c.ID, c.Layout, c.State})
	require.True(t, c.LastActive.Equal(f.clock.now().Add(-3*time.Hour)), "S0-027 the time of its state file")
	require.GreaterOrEqual(t, c.SizeBytes, int64(120<<10))
	require.GreaterOrEqual(t, c.NextPass.Bytes, int64(40<<10))
	require.Equal(t, c.NextPass.Bytes, f.reclaim(Request{}).FreedBytes, "S0-059")
	after := f.of(idA)
	require.Equal(t, c.SizeBytes-c.NextPass.Bytes, after.SizeBytes)

	t.Run("who has not run since is not walked again and says as of when", func(t *testing.T) {
		f.clock.advance(time.Hour)
		f.put("state/runtime-data/"+idA+"/persistence/sneaked-in", 100)
		require.Equal(t, after.AsOf, f.of(idA).AsOf)
		require.Equal(t, after.SizeBytes, f.of(idA).SizeBytes)
		f.used(idA, time.Minute)
		require.Equal(t, f.clock.now(), f.of(idA).AsOf)
		require.Greater(t, f.of(idA).SizeBytes, after.SizeBytes)
	})
}

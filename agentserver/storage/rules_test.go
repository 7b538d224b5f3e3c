package storage

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
)

func TestBR34_NoFilterOfARequestChoosesWhoWorksOrAsksNothingOfThem(t *testing.T) {
	now := time.Now()
	scan := Scan{
		Now: now, Filesystem: Filesystem{TotalBytes: 1000, UsedBytes: 990, FreeBytes: 10},
		AwakeFor: now.Sub,
	}
	busy := map[string]bool{}
	for i, state := range []string{StateRunning, StateStarting, StateIdle, StateStopped, StateArchived} {
		for j, used := range []time.Time{{}, now.Add(-100 * 24 * time.Hour), now.Add(time.Hour)} {
			id := "conversation-" + strconv.Itoa(i) + strconv.Itoa(j)
			t := Tenant{ID: id, State: state, LastActive: used, Retention: conversation.Retention{Policy: conversation.OnStop}, parts: []part{{runtime: id}}}
			if state == StateRunning || state == StateStarting || state == StateIdle {
				t.Busy, busy[id] = reasonWorking, true
			}
			units := []Unit{}
			for _, tier := range []Tier{TierCaches, TierDependencies, TierRuntime} {
				units = append(units, Unit{Tier: tier, Path: id + string(tier), bytes: 10, part: t.parts[0]})
			}
			scan.Tenants = append(scan.Tenants, Found{Tenant: t, Units: units})
		}
	}
	lists := [][]string{nil, {}, {"conversation-00"}, {"conversation-10", "conversation-31"}, {"nobody"}}
	for _, tier := range append([]Tier{""}, Tiers...) {
		for _, ids := range lists {
			for _, dry := range []bool{false, true} {
				for _, timed := range []bool{false, true} {
					for _, budget := range []float64{0, 0.1, 0.999} {
						for _, days := range []int{0, 1, 365} {
							request := Request{Tier: tier, ConversationIDs: ids, DryRun: dry, timed: timed}
							for _, item := range Plan(scan, request, Settings{RetentionDays: days, DiskBudget: budget}) {
								require.True(t, request.wants(item.ConversationID), "%+v chooses %s", request, item.ConversationID)
								require.False(t, busy[item.ConversationID] && item.Outcome == Planned, "%+v takes %s", request, item.Path)
							}
						}
					}
				}
			}
		}
	}
}

func TestBR19_AWorktreeStaysWhateverItsAgeAndWhateverIsInIt(t *testing.T) {
	f := newFleet(t, Settings{RetentionDays: 1, DiskBudget: 0.000001})
	f.options.WorktreeRoot = filepath.Join(f.home, "trees")
	f.restart()
	repository := filepath.Join(f.home, "work/repository")
	f.checkout("work/repository")
	f.git(repository, "commit", "-qm", "first")
	for i, change := range map[string]func(tree string){
		idA: func(tree string) { require.NoError(t, os.WriteFile(tree+"/untracked-too", []byte("x"), 0o600)) },
		idB: func(tree string) { f.git(tree, "commit", "-qm", "not pushed", "--allow-empty") },
		idC: func(tree string) {
			f.git(tree, "checkout", "-q", "--detach")
			f.git(tree, "commit", "-qm", "of no branch", "--allow-empty")
		},
	} {
		tree := filepath.Join(f.home, "trees", i, "repository")
		f.git(repository, "worktree", "add", "-q", "-b", "branch-"+i, tree)
		require.NoError(t, f.histories.Create(i, []byte(`{}`), []byte(`{"execution_status":"paused"}`)))
		f.used(i, 300*24*time.Hour)
		change(tree)
	}
	f.sleepless(3 * 24 * time.Hour)
	before := fingerprint(t, filepath.Join(f.home, "trees")) + fingerprint(t, repository+"/.git")
	for _, request := range []Request{{}, {Tier: TierDependencies}, {Tier: TierRuntime}, {Tier: TierRuntime, ConversationIDs: []string{conversation.Dashed(idA)}}} {
		f.reclaim(request)
	}
	require.NoError(t, f.Maintain(t.Context()))
	require.Equal(t, before, fingerprint(t, filepath.Join(f.home, "trees"))+fingerprint(t, repository+"/.git"))
}

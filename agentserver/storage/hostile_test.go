package storage

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"automation/agentserver/conversation"
)

func TestBR38_AWorkspaceThatIsSwappedForALinkTakesNothingElseWithIt(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	f.runtime(idB, time.Hour)
	base := filepath.Join(f.home, "state/runtime-data", idA, "workspace")
	victim := filepath.Join(f.home, "state/runtime-data", idB, "workspace")
	outside := filepath.Join(f.home, "outside")
	f.put("outside/node_modules/precious", 1)
	f.text("outside/package.json", "{}")
	before := fingerprint(t, outside) + fingerprint(t, victim)
	done := make(chan error, 1)
	go func() {
		aside := base + "-aside"
		for i := range hostileSwaps {
			err := errors.Join(
				os.MkdirAll(filepath.Join(base, "node_modules/left-pad"), 0o700),
				os.Rename(base, aside), os.Symlink([]string{outside, victim}[i%2], base), os.Remove(base), os.Rename(aside, base))
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	moved := 0
	for swapping := true; swapping; {
		for _, item := range f.reclaim(Request{Tier: TierDependencies, ConversationIDs: []string{conversation.Dashed(idA)}}).Items {
			if item.Outcome == Moved {
				moved++
			}
		}
		select {
		case err := <-done:
			require.NoError(t, err)
			swapping = false
		default:
		}
	}
	require.Equal(t, before, fingerprint(t, outside)+fingerprint(t, victim))
	require.Positive(t, moved)
}

func TestS0_046_ARuntimeThatIsALinkIsNotArchived(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	f.put("outside/precious", 1)
	data := filepath.Join(f.home, "state/runtime-data", idA)
	require.NoError(t, os.Rename(data, data+"-aside"))
	require.NoError(t, os.Symlink(filepath.Join(f.home, "outside"), data))
	require.Empty(t, f.reclaim(Request{Tier: TierRuntime, ConversationIDs: []string{conversation.Dashed(idA)}}).Items)
	require.FileExists(t, filepath.Join(f.home, "outside/precious"))
	require.NoFileExists(t, filepath.Join(f.home, "state/runtime-control", idA+".archived.json"))
}

func TestS0_059_S0_062_ADryRunOfAnyTreeChangesNothingAndPredictsTheApply(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			f := newFleet(t, Settings{})
			for i := range 1 + random.IntN(3) {
				id := []string{idA, idB, idC}[i]
				f.runtime(id, time.Duration(random.IntN(100))*time.Hour)
				f.grow(random, "state/runtime-data/"+id+"/workspace/node_modules", 3)
				f.grow(random, "state/runtime-data/"+id+"/persistence/.cache/tool", 3)
			}
			f.grow(random, "home/.cache/other", 2)
			tier := Tiers[random.IntN(len(Tiers))]
			request := Request{Tier: tier, DryRun: true}
			if tier == TierRuntime {
				request.ConversationIDs = []string{conversation.Dashed(idA), Box}
			}
			before := fingerprint(t, f.home)
			dry := f.reclaim(request)
			require.Equal(t, before, fingerprint(t, f.home))
			used := f.used512()
			applied := f.reclaim(Request{PlanID: dry.PlanID})
			require.Equal(t, dry.FreedBytes, applied.FreedBytes)
			require.Len(t, applied.Items, len(dry.Items))
			for i, item := range applied.Items {
				require.Equal(t, []any{dry.Items[i].Path, dry.Items[i].Bytes, dry.Items[i].Files}, []any{item.Path, item.Bytes, item.Files})
				require.Equal(t, dry.Items[i].Outcome == Planned, item.Outcome == Moved)
			}
			require.InDelta(t, used-applied.FreedBytes, f.used512(), 1<<16, "what the plan says is what goes")
		})
	}
}

// grow makes a random tree with all that a file system has: links, sparse files, pipes, long and odd names.
func (f *fleet) grow(random *rand.Rand, at string, depth int) {
	full := filepath.Join(f.home, at)
	require.NoError(f.t, os.MkdirAll(full, 0o700))
	for i := range random.IntN(6) {
		name := strconv.Itoa(i)
		switch random.IntN(7) {
		case 0:
			require.NoError(f.t, syscall.Mkfifo(filepath.Join(full, name), 0o600))
		case 1:
			require.NoError(f.t, os.Symlink([]string{"/", "..", "gone"}[random.IntN(3)], filepath.Join(full, name)))
		case 2:
			file := f.put(at+"/"+name, random.IntN(20))
			require.NoError(f.t, os.Link(file, file+"-again"))
		case 3:
			require.NoError(f.t, os.Truncate(f.put(at+"/"+name, 1), 1<<20))
		case 4:
			f.put(at+"/\xff\xfe"+name, random.IntN(20))
		default:
			if depth > 0 {
				f.grow(random, at+"/"+name, depth-1)
			}
		}
	}
}

// used512 is what everything takes on disk, each file once.
func (f *fleet) used512() int64 {
	seen := map[uint64]bool{}
	var total int64
	require.NoError(f.t, filepath.WalkDir(f.home, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			total += st.Blocks * 512
		}
		return nil
	}))
	return total
}

package storage

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// archiveHeld archives a conversation whose runtime the trash goes on holding: as after a crash before its deletion began.
func (f *fleet) archiveHeld(id string) string {
	f.t.Helper()
	entry := filepath.Join(f.home, "state", trashName, archivedName(id))
	require.NoError(f.t, os.MkdirAll(filepath.Join(f.home, "state", runtimeControl), 0o700))
	f.text("state/runtime-control/"+id+archivedSuffix, `{"archived_at":"2026-06-01T12:00:00Z"}`)
	require.NoError(f.t, os.Rename(filepath.Join(f.home, "state/runtime-data", id), entry))
	require.Equal(f.t, StateArchived, f.of(id).State)
	return entry
}

func TestAnArchivedRuntimeComesBackAsLongAsTheTrashHoldsIt(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	data := filepath.Join(f.home, "state/runtime-data", idA)
	before := fingerprint(t, data)
	require.ErrorIs(t, f.Restore(t.Context(), idA), ErrNotArchived)

	f.archiveHeld(idA)
	f.lease(idA, f.clock.now().Add(time.Minute))
	var inUse *InUseError
	require.ErrorAs(t, f.Restore(t.Context(), idA), &inUse)
	require.NoError(t, os.Remove(filepath.Join(f.home, "history", idA, "owner_lease.json")))
	require.NoError(t, f.Restore(t.Context(), idA))
	require.Equal(t, before, fingerprint(t, data))
	require.Equal(t, StateStopped, f.of(idA).State)

	f.archiveHeld(idA)
	require.NoError(t, os.Rename(filepath.Join(f.home, "state", trashName, entries(t, filepath.Join(f.home, "state", trashName))[0]), data))
	require.NoError(t, f.Restore(t.Context(), idA), "after a crash between its move and its mark")
	require.Equal(t, before, fingerprint(t, data))

	f.archiveHeld(idA)
	f.reclaim(Request{Tier: TierCaches}) // empties the trash
	require.ErrorIs(t, f.Restore(t.Context(), idA), fs.ErrNotExist)
	require.Equal(t, StateArchived, f.of(idA).State)
}

func TestADeletedConversationIsNotTakenBackForAnotherOfItsName(t *testing.T) {
	f := newFleet(t, Settings{})
	f.runtime(idA, time.Hour)
	entry := f.archiveHeld(idA)
	require.NoError(t, f.Remove(t.Context(), idA))
	require.NoDirExists(t, entry)
	f.runtime(idA, time.Hour)
	f.archive(idA, func() {}, "")
	require.ErrorIs(t, f.Restore(t.Context(), idA), fs.ErrNotExist)
}
